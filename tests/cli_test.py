"""What the command line says to a setting that is not there."""

import pathlib
import subprocess
import sys

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).parent.parent


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("--config.rollout.top_kk=3", "the config has no 'top_kk'. Did you mean \"top_k\""),
        ("--config.nothing.steps=3", "the config has no 'nothing'."),
    )
    def test_a_setting_that_is_not_there_is_named_without_a_traceback(self, flag, expected):
        ended = subprocess.run(
            [sys.executable, "-m", "awm_jax", "train", "--config=configs/tiny_world.py", flag],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, 1)
        self.assertStartsWith(ended.stderr, f"{flag}: {expected}")
        self.assertNotIn("Traceback", ended.stderr)


if __name__ == "__main__":
    absltest.main()
