#!/bin/sh
# Plans the 4B policy with its 14B reader for the targets of README.md; needs the extra `plan`.
# Shapes only, no weights. One at a time: the TPU's compiler is used by one process.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}
plan() {  # name topology data fsdp tensor rows length
  [ -s "experiments/plan/results/$1.json" ] ||
    "$PYTHON" -m awm_jax plan --config=configs/qwen3vl_4b_awm_grpo.py --topology="$2" \
      --config.mesh.data="$3" --config.mesh.fsdp="$4" --config.mesh.tensor="$5" \
      --config.packing.rows="$6" --config.packing.row_length="$7" \
      --output="experiments/plan/results/$1.json"
}
[ -s experiments/plan/results/v5e-4x4-4096-quick.json ] ||
  "$PYTHON" -m awm_jax plan --config=configs/qwen3vl_4b_awm_grpo.py --topology=v5e:4x4 --quick \
    --output=experiments/plan/results/v5e-4x4-4096-quick.json
[ -s experiments/plan/results/30b-a3b-v5p-4x4x4-quick.json ] ||
  "$PYTHON" -m awm_jax plan --config=configs/qwen3vl_30b_a3b_awm_grpo.py --topology=v5p:4x4x4 --quick \
    --output=experiments/plan/results/30b-a3b-v5p-4x4x4-quick.json
for length in 4096 16384; do
  plan "v5e-4x4-$length" v5e:4x4 1 4 4 16 $length
  plan "v6e-4x4-$length" v6e:4x4 1 4 4 16 $length
  plan "v5p-2x2x2-$length" v5p:2x2x2 1 4 2 16 $length
  plan "v5e-8x8-$length" v5e:8x8 1 16 4 16 $length
  plan "v5e-16x16-$length" v5e:16x16 1 64 4 64 $length
  plan "v5e-4x4-two-slices-$length" "v5e:4x4*2" 2 4 4 16 $length
  plan "h100-8-$length" h100:8 1 4 2 16 $length
  plan "h200-8-$length" h200:8 1 4 2 16 $length
done
