#!/usr/bin/env bash
# Measures the RL core beside its peers and writes results.json, all on one core. The peers' two
# environments are made first, under runs/ (about 3 GB). PEERS names another place for them, CORE
# another core. Memory: 10 GiB for the whole logits of head.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=experiments/benchmark_rl
work=runs/benchmark_rl
peers="${PEERS:-$work}"
source experiments/benchmark_rl/peers.sh
mkdir -p "$work" "$peers"

make_peer "$peers" trl torch==2.13.0 trl==1.16.0
make_peer "$peers" tunix google-tunix==0.1.7

measure "$here/advantages.py" > "$work/advantages.json"
rm -rf "$work/inputs"
measure "$here/step_inputs.py" "$work/inputs"
measure "$here/step.py" --folder "$work/inputs" \
  --tunix "$peers/tunix/bin/python" --trl "$peers/trl/bin/python" > "$work/step.json"
measure "$here/head.py" > "$work/head.json"
"$python" - "$work" > "$here/results.json" <<'END'
import json, pathlib, sys
parts = {name: pathlib.Path(sys.argv[1], f"{name}.json") for name in ("head", "step", "advantages")}
print(json.dumps({name: json.loads(path.read_text()) for name, path in parts.items()}, indent=1))
END
echo "wrote $here/results.json"
