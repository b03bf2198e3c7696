#!/bin/sh
# Remakes the two models from nothing: some minutes on two cores. Usage: run.sh [SEED]
set -eu
cd "$(dirname "$0")/../.."
seed="${1:-0}"
work="runs/pretrain-$seed"
python="${PYTHON:-.venv/bin/python}"
# One thread a process: several threads of two processes on two cores stand in each other's way.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-.cache/jax}"
pretrain="experiments/tiny_world/pretrain.py"
$python $pretrain world --out experiments/tiny_world --work "$work" --seed "$seed"
$python $pretrain reader --out experiments/tiny_world --work "$work" --seed "$seed" &
reader=$!
$python $pretrain policy --out experiments/tiny_world --work "$work" --seed "$seed"
wait $reader
$python experiments/tiny_world/evaluate.py --models experiments/tiny_world --work "$work" --seed "$seed"
