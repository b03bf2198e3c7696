#!/bin/sh
# What the contrast hangs on: one change of the recipe at a time, from one seed's warm start.
# Usage: ablations.sh SEED, after run.sh SEED; about 25 minutes of CPU time.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-.venv/bin/python}"
seed="$1"
made="runs/tiny_world_seeds/$seed"
# ablation NAME REWARDS FLAG...: REWARDS is what is trained, both or one.
ablation() {
  work="$made/ablations/$1"
  name="$1"
  config="configs/$2.py"
  shift 2
  mkdir -p "$made/ablations"
  [ -e "$work.time" ] || $python experiments/tiny_world_seeds/timed.py "$work" -m awm_jax train \
    --config="$config" --config.run_dir="$work" --config.seed="$seed" \
    --config.policy.checkpoint="$made/policy" --config.reader.checkpoint="$made/reader" \
    --config.train_data.root="$made/worlds/train" --config.train_data.seed="$seed" \
    --config.eval_data.root="$made/worlds/test" --config.eval_data.seed="$seed" \
    --config.eval_data.samples=2 "$@"
}
# 128 rollouts an update in all of them.
ablation group_size_4 tiny_world --config.groups.group_size=4 --config.groups.questions_per_step=32
ablation group_size_16 tiny_world --config.groups.group_size=16 --config.groups.questions_per_step=8
ablation ddof_1 tiny_world --config.groups.ddof=1
ablation unscaled tiny_world --config.groups.scale_by_std=False
# Next to nothing for good notes behind a wrong answer; and hardly more for right with than without them.
ablation cells_low_gamma tiny_world_awm_grpo --config.rewards.awm_grpo="(2.0, 0.0, -0.9, -1.0)"
ablation cells_weak_beta tiny_world_awm_grpo --config.rewards.awm_grpo="(0.2, 0.0, -0.1, -1.0)"
