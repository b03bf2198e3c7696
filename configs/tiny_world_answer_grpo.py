"""Answer-GRPO alone on the tiny world; `tiny_world` trains it beside the other reward."""

import ml_collections

from configs import tiny_world


def get_config() -> ml_collections.ConfigDict:
    c = tiny_world.get_config()
    c.run_dir = "runs/tiny_world_answer_grpo"
    del c.rewards.awm_grpo
    return c
