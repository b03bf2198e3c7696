"""SFT of the tiny policy on trajectories of the tiny world's scripted teacher.

The values of the paper's first author's public precursor: epochs, trajectories an update,
schedule, betas, weight decay. Ours: the learning rate, 30 times the precursor's for a model ten
thousand times smaller, and all sizes.
"""

import ml_collections

from configs import tiny_world


def get_config() -> ml_collections.ConfigDict:
    base = tiny_world.get_config()
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/tiny_world_sft"
    c.seed = 0
    # Files of records, such as `recipe` writes.
    c.trajectories = ("runs/tiny_world_recipe/split/sft.jsonl",)
    # The last trajectories of the files, not trained on; their loss is in the metrics.
    c.held_out = 8
    c.epochs = 3
    c.trajectories_per_update = 4
    c.leave_out_oversized = False

    c.data = ml_collections.ConfigDict()
    c.data.root = base.train_data.root
    c.data.dpi = base.train_data.dpi
    c.data.max_pixels = base.train_data.max_pixels
    c.data.page_cache = base.train_data.page_cache

    c.policy = base.policy
    # As in the rollouts of the policy: what it is taught is what it will see.
    c.rollout = base.rollout

    c.schedule = ml_collections.ConfigDict()
    c.schedule.learning_rate = 3e-4
    c.schedule.final_learning_rate = 3e-5
    c.schedule.warmup_share = 0.1

    c.optimizer = ml_collections.ConfigDict()
    c.optimizer.b1 = 0.9
    c.optimizer.b2 = 0.95
    c.optimizer.weight_decay = 0.1
    c.optimizer.max_gradient_norm = 1.0

    c.packing = ml_collections.ConfigDict()
    c.packing.rows = 6
    c.packing.row_length = 256
    c.packing.image_tokens = 768
    c.packing.target_rows = 36
    c.packing.target_length = 32

    c.log_prob_chunk = 256
    c.mesh = base.mesh
    c.hosts = base.hosts
    c.master_dtype = base.master_dtype
    c.remat = base.remat
    c.attention = base.attention
    c.checkpoint_every = 8
    c.checkpoints_kept = 1
    c.export = "float32"
    return c
