"""Adapters: zero at the start, merged equals applied, and they alone are trained."""

import pathlib
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import hf, lora

DATA = pathlib.Path(__file__).parents[1] / "data"
NAMES = ("q_proj", "v_proj", "down_proj", "linear_fc1")


class LoraTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        cls.params = cls.model.params
        cls.adapters = lora.init_adapters(cls.params, jax.random.key(0), rank=2, projections=NAMES)
        cls.trained = jax.tree.map(
            lambda x: x + 0.01 * jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) / x.size,
            cls.adapters,
        )

    def test_one_adapter_for_each_projection_of_a_name(self):
        layers = self.adapters["language_model"]["layers"]
        self.assertEqual(set(layers), {"self_attn", "mlp"})
        self.assertEqual(set(layers["self_attn"]), {"q_proj", "v_proj"})
        self.assertEqual(layers["self_attn"]["q_proj"]["lora_a"].shape, (3, 32, 2))
        self.assertEqual(layers["mlp"]["down_proj"]["lora_b"].shape, (3, 2, 32))
        visual = self.adapters["visual"]
        self.assertEqual(set(visual), {"blocks", "merger", "deepstack_merger_list"})

    def test_fresh_adapters_change_nothing(self):
        merged = lora.merge(self.params, self.adapters, alpha=16.0)
        chex.assert_trees_all_equal(merged, dict(self.params))

    def test_by_hand(self):
        params = {"q_proj": {"kernel": jnp.ones((2, 2))}, "norm": {"scale": jnp.ones(2)}}
        adapters = {
            "q_proj": {"lora_a": jnp.array([[1.0], [2.0]]), "lora_b": jnp.array([[3.0, 0.5]])}
        }
        merged = lora.merge(params, adapters, alpha=2.0)
        np.testing.assert_array_equal(merged["q_proj"]["kernel"], [[7.0, 2.0], [13.0, 3.0]])
        np.testing.assert_array_equal(merged["norm"]["scale"], [1.0, 1.0])

    def test_merged_equals_applied_beside_the_kernel(self):
        """x (W + s A B) is x W + s (x A) B, for one layer of the stack."""
        merged = lora.merge(self.params, self.trained, alpha=6.0)
        at = ("language_model", "layers", "self_attn", "q_proj")
        whole, base, adapter = merged, self.params, self.trained
        for name in at:
            whole, base, adapter = whole[name], base[name], adapter[name]
        x = jax.random.normal(jax.random.key(1), (5, 32))
        beside = x @ base["kernel"][1] + 3.0 * (x @ adapter["lora_a"][1]) @ adapter["lora_b"][1]
        np.testing.assert_allclose(x @ whole["kernel"][1], beside, atol=1e-5)
        self.assertGreater(np.abs(whole["kernel"] - base["kernel"]).max(), 1e-4)

    def test_only_adapters_get_gradients_and_b_moves_first(self):
        ids = jnp.array([[1, 2, 3, 5]])

        def loss(adapters):
            merged = lora.merge(self.params, adapters, alpha=16.0)
            return jnp.mean(jnp.square(self.model.apply(merged, ids)))

        gradients = jax.grad(loss)(self.adapters)
        chex.assert_trees_all_equal_shapes(gradients, self.adapters)
        query = gradients["language_model"]["layers"]["self_attn"]["q_proj"]
        self.assertGreater(float(jnp.abs(query["lora_b"]).max()), 0.0)
        # Behind B = 0 nothing reaches A.
        self.assertEqual(float(jnp.abs(query["lora_a"]).max()), 0.0)

    def test_exported_merged(self):
        merged = lora.merge(self.params, self.trained, alpha=16.0)
        with tempfile.TemporaryDirectory() as folder:
            hf.save_model(self.model, merged, folder)
            loaded = hf.load_model(folder, dtype="float32")
        chex.assert_trees_all_equal(dict(loaded.params), merged)
        with tempfile.TemporaryDirectory() as folder:
            both = {**merged, "adapters": self.trained}
            with self.assertRaisesRegex(ValueError, "adapters are merged first"):
                hf.save_model(self.model, both, folder)

    def test_a_bfloat16_kernel_keeps_its_type(self):
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), self.params)
        merged = lora.merge(half, self.trained, alpha=1.0)
        chex.assert_trees_all_equal_shapes_and_dtypes(merged, dict(half))

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ValueError, r"for \['qproj'\]; expected names of .*'q_proj'"):
            lora.init_adapters(self.params, jax.random.key(0), rank=2, projections=["qproj"])
        with self.assertRaisesRegex(ValueError, "rank 64: expected 1 to 32"):
            lora.init_adapters(self.params, jax.random.key(0), rank=64, projections=["q_proj"])
        stray = {"head": self.trained["language_model"]["layers"]["self_attn"]["q_proj"]}
        with self.assertRaisesRegex(ValueError, "head: kernel, A and B have the shapes"):
            lora.merge(self.params, stray, alpha=1.0)


if __name__ == "__main__":
    absltest.main()
