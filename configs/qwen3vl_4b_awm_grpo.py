"""AWM-GRPO on Qwen3-VL-4B with a frozen Qwen3-14B as reader, for sixteen chips (v5e:4x4).

[paper]: stated there (sections 3 and C.6). [precursor]: not stated; from the first author's public
precursor of the method. [chosen]: neither says; ours, not tuned. This run was not made here.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/qwen3vl_4b_awm_grpo"
    c.seed = 0
    c.steps = 200  # [chosen]

    # Mixed-difficulty questions of Doc-750K [paper], which configs/qwen3vl_4b_recipe.py chooses.
    c.train_data = ml_collections.ConfigDict()
    c.train_data.dataset = "recipe"
    c.train_data.root = "runs/qwen3vl_4b_recipe/groups"
    c.train_data.dpi = 144.0  # MMLongBench-Doc's own
    c.train_data.max_pixels = 768 * 594  # long edge 768 at A4 [precursor]
    # A folder that keeps rendered pages for other runs; none where it is empty.
    c.train_data.page_cache = ""

    c.eval_data = ml_collections.ConfigDict()
    c.eval_data.dataset = "mmlongbench"
    c.eval_data.root = "data/mmlongbench"
    c.eval_data.dpi = 144.0
    c.eval_data.max_pixels = 768 * 594
    c.eval_data.page_cache = ""
    c.eval_data.samples = 1

    c.policy = ml_collections.ConfigDict()
    # What configs/qwen3vl_4b_sft.py makes of Qwen/Qwen3-VL-4B-Instruct [paper].
    c.policy.checkpoint = "runs/qwen3vl_4b_sft/policy"
    c.policy.dtype = "bfloat16"

    c.reader = ml_collections.ConfigDict()
    c.reader.checkpoint = "Qwen/Qwen3-14B"  # [paper]
    c.reader.dtype = "bfloat16"
    c.reader.sampler = ml_collections.ConfigDict()
    c.reader.sampler.max_new_tokens = 128  # [chosen]
    c.reader.sampler.prompt_buckets = (512, 1024)  # [chosen]
    c.reader.sampler.batch_buckets = (32,)  # [chosen]

    c.rollout = ml_collections.ConfigDict()
    c.rollout.max_steps = 15  # [paper]
    c.rollout.top_k = 3  # [paper]
    c.rollout.max_words = 40  # [paper]
    c.rollout.context = "memory"
    c.rollout.temperature = 0.7  # [precursor]
    # Seconds that a search, or the drawing of a page, may take before its rollout ends.
    c.rollout.tool_timeout_s = 300.0

    c.sampler = ml_collections.ConfigDict()
    c.sampler.max_new_tokens = 512  # a step [chosen]
    c.sampler.prompt_buckets = (1024, 2048, 4096)  # [chosen]
    c.sampler.batch_buckets = (16, 32)  # [chosen]

    c.rewards = ml_collections.ConfigDict()
    c.rewards.awm_grpo = (2.0, 0.0, -0.1, -1.0)  # [paper]

    c.groups = ml_collections.ConfigDict()
    c.groups.questions_per_step = 16  # [precursor]
    c.groups.group_size = 8  # [paper]
    # Rollouts that a process plays and then puts on disk together: a kill loses one such part.
    c.groups.rollouts_at_once = 32  # as many as the cache has rows [chosen]
    c.groups.epsilon = 1e-6  # [paper]
    c.groups.ddof = 0
    c.groups.scale_by_std = True  # [paper]
    # Whether the tokens of groups whose rewards are all equal, which have no gradient, leave the
    # average over tokens too.
    c.groups.leave_out_equal = False

    # How often a step's groups are gone through, and in how many updates each time; the policy that
    # sampled stays the old one of the ratio.
    c.grpo = ml_collections.ConfigDict()
    c.grpo.epochs = 1
    c.grpo.minibatches = 1
    # An update whose loss or gradient is not finite is skipped; so many such steps on end are one
    # too many.
    c.grpo.stop_after_skipped = 3

    c.loss = ml_collections.ConfigDict()
    c.loss.clip_low = 0.2  # [precursor]
    c.loss.clip_high = 0.28  # [precursor]
    c.loss.aggregate = "token"

    # With a rank above 0 low-rank adapters of these projections are all that is trained; what is
    # exported are the merged parameters.
    c.lora = ml_collections.ConfigDict()
    c.lora.rank = 0
    c.lora.alpha = 16.0
    c.lora.projections = ("q_proj", "k_proj", "v_proj", "o_proj")

    c.optimizer = ml_collections.ConfigDict()
    c.optimizer.learning_rate = 1e-6  # [precursor]
    c.optimizer.warmup_steps = 0  # constant rate [precursor]
    # After the warm-up "constant", or "cosine" or "linear" down to the final rate at the last step.
    c.optimizer.decay = "constant"
    c.optimizer.final_learning_rate = 0.0
    c.optimizer.b1 = 0.9  # [precursor]
    c.optimizer.b2 = 0.98  # [precursor]
    c.optimizer.weight_decay = 0.01  # [precursor]
    c.optimizer.max_gradient_norm = 1.0  # [chosen]

    # [chosen]: three pages of 456 tokens, notes and a question fit into 4,096.
    c.packing = ml_collections.ConfigDict()
    c.packing.rows = 16
    c.packing.row_length = 4096
    c.packing.image_tokens = 40_960
    c.packing.target_rows = 128
    c.packing.target_length = 128

    c.log_prob_chunk = 2048
    # The newest, and beside them those whose policies had the greatest value of a metric.
    c.checkpoints_kept = 2
    c.best_checkpoints_kept = 0
    c.best_metric = "reward"
    # Beside metrics.jsonl: "tensorboard", "wandb" (extras of the same names).
    c.log_to = ()
    # The step of which a trace for a profiler is kept; -1 for none.
    c.profile_step = -1
    c.export = "bfloat16"
    # Eight is as far as the key/value heads divide; four leave a batch for the other chips.
    c.mesh = ml_collections.ConfigDict()
    c.mesh.data = 1
    c.mesh.fsdp = 4
    c.mesh.tensor = 4
    # Processes, one a host: "" for this one alone, "auto" where JAX can tell (a pod, Slurm), or
    # "HOST:PORT" of the first with their count and each one's own index.
    c.hosts = ml_collections.ConfigDict()
    c.hosts.coordinator = ""
    c.hosts.count = 1
    c.hosts.index = 0
    c.hosts.heartbeat_seconds = 100
    c.master_dtype = "float32"
    c.remat = True
    c.attention = "splash"  # the TPU's kernel; "cudnn" on GPU
    c.pages_at_once = 1  # a killed run goes on to the same bits
    return c
