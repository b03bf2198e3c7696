"""The agent over MMLongBench-Doc's own files: DIR/samples.json and DIR/documents/.

    python -m awm_jax evaluate --config=configs/eval_mmlongbench.py --config.data.root=DIR

The tiny policy reads next to nothing here; name another checkpoint with --config.policy.checkpoint.
"""

import ml_collections

from configs import tiny_world


def get_config() -> ml_collections.ConfigDict:
    base = tiny_world.get_config()
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/eval_mmlongbench"
    c.seed = 0

    c.data = ml_collections.ConfigDict()
    c.data.dataset = "mmlongbench"
    c.data.root = ml_collections.config_dict.placeholder(str)
    c.data.dpi = 144.0
    # The tiny policy's context is short: pages of at most 96 x 128 pixels, 12 tokens.
    c.data.max_pixels = 96 * 128
    c.data.samples = 1

    c.policy = base.policy
    c.reader = base.reader
    c.rollout = base.rollout
    c.sampler = base.sampler
    # Words of other worlds are spelt byte by byte.
    c.sampler.prompt_buckets = (512, 1024)
    return c
