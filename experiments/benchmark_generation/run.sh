#!/usr/bin/env bash
# Measures generation beside HF and Tunix and writes results.json, all on one core. The peers'
# environments are made first, under runs/ (about 3 GB). PEERS names another place, CORE another core.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=experiments/benchmark_generation
work=runs/benchmark_generation
peers="${PEERS:-$work}"
source experiments/benchmark_rl/peers.sh
mkdir -p "$work" "$peers"
# Compilation is measured: nothing is taken from an earlier run.
export JAX_ENABLE_COMPILATION_CACHE=false

make_peer "$peers" trl torch==2.13.0 trl==1.16.0
make_peer "$peers" tunix google-tunix==0.1.7

rm -rf "$work/inputs"
measure experiments/benchmark_rl/step_inputs.py "$work/inputs"
measure "$here/compare.py" --folder "$work/inputs" \
  --tunix "$peers/tunix/bin/python" --hf "$peers/trl/bin/python" > "$work/results.json"
cp "$work/results.json" "$here/results.json"
echo "wrote $here/results.json"
