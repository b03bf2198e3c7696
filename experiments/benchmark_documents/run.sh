#!/usr/bin/env bash
# Render, embed, index and search. DIR holds samples.json and documents/ in MMLongBench-Doc's form.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.
python=${PYTHON:-.venv/bin/python}
"$python" experiments/benchmark_documents/retrieval.py "${1:?DIR}" \
  | tee experiments/benchmark_documents/results.json
