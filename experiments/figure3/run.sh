#!/usr/bin/env bash
# Draws figure3.png and writes results.json and table.md beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
"${PYTHON:-.venv/bin/python}" experiments/figure3/figure3.py "$@"
