"""Direct input on the tiny world: all pages in one prompt, no tools, no memory."""

import ml_collections

from configs import eval_mmlongbench, tiny_world


def get_config() -> ml_collections.ConfigDict:
    c = eval_mmlongbench.get_config()
    c.run_dir = "runs/tiny_world_direct"
    c.setting = "direct"
    c.data = tiny_world.get_config().eval_data
    # Twelve pages of 12 tokens and the question.
    c.sampler.prompt_buckets = (320,)
    return c
