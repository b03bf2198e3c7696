"""Settings that cannot run are refused with a reason."""

import jax
from absl.testing import absltest, parameterized

from awm_jax.commands import checks, train
from configs import tiny_world


class CheckAttentionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("flash", None, "float32", r"'flash': expected one of \['xla', 'splash', 'cudnn'\]"),
        ("splash", "gpu", "bfloat16", "for tpu, the devices are of platform 'gpu'; 'xla' runs"),
        ("cudnn", "tpu", "bfloat16", "for gpu, the devices are of platform 'tpu'; 'xla' runs"),
        ("cudnn", "gpu", "float32", "bfloat16 and float16, the policy computes in float32"),
        ("cudnn", None, "float32", "bfloat16 and float16, the policy computes in float32"),
    )
    def test_refusals(self, name, platform, dtype, message):
        with self.assertRaisesRegex(ValueError, message):
            checks.check_attention(name, platform, dtype)

    @parameterized.parameters(
        ("xla", "cpu", "float32"),
        ("splash", "tpu", "float32"),
        ("splash", None, "bfloat16"),
        ("cudnn", "gpu", "bfloat16"),
        ("cudnn", "gpu", "float16"),
    )
    def test_what_runs(self, name, platform, dtype):
        self.assertEqual(checks.check_attention(name, platform, dtype), name)

    def test_train_refuses_before_it_does_anything(self):
        config = tiny_world.get_config()
        config.attention = "cudnn" if jax.default_backend() == "tpu" else "splash"
        config.run_dir = "/nowhere/at/all"
        with self.assertRaisesRegex(ValueError, f"platform '{jax.default_backend()}'"):
            train.run(config)


if __name__ == "__main__":
    absltest.main()
