#!/usr/bin/env bash
# Scorers, then the page in a browser. SAMPLES_JSON is MMLongBench-Doc's samples.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.
python=${PYTHON:-.venv/bin/python}
"$python" experiments/benchmark_judging/scorers.py "${1:?SAMPLES_JSON}" \
  | tee experiments/benchmark_judging/scorers.json
"$python" experiments/benchmark_judging/first_paint.py 1000 \
  | tee experiments/benchmark_judging/first_paint.json
