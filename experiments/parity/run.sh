#!/usr/bin/env bash
# Breaks the port in 33 ways and looks which test notices (17 minutes on one core, less where the
# compilation cache is warm); then the memory that loading takes.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=experiments/parity
python="${PYTHON:-.venv/bin/python}"
export JAX_PLATFORMS=cpu
mkdir -p runs/parity
"$python" "$here/mutate.py" > runs/parity/results.json
"$python" "$here/load_memory.py" > runs/parity/load_memory.json
cp runs/parity/*.json "$here/"
