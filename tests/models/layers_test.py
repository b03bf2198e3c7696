"""The small layers, against numbers worked out by hand."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from flax import nnx

from awm_jax.models import layers


class NormTest(absltest.TestCase):
    def test_rms_norm_by_hand(self):
        norm = layers.RMSNorm(2, epsilon=0.5)
        norm.scale[...] = jnp.array([2.0, -1.0])
        # Mean square of (3, 4) is 12.5; with epsilon 13.
        expected = [[6 / np.sqrt(13), -4 / np.sqrt(13)]]
        np.testing.assert_allclose(norm(jnp.array([[3.0, 4.0]])), expected, rtol=1e-6)

    def test_rms_norm_rounds_before_the_weight(self):
        norm = layers.RMSNorm(4, epsilon=1e-6)
        norm.scale = nnx.Param(jnp.full((4,), 1.5, jnp.bfloat16))
        x = jnp.array([[1.0, 2.0, -3.0, 0.3]], jnp.bfloat16)
        wide = x.astype(jnp.float32)
        normed = wide / jnp.sqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        expected = normed.astype(jnp.bfloat16) * jnp.bfloat16(1.5)
        np.testing.assert_array_equal(norm(x), expected)

    def test_layer_norm_by_hand(self):
        norm = layers.LayerNorm(2)
        norm.scale[...], norm.bias[...] = jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0])
        # (1, 3) has mean 2 and deviation 1.
        np.testing.assert_allclose(norm(jnp.array([[1.0, 3.0]])), [[-1.0, 7.0]], rtol=1e-5)


class EmbeddingTest(absltest.TestCase):
    def test_an_id_behind_the_table_is_seen(self):
        table = layers.Embedding(3, 2)
        found = table(jnp.array([2, 3]))
        np.testing.assert_array_equal(np.isnan(found), [[False, False], [True, True]])


class RotateTest(absltest.TestCase):
    def test_pairs_are_half_a_head_apart(self):
        cos, sin = jnp.zeros((1, 1, 4)), jnp.ones((1, 1, 4))  # a quarter turn
        turned = layers.rotate(jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4), cos, sin)
        np.testing.assert_array_equal(turned.reshape(-1), [-3.0, -4.0, 1.0, 2.0])

    def test_products_depend_on_the_distance_only(self):
        rng = np.random.default_rng(0)
        query, key = rng.standard_normal((2, 1, 1, 1, 8)).astype(np.float32)
        frequencies = layers.inverse_frequencies(8, 100.0)

        def product(query_at, key_at):
            turned = []
            for x, place in ((query, query_at), (key, key_at)):
                angles = np.tile(place * frequencies, 2)[None, None]
                turned.append(layers.rotate(x, jnp.cos(angles), jnp.sin(angles)))
            return float(jnp.sum(turned[0] * turned[1]))

        self.assertAlmostEqual(product(7.0, 3.0), product(104.0, 100.0), places=4)
        self.assertNotAlmostEqual(product(7.0, 3.0), product(3.0, 7.0), places=2)

    def test_frequencies_by_hand(self):
        np.testing.assert_allclose(layers.inverse_frequencies(4, 10000.0), [1.0, 0.01], rtol=1e-6)


if __name__ == "__main__":
    absltest.main()
