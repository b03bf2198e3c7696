"""The main job: AWM-GRPO and answer-only GRPO from one warm start, small and real.

The values of the paper: group size and epsilon (C.6), cells (section 3.2), 15 steps, top 3,
40 words, four-cell reward. Those of its first author's public precursor: clip range, betas of
AdamW. The rest was chosen on the development documents (experiments/LOG.md).
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/tiny_world"
    c.seed = 0
    c.steps = 20

    c.train_data = ml_collections.ConfigDict()
    c.train_data.dataset = "tiny_world"
    c.train_data.root = "runs/worlds/train"
    c.train_data.split = "train"
    c.train_data.seed = 0
    c.train_data.documents = 96
    c.train_data.dpi = 72.0
    c.train_data.max_pixels = 96 * 128
    # A folder that keeps rendered pages for other runs; none where it is empty.
    c.train_data.page_cache = ""

    c.eval_data = ml_collections.ConfigDict()
    c.eval_data.dataset = "tiny_world"
    c.eval_data.root = "runs/worlds/test"
    c.eval_data.split = "test"
    # Documents that no earlier policy or reader was evaluated on (experiments/LOG.md).
    c.eval_data.seed = 1
    c.eval_data.documents = 96
    c.eval_data.dpi = 72.0
    c.eval_data.max_pixels = 96 * 128
    c.eval_data.page_cache = ""
    c.eval_data.samples = 1

    c.policy = ml_collections.ConfigDict()
    c.policy.checkpoint = "experiments/tiny_world/policy"
    c.policy.dtype = "float32"

    c.reader = ml_collections.ConfigDict()
    c.reader.checkpoint = "experiments/tiny_world/reader"
    c.reader.dtype = "float32"
    c.reader.sampler = ml_collections.ConfigDict()
    c.reader.sampler.max_new_tokens = 12
    c.reader.sampler.prompt_buckets = (64, 128, 640)
    c.reader.sampler.batch_buckets = (128,)

    c.rollout = ml_collections.ConfigDict()
    c.rollout.max_steps = 15
    c.rollout.top_k = 3
    c.rollout.max_words = 40
    c.rollout.context = "memory"
    c.rollout.temperature = 1.0
    # Seconds that a search, or the drawing of a page, may take before its rollout ends.
    c.rollout.tool_timeout_s = 300.0

    c.sampler = ml_collections.ConfigDict()
    c.sampler.max_new_tokens = 64
    c.sampler.prompt_buckets = (64, 128, 192)
    c.sampler.batch_buckets = (32, 128)

    # Answer right x memory answerable: (supported correct, missing correct, answering error,
    # unresolved error). One policy is trained for each entry, all from the same warm start.
    c.rewards = ml_collections.ConfigDict()
    c.rewards.answer_grpo = (1.0, 1.0, 0.0, 0.0)
    c.rewards.awm_grpo = (2.0, 0.0, -0.1, -1.0)

    c.groups = ml_collections.ConfigDict()
    c.groups.questions_per_step = 16
    c.groups.group_size = 8
    # Rollouts that a process plays and then puts on disk together: a kill loses one such part.
    c.groups.rollouts_at_once = 128
    c.groups.epsilon = 1e-6
    c.groups.ddof = 0
    c.groups.scale_by_std = True
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
    c.loss.clip_low = 0.2
    c.loss.clip_high = 0.28
    c.loss.aggregate = "token"

    # With a rank above 0 low-rank adapters of these projections are all that is trained; what is
    # exported are the merged parameters.
    c.lora = ml_collections.ConfigDict()
    c.lora.rank = 0
    c.lora.alpha = 16.0
    c.lora.projections = ("q_proj", "k_proj", "v_proj", "o_proj")

    c.optimizer = ml_collections.ConfigDict()
    c.optimizer.learning_rate = 2e-4
    c.optimizer.warmup_steps = 5
    # After the warm-up "constant", or "cosine" or "linear" down to the final rate at the last step.
    c.optimizer.decay = "constant"
    c.optimizer.final_learning_rate = 0.0
    c.optimizer.b1 = 0.9
    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = 0.0
    c.optimizer.max_gradient_norm = 1.0

    c.packing = ml_collections.ConfigDict()
    c.packing.rows = 24
    c.packing.row_length = 256
    c.packing.image_tokens = 3072
    c.packing.target_rows = 144
    c.packing.target_length = 32

    c.log_prob_chunk = 256
    # Devices: whole copies x spread parameters and batches x split layers.
    c.mesh = ml_collections.ConfigDict()
    c.mesh.data = 1
    c.mesh.fsdp = 1
    c.mesh.tensor = 1
    # Processes, one a host: "" for this one alone, "auto" where JAX can tell (a pod, Slurm), or
    # "HOST:PORT" of the first with their count and each one's own index.
    c.hosts = ml_collections.ConfigDict()
    c.hosts.coordinator = ""
    c.hosts.count = 1
    c.hosts.index = 0
    c.hosts.heartbeat_seconds = 100
    # The type in which parameters and moments are kept, and whether activations are made again.
    c.master_dtype = "float32"
    c.remat = False
    # "xla" anywhere, "splash" on TPU, "cudnn" on NVIDIA GPU (in bfloat16).
    c.attention = "xla"
    # Pages that the vision tower reads together, at most. With 1 what it makes of a page does not
    # depend on the others, and a run that was killed goes on to the same bits; with more it goes
    # on to the same but for rounding.
    c.pages_at_once = 64
    # The newest, and beside them those whose policies had the greatest value of a metric.
    c.checkpoints_kept = 2
    c.best_checkpoints_kept = 0
    c.best_metric = "reward"
    # Beside metrics.jsonl: "tensorboard", "wandb" (extras of the same names).
    c.log_to = ()
    # The step of which a trace for a profiler is kept; -1 for none.
    c.profile_step = -1
    # The type of the policy that is exported at the end.
    c.export = "float32"
    return c
