#!/bin/sh
# Conversations in flight against a scripted policy; writes results.json. Half a minute.
set -eu
cd "$(dirname "$0")/../.."
JAX_PLATFORMS=cpu "${PYTHON:-.venv/bin/python}" experiments/benchmark_agent/in_flight.py \
  > experiments/benchmark_agent/results.json
