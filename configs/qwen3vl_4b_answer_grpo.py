"""Answer-only GRPO at 4B: `qwen3vl_4b_awm_grpo` with the other reward and nothing else."""

import ml_collections

from configs import qwen3vl_4b_awm_grpo


def get_config() -> ml_collections.ConfigDict:
    c = qwen3vl_4b_awm_grpo.get_config()
    c.run_dir = "runs/qwen3vl_4b_answer_grpo"
    c.rewards = ml_collections.ConfigDict()
    c.rewards.answer_grpo = (1.0, 1.0, 0.0, 0.0)  # [paper]
    return c
