"""What a dry run finds: everything that is wrong, at once, and no device."""

import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

from awm_jax.commands import dry_run
from configs import tiny_world, tiny_world_sft

ROOT = pathlib.Path(__file__).parents[2]


class DryRunTest(absltest.TestCase):
    def test_all_that_is_wrong_is_named(self):
        config = tiny_world_sft.get_config()
        config.trajectories = ("absent.jsonl",)
        config.data.root = "absent"
        config.policy.checkpoint = self.enterContext(tempfile.TemporaryDirectory())
        config.rollout.context = "none"
        with self.assertRaisesRegex(
            ValueError, "(?s)policy: .*data: absent: no such folder.*rollout: context.*absent.jsonl"
        ):
            dry_run.run("sft", config)

    def test_a_reward_out_of_order_is_named(self):
        config = tiny_world.get_config()
        config.policy.checkpoint = str(ROOT / config.policy.checkpoint)
        config.reader.checkpoint = str(ROOT / config.reader.checkpoint)
        dry_run.run("train", config)
        config.rewards.awm_grpo = (0.0, 2.0, -0.1, -1.0)
        config.train_data.dataset, config.train_data.root = "recipe", "absent"
        with self.assertRaisesRegex(ValueError, "(?s)absent/questions.jsonl.*reward awm_grpo"):
            dry_run.run("train", config)

    def test_settings_that_would_train_nothing_are_named(self):
        config = tiny_world.get_config()
        config.policy.checkpoint = str(ROOT / config.policy.checkpoint)
        config.reader.checkpoint = str(ROOT / config.reader.checkpoint)
        config.groups.group_size, config.steps = 1, -3
        config.optimizer.learning_rate = float("nan")
        config.rewards.awm_grpo = (2.0, 0.0, -0.1)
        with self.assertRaisesRegex(
            ValueError,
            "(?s)found 3 rewards.*groups: found 16 questions x 1.*steps: found -3.*rate nan",
        ):
            dry_run.run("train", config)

    def test_no_device_is_touched(self):
        program = (
            "from awm_jax.commands import dry_run; from configs import tiny_world; import jax;"
            "dry_run.run('train', tiny_world.get_config());"
            "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
        )
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


if __name__ == "__main__":
    absltest.main()
