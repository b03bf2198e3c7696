#!/usr/bin/env bash
# Kills the tiny run fifty times at random moments and compares what comes out with a run that
# was left alone; writes results.json. KILLS names another number.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=runs/kill_and_resume
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-.cache/jax}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
"${PYTHON:-.venv/bin/python}" -m experiments.kill_and_resume.kill --kills "${KILLS:-50}" \
  --work "$work" --output experiments/kill_and_resume/results.json
