"""RAG top-3 on the tiny world: the pages that match the question, no tools, no memory."""

import ml_collections

from configs import eval_mmlongbench, tiny_world


def get_config() -> ml_collections.ConfigDict:
    c = eval_mmlongbench.get_config()
    c.run_dir = "runs/tiny_world_rag"
    c.setting = "rag"
    c.data = tiny_world.get_config().eval_data
    c.sampler.prompt_buckets = (192,)
    return c
