#!/usr/bin/env bash
# Breaks the port in 33 ways and looks which test notices (17 minutes on one core, less where the
# compilation cache is warm); then the memory that loading takes; then whether two versions of HF
# transformers load what is written here. Their environments are made first, under runs/ (about
# 2 GB). PEERS names another place.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=experiments/parity
work=runs/parity
peers="${PEERS:-$work}"
source experiments/benchmark_rl/peers.sh
mkdir -p "$work" "$peers"
"$python" "$here/mutate.py" > "$work/results.json"
"$python" "$here/load_memory.py" > "$work/load_memory.json"
rm -rf "$work/export"
"$python" "$here/export.py" write "$work/export"
for version in 4.57.6 5.24.0; do
  make_peer "$peers" "transformers-$version" torch==2.13.0 "transformers==$version"
  "$peers/transformers-$version/bin/python" "$here/export.py" read "$work/export" \
    > "$work/export-$version.json"
done
cp "$work"/*.json "$here/"
