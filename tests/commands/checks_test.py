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


class CheckRunTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.config = tiny_world.get_config()

    def test_the_tiny_run_is_sound(self):
        self.assertIn("'token'", checks.check_loss(self.config.loss))
        self.assertIn("1 devices", checks.check_mesh(self.config))
        self.assertIn("reader float32", checks.check_dtypes(self.config))
        self.assertEqual(checks.check_updates(self.config), "1 updates a step of 16 groups")
        self.assertAlmostEqual(float(checks.learning_rate(self.config)(9)), 2e-4)

    @parameterized.named_parameters(
        ("aggregate", "loss", "aggregate", "tokens", "aggregate must be"),
        ("axis", "mesh", "tensor", 3, "num_attention_heads .* over tensor = 3"),
        ("size", "mesh", "data", 0, "sizes of at least 1"),
        ("type", "policy", "dtype", "float8", "'policy': 'float8'"),
        ("parts", "grpo", "minibatches", 3, "mini-batches for 16 groups"),
        ("stop", "grpo", "stop_after_skipped", 0, "stop_after_skipped 0"),
        ("together", "groups", "rollouts_at_once", 0, "0 rollouts at once"),
    )
    def test_refusals(self, section, name, value, message):
        self.config[section][name] = value
        with self.assertRaisesRegex(ValueError, message):
            checks.check_loss(self.config.loss)
            checks.check_mesh(self.config)
            checks.check_dtypes(self.config)
            checks.check_updates(self.config)
            checks.check_groups(self.config.groups)

    def test_a_run_that_skips_on_end_stops(self):
        checks.check_skipped([1, 0, 1, 1], 3, "runs/x")
        with self.assertRaisesRegex(ValueError, "each of the last 3 steps"):
            checks.check_skipped([0, 1, 2, 1], 3, "runs/x")


if __name__ == "__main__":
    absltest.main()
