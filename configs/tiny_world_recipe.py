"""The paper's data recipe on the tiny world, with its scripted teacher.

The paper's counts in proportion: of 2,000 questions 994 are taught, the other 1,006 are the pool
for RL. Rollouts for difficulty and the teacher's flaws are ours.
"""

import ml_collections

from configs import tiny_world


def get_config() -> ml_collections.ConfigDict:
    base = tiny_world.get_config()
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/tiny_world_recipe"
    c.seed = 0
    # The last step to do; "groups" needs the policy that `sft` exports.
    c.until = "split"
    # Rollouts between two appends to a file, and the share of them that may fail.
    c.at_once = 512
    c.most_failures = 0.0

    c.data = base.train_data
    # None: a folder of the run directory; a URL is a Qdrant server.
    c.index_at = ml_collections.config_dict.placeholder(str)
    c.evaluation_sets = ml_collections.ConfigDict()
    c.evaluation_sets.test = base.eval_data

    c.questions = ml_collections.ConfigDict()
    c.questions.count = 200
    c.questions.seed = 0
    # Documents of this world are asked the same questions and differ in the answers.
    c.questions.drop_same_text = False

    c.rollout = base.rollout

    c.teacher = ml_collections.ConfigDict()
    c.teacher.kind = "script"
    c.teacher.samples = 1
    c.teacher.temperature = 1.0
    c.teacher.script = ml_collections.ConfigDict()
    c.teacher.script.seed = 0
    # Those of the warm start.
    c.teacher.script.generic_last = 0.45
    c.teacher.script.generic_earlier = 0.1
    c.teacher.script.wrong = 0.1

    c.difficulty = ml_collections.ConfigDict()
    c.difficulty.kind = "checkpoint"
    c.difficulty.checkpoint = base.policy.checkpoint
    c.difficulty.dtype = base.policy.dtype
    c.difficulty.sampler = base.sampler
    c.difficulty.samples = 4
    c.difficulty.temperature = 1.0

    c.split = ml_collections.ConfigDict()
    c.split.count = 100
    c.split.seed = 0
    c.split.edges = (0.0, 0.25, 0.5, 0.75, 1.0)

    c.groups = ml_collections.ConfigDict()
    c.groups.kind = "checkpoint"
    c.groups.checkpoint = "runs/tiny_world_sft/policy"
    c.groups.dtype = base.policy.dtype
    c.groups.sampler = base.sampler
    # As many as a group of GRPO has.
    c.groups.samples = 8
    c.groups.temperature = 1.0

    c.reader = base.reader
    c.reader.kind = "checkpoint"
    return c
