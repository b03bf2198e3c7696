"""The text decoder: against committed outputs of HF transformers, and against itself."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import hf, qwen3

DATA = pathlib.Path(__file__).parents[1] / "data"


def setUpModule():
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


class Qwen3Test(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3", dtype="float32")
        cls.golden = np.load(DATA / "tiny_qwen3.npz")
        cls.ids = cls.golden["right.input_ids"]
        cls.mask = cls.golden["right.attention_mask"]

        cls.jitted = staticmethod(jax.jit(cls.model.apply))

    def apply(self, ids, **inputs):
        return self.jitted(self.model.params, jnp.asarray(ids), **inputs)

    def full(self):
        """Logits of each conversation alone: (ids, [time, vocab]) pairs."""
        return [
            (row[keep != 0], self.golden["logits"][i][keep != 0])
            for i, (row, keep) in enumerate(zip(self.ids, self.mask, strict=True))
        ]

    def test_logits_equal_those_of_transformers(self):
        found = self.apply(self.ids, attention_mask=self.mask)
        self.assertEqual(found.dtype, jnp.float32)
        real = self.mask != 0
        np.testing.assert_allclose(found[real], self.golden["logits"][real], atol=5e-5)

    def test_left_padding_changes_nothing(self):
        ids, mask = self.golden["left.input_ids"], self.golden["left.attention_mask"]
        found = self.apply(ids, attention_mask=mask)
        for row, (_, expected) in enumerate(self.full()):
            np.testing.assert_allclose(found[row][mask[row] != 0], expected, atol=5e-5)

    @parameterized.parameters(False, True)
    def test_gradients_equal_those_of_transformers(self, remat):
        model = hf.load_model(DATA / "tiny_qwen3", dtype="float32", remat=remat)
        targets, trained = self.ids[:, 1:], self.mask[:, 1:]

        def loss(params):
            logits = model.apply(params, self.ids, attention_mask=self.mask)[:, :-1]
            log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
            return -jnp.sum(log_probs[..., 0] * trained) / trained.sum()

        value, gradients = jax.jit(jax.value_and_grad(loss))(model.params)
        self.assertAlmostEqual(float(value), float(self.golden["loss"]), places=5)
        decoder = gradients["language_model"]
        for name, found in (
            ("model.embed_tokens.weight", decoder["embed_tokens"]["embedding"]),
            (
                "model.layers.1.self_attn.k_norm.weight",
                decoder["layers"]["self_attn"]["k_norm"]["scale"][1],
            ),
            (
                "model.layers.2.mlp.down_proj.weight",
                decoder["layers"]["mlp"]["down_proj"]["kernel"][2].T,
            ),
        ):
            np.testing.assert_allclose(found, self.golden[f"grad.{name}"], atol=2e-6, err_msg=name)

    def test_packed_segments_equal_each_alone(self):
        rows = self.full()
        ids = np.concatenate([ids for ids, _ in rows] + [[0, 0]])[None]
        segments = np.repeat([1, 2, 3, 0], [len(ids) for ids, _ in rows] + [2])[None]
        found = self.apply(ids, segment_ids=jnp.asarray(segments))
        expected = np.concatenate([logits for _, logits in rows])
        np.testing.assert_allclose(found[0, :-2], expected, atol=5e-5)
        self.assertTrue(np.isfinite(found).all())

    def test_greedy_decoding_equals_that_of_transformers(self):
        cache = self.model.init_cache(3, 24)
        logits, cache = self.apply(self.ids, attention_mask=self.mask, cache=cache)
        lengths = self.mask.sum(axis=1)
        token = jnp.argmax(logits[jnp.arange(3), lengths - 1], axis=-1)
        tokens = []
        for _ in range(12):
            tokens.append(token)
            logits, cache = self.apply(token[:, None], cache=cache)
            token = jnp.argmax(logits[:, 0], axis=-1)
        np.testing.assert_array_equal(np.stack(tokens, axis=1), self.golden["greedy"])
        np.testing.assert_array_equal(cache.index, lengths + 12)

    @parameterized.parameters(1, 4)
    def test_prefill_in_chunks_equals_one_shot(self, size):
        ids, expected = self.full()[0]
        cache = self.model.init_cache(1, 12)
        found = []
        for start in range(0, len(ids), size):
            chunk = np.zeros((1, size), np.int32)
            real = ids[start : start + size]
            chunk[0, : len(real)] = real
            mask = jnp.arange(size)[None] < len(real)
            logits, cache = self.apply(chunk, attention_mask=mask, cache=cache)
            found.append(logits[0, : len(real)])
        np.testing.assert_allclose(np.concatenate(found), expected, atol=5e-5)
        self.assertEqual(int(cache.mask.sum()), len(ids))

    def test_a_row_is_free_of_its_neighbours_and_of_garbage_in_free_slots(self):
        ids, expected = self.full()[1]
        cache = self.model.init_cache(1, 9)
        cache = cache._replace(key=cache.key + 1e4, value=cache.value - 1e4)
        found, _ = self.apply(ids[None], cache=cache)
        np.testing.assert_allclose(found[0], expected, atol=5e-5)

    def test_the_cache_has_the_type_asked_for(self):
        self.assertEqual(self.model.init_cache(1, 4).key.dtype, jnp.float32)
        cache = self.model.init_cache(1, 12, "bfloat16")
        ids, expected = self.full()[0]
        logits, cache = self.apply(ids[None], cache=cache)
        self.assertEqual(cache.key.dtype, jnp.bfloat16)
        self.assertEqual(logits.dtype, jnp.float32)
        error = np.abs(logits[0] - expected)
        self.assertGreater(error.max(), 1e-4)
        self.assertLess(error.mean(), 0.05)

    def test_positions_with_three_axes_are_read_by_the_first(self):
        positions = jnp.broadcast_to(jnp.arange(self.ids.shape[1]), (3, *self.ids.shape))
        np.testing.assert_allclose(
            self.apply(self.ids, attention_mask=self.mask, position_ids=positions),
            self.apply(self.ids, attention_mask=self.mask, position_ids=positions[0]),
        )

    def test_constrain_is_applied_between_layers(self):
        seen = []

        def constrain(x):
            seen.append(x.shape)
            return x

        model = hf.load_model(DATA / "tiny_qwen3", dtype="float32", constrain=constrain)
        jax.eval_shape(model.hidden, model.params, self.ids)
        self.assertEqual(set(seen), {(3, self.ids.shape[1], 32)})

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "a text model"):
            self.apply(self.ids, image_grid_thw=np.ones((1, 3), int))
        with self.assertRaisesRegex(ValueError, "a packed row cannot be continued"):
            cache = self.model.init_cache(3, 24)
            self.apply(self.ids, segment_ids=jnp.ones(self.ids.shape, int), cache=cache)
        with self.assertRaisesRegex(ValueError, "the cache has 4 slots; 11 tokens"):
            self.model.apply(self.model.params, self.ids, cache=self.model.init_cache(3, 4))


class RotaryAnglesTest(absltest.TestCase):
    def test_three_axes_are_interleaved(self):
        config = hf.load_config(DATA / "tiny_qwen3_vl").text
        # Eight frequencies and sections 4, 2, 2: t h w t h w t t.
        positions = jnp.array([1, 10, 100]).reshape(3, 1, 1)
        angles = qwen3.rotary_angles(positions, config)[0, 0]
        frequencies = np.float64(config.rope_theta) ** -(np.arange(8) / 8)
        np.testing.assert_allclose(angles / frequencies, [1, 10, 100, 1, 10, 100, 1, 1], rtol=1e-5)


if __name__ == "__main__":
    absltest.main()
