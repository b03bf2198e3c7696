#!/bin/sh
# The whole recipe from nothing for each seed: world, tokenizer, reader, policy, RL to the demo's
# number of updates and to twice that, all judged on documents that nothing has seen.
# Usage: run.sh SEED...; about 45 minutes of CPU time a seed. What is there already is kept.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-.venv/bin/python}"
# Wall seconds count where other jobs run beside it, so user and system time are kept too.
timed() {
  name="$1"
  shift
  if [ ! -e "$work/$name.time" ]; then
    $python experiments/tiny_world_seeds/timed.py "$work/$name" "$@"
  fi
}
for seed in "$@"; do
  work="runs/tiny_world_seeds/$seed"
  mkdir -p "$work"
  for part in world reader policy; do
    timed $part experiments/tiny_world/pretrain.py $part --out "$work" --work "$work/work" --seed "$seed"
  done
  for steps in 20 40; do
    timed train-$steps -m awm_jax train --config=configs/tiny_world.py \
      --config.run_dir="$work/train" --config.steps=$steps --config.seed="$seed" \
      --config.policy.checkpoint="$work/policy" --config.reader.checkpoint="$work/reader" \
      --config.train_data.root="$work/worlds/train" --config.train_data.seed="$seed" \
      --config.eval_data.root="$work/worlds/test" --config.eval_data.seed="$seed" \
      --config.eval_data.samples=8
  done
  for name in SFT-0 answer_grpo-20 awm_grpo-20 answer_grpo-40 awm_grpo-40; do
    reward="${name%-*}"
    policy="$work/train/$reward/policy-${name#*-}"
    [ "$reward" = SFT ] && policy="$work/policy"
    timed "given-$name" -m awm_jax evaluate --config=configs/tiny_world_rag.py \
      --config.setting=evidence_given --config.run_dir="$work/given-$name" \
      --config.seed="$seed" --config.policy.checkpoint="$policy" \
      --config.reader.checkpoint="$work/reader" --config.data.root="$work/worlds/test" \
      --config.data.seed="$seed" --config.data.samples=8
  done
  # The committed reader, of another seed, was in no reward of these.
  for name in SFT-0 answer_grpo-20 awm_grpo-20; do
    timed "second-$name" -m awm_jax diagnose "$work/train/evaluation-$name.jsonl" \
      --reader recorded --second_reader experiments/tiny_world/reader --extractor none \
      --dtype float32 --out "$work/second-$name"
  done
done
$python experiments/tiny_world_seeds/report.py runs/tiny_world_seeds "$@"
