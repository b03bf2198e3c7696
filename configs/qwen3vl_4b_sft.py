"""SFT of Qwen3-VL-4B on a teacher's trajectories, before GRPO with either reward; v5e:4x4.

[paper]: stated there (section 4). [precursor]: not stated; from the first author's public
precursor of the method. [chosen]: neither says; ours, not tuned. This run was not made here.
"""

import ml_collections

from configs import qwen3vl_4b_awm_grpo


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/qwen3vl_4b_sft"
    c.seed = 0
    # 994 trajectories [paper], which configs/qwen3vl_4b_recipe.py makes.
    c.trajectories = ("runs/qwen3vl_4b_recipe/split/sft.jsonl",)
    c.held_out = 0  # all are taught [paper]
    c.epochs = 3  # [precursor]
    c.trajectories_per_update = 4  # [precursor]
    c.leave_out_oversized = False  # [chosen]

    c.data = ml_collections.ConfigDict()
    c.data.root = "runs/qwen3vl_4b_recipe/questions"
    c.data.dpi = 144.0  # page images keep their own
    c.data.max_pixels = 768 * 594  # long edge 768 at A4 [precursor]
    # A folder that keeps rendered pages for other runs; none where it is empty.
    c.data.page_cache = ""

    c.policy = ml_collections.ConfigDict()
    c.policy.checkpoint = "Qwen/Qwen3-VL-4B-Instruct"  # [paper]
    c.policy.dtype = "bfloat16"

    c.rollout = ml_collections.ConfigDict()
    c.rollout.max_steps = 15  # [paper]
    c.rollout.top_k = 3  # [paper]
    c.rollout.max_words = 40  # [paper]
    c.rollout.context = "memory"  # [chosen]
    c.rollout.temperature = 0.7  # [precursor]; nothing is sampled here
    # Seconds that a search, or the drawing of a page, may take before its rollout ends.
    c.rollout.tool_timeout_s = 300.0

    c.schedule = ml_collections.ConfigDict()
    c.schedule.learning_rate = 1e-5  # [precursor]
    c.schedule.final_learning_rate = 1e-6  # [precursor]
    c.schedule.warmup_share = 0.1  # [precursor]

    c.optimizer = ml_collections.ConfigDict()
    c.optimizer.b1 = 0.9  # [precursor]
    c.optimizer.b2 = 0.95  # [precursor]
    c.optimizer.weight_decay = 0.1  # [precursor]
    c.optimizer.max_gradient_norm = 1.0  # [chosen]

    # [chosen]: three pages of 456 tokens, notes and a question fit into 4,096.
    c.packing = ml_collections.ConfigDict()
    c.packing.rows = 4
    c.packing.row_length = 4096
    c.packing.image_tokens = 12_288
    c.packing.target_rows = 64
    c.packing.target_length = 128

    c.log_prob_chunk = 2048  # [chosen]
    grpo = qwen3vl_4b_awm_grpo.get_config()
    c.mesh = grpo.mesh
    c.hosts = grpo.hosts
    # Steps of 1e-5 are lost in bfloat16.
    c.master_dtype = grpo.master_dtype
    c.remat = grpo.remat
    c.attention = grpo.attention
    c.checkpoint_every = 50  # [chosen]
    c.checkpoints_kept = 1
    c.export = "bfloat16"
    return c
