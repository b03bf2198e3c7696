"""The hardware's kernels against the reference: values and gradients at real tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from awm_jax.models import attention, attention_kernels

# Two packed segments and padding; one whole row. The length is no multiple of a tile.
SEGMENTS = np.zeros((2, 150), np.int32)
SEGMENTS[0, :70], SEGMENTS[0, 70:140], SEGMENTS[1] = 1, 2, 1


def inputs(dtype):
    rng = np.random.default_rng(0)
    shapes = [(2, 150, heads, 128) for heads in (4, 2, 2)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def outputs_and_gradients(implementation, *arrays):
    """At real tokens, and with respect to them."""
    real = jnp.asarray(SEGMENTS != 0)[:, :, None, None]

    def total(*arrays):
        out = jnp.where(real, implementation(*arrays).astype(jnp.float32), 0.0)
        return jnp.sum(jnp.sin(out)), out

    (_, out), gradients = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
    return out, *gradients


def reference(query, key, value):
    mask = attention.packed_visibility(jnp.asarray(SEGMENTS)).mask
    return attention.attention(query, key, value, mask)


class AttentionKernelsTest(absltest.TestCase):
    def assert_equals_reference(self, implementation, dtype, atol):
        for found, expected in zip(
            outputs_and_gradients(implementation, *inputs(dtype)),
            outputs_and_gradients(reference, *inputs(dtype)),
            strict=True,
        ):
            np.testing.assert_allclose(
                found.astype(jnp.float32), expected.astype(jnp.float32), atol=atol
            )

    def test_splash_interpreted(self):
        splash = functools.partial(
            attention_kernels.splash, segment_ids=jnp.asarray(SEGMENTS), interpret=True
        )
        self.assert_equals_reference(splash, jnp.float32, 3e-5)

    def test_cudnn_on_its_hardware(self):
        if jax.default_backend() != "gpu":
            self.skipTest(f"cuDNN needs a GPU; found {jax.default_backend()}")
        mask = attention.packed_visibility(jnp.asarray(SEGMENTS)).mask
        cudnn = functools.partial(attention_kernels.cudnn, mask=mask)
        self.assert_equals_reference(cudnn, jnp.bfloat16, 3e-2)


if __name__ == "__main__":
    absltest.main()
