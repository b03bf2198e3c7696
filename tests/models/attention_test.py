"""Attention against a loop over heads, and the book-keeping of the cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import attention


def by_loop(query, key, value, mask):
    """Softmax attention one row, query and head at a time, in float64."""
    out = np.zeros(query.shape)
    group = query.shape[2] // key.shape[2]
    for row, time, head in np.ndindex(query.shape[:3]):
        seen = mask[row, time]
        keys, values = key[row, seen, head // group], value[row, seen, head // group]
        scores = keys.astype(np.float64) @ query[row, time, head] / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max())
        out[row, time, head] = weights / weights.sum() @ values
    return out


class AttentionTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.query = rng.standard_normal((2, 7, 6, 4)).astype(np.float32)
        self.key, self.value = rng.standard_normal((2, 2, 9, 2, 4)).astype(np.float32)
        self.mask = rng.random((2, 7, 9)) < 0.5
        self.mask[:, :, 0] = True

    @parameterized.parameters(512, 7, 3, 1)
    def test_equals_a_loop_whatever_the_block(self, query_block):
        found = attention.attention(
            self.query, self.key, self.value, self.mask, query_block=query_block
        )
        expected = by_loop(self.query, self.key, self.value, self.mask)
        np.testing.assert_allclose(found, expected, atol=2e-6)

    def test_blocks_have_the_same_gradient(self):
        def total(query, key, value, query_block):
            out = attention.attention(query, key, value, self.mask, query_block=query_block)
            return jnp.sum(jnp.sin(out))

        gradient = jax.grad(total, argnums=(0, 1, 2))
        for a, b in zip(
            gradient(self.query, self.key, self.value, 3),
            gradient(self.query, self.key, self.value, 1024),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, atol=2e-6)

    def test_long_rows_hold_one_block_of_scores(self):
        time, heads = 2048, 2

        def total(query, key, value):
            segments = jnp.ones((1, time), jnp.int32)
            mask = attention.packed_visibility(segments).mask
            out = attention.attention(query, key, value, mask, segments=segments, query_block=128)
            return jnp.sum(out)

        shape = jax.ShapeDtypeStruct((1, time, heads, 8), jnp.float32)
        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        block = heads * 128 * time * 4
        # Scores, weights and their gradients, and the mask of all; not 16 blocks.
        held = compiled.memory_analysis().temp_size_in_bytes - time * time
        self.assertLess(held, 6 * block)

    @parameterized.parameters(512, 3)
    def test_segments_only_leave_out_what_the_mask_hides(self, query_block):
        segments = jnp.array([[1, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3]])
        mask = attention.packed_visibility(segments).mask
        key, value = self.key[:, :7], self.value[:, :7]

        def outputs(query, key, value, known):
            return attention.attention(
                query, key, value, mask, segments=known, query_block=query_block
            )

        for fn in (outputs, jax.grad(lambda *x: jnp.sum(jnp.sin(outputs(*x))), argnums=(0, 1, 2))):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6),
                fn(self.query, key, value, segments),
                fn(self.query, key, value, None),
            )

    def test_causal_blocks_do_less(self):
        def work(segments):
            shape = jax.ShapeDtypeStruct((1, 512, 1, 8), jnp.float32)
            mask = jax.ShapeDtypeStruct((1, 512, 512), bool)
            fn = functools.partial(attention.attention, segments=segments)
            return jax.jit(fn).lower(shape, shape, shape, mask).cost_analysis()["flops"]

        # Four quarters, of which the first sees a quarter of the sources: 10 / 16.
        some = jnp.ones((1, 512), jnp.int32)
        self.assertAlmostEqual(work(some) / work(None), 10 / 16, delta=0.02)

    def test_one_mask_for_all_queries(self):
        mask = self.mask[:, :1]
        found = attention.attention(self.query, self.key, self.value, mask)
        expected = by_loop(self.query, self.key, self.value, np.repeat(mask, 7, axis=1))
        np.testing.assert_allclose(found, expected, atol=2e-6)

    def test_a_query_that_sees_nothing_is_finite(self):
        none = np.zeros_like(self.mask)
        found = jax.grad(lambda q: jnp.sum(attention.attention(q, self.key, self.value, none)))(
            self.query
        )
        self.assertTrue(np.isfinite(found).all())

    def test_unknown_implementation(self):
        with self.assertRaisesRegex(ValueError, "attention 'flash': expected one of"):
            attention.attention(self.query, self.key, self.value, self.mask, implementation="flash")


class VisibilityTest(absltest.TestCase):
    def test_packed(self):
        mask = attention.packed_visibility(jnp.array([[1, 1, 2, 0]])).mask
        expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
        np.testing.assert_array_equal(mask[0], np.array(expected, bool))

    def test_advance(self):
        cache = attention.KVCache(
            key=jnp.zeros((1, 2, 5, 1, 2)),
            value=jnp.zeros((1, 2, 5, 1, 2)),
            mask=jnp.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool),
            index=jnp.array([2, 0]),
        )
        # Padding may lie on either side; it takes no slot.
        real = jnp.array([[True, True, False], [False, True, True]])
        moved, visibility = attention.advance(cache, real)
        np.testing.assert_array_equal(moved.index, [4, 2])
        np.testing.assert_array_equal(visibility.slots, [[2, 3, 5], [5, 0, 1]])
        np.testing.assert_array_equal(
            moved.mask, np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
        )
        np.testing.assert_array_equal(
            visibility.mask[0, :2], np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
        )
        np.testing.assert_array_equal(
            visibility.mask[1, 1:], np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]], bool)
        )


if __name__ == "__main__":
    absltest.main()
