"""The small layers of Qwen3 and Qwen3-VL, in the precision in which HF computes them.

Modules say which parameters there are; the values come from a checkpoint or from
`hf.init_model`, and all arithmetic follows their type.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def parameter(*shape: int, mean: float = 0.0, deviation: float = 0.0) -> nnx.Param:
    """A parameter to be filled; a fresh model draws it from the normal distribution given."""
    return nnx.Param(jnp.zeros(shape), mean=mean, deviation=deviation)


def _along_last_axis(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


class Linear(nnx.Module):
    """`x @ kernel + bias`; the kernel is `[inputs, outputs]`, HF's transposed.

    A fresh one keeps the variance of its input, times `scale` squared.
    """

    def __init__(self, inputs, outputs, *, bias=False, scale=1.0):
        self.kernel = parameter(inputs, outputs, deviation=scale * inputs**-0.5)
        self.bias = parameter(outputs) if bias else None

    def __call__(self, x):
        # One row axis: the kernel's gradient over two is a slower product.
        y = x.reshape(-1, x.shape[-1]) @ self.kernel[...]
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + _along_last_axis(self.bias[...], y)


class Embedding(nnx.Module):
    """A table `[rows, features]`: of tokens, of positions, or the head over the vocabulary.

    An id behind the last row gives NaN, not another token's row.
    """

    def __init__(self, rows, features):
        self.embedding = parameter(rows, features, deviation=0.02)

    def __call__(self, ids):
        return jnp.take(self.embedding[...], ids, axis=0, mode="fill")


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis.

    Normalised in float32 and cast back before the weight is applied: in bfloat16 the other
    order is as far from HF as bfloat16 is from float32.
    """

    def __init__(self, features, *, epsilon):
        self.scale = parameter(features, mean=1.0)
        self.epsilon = epsilon

    def __call__(self, x):
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normed = (wide * jax.lax.rsqrt(mean_square + self.epsilon)).astype(x.dtype)
        return _along_last_axis(self.scale[...], x) * normed


class LayerNorm(nnx.Module):
    """Layer norm over the last axis, in float32, with the 1e-6 that the vision tower fixes."""

    def __init__(self, features):
        self.scale = parameter(features, mean=1.0)
        self.bias = parameter(features)

    def __call__(self, x):
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + 1e-6)
        scale, bias = self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32)
        out = normed * _along_last_axis(scale, x) + _along_last_axis(bias, x)
        return out.astype(x.dtype)


def inverse_frequencies(features: int, theta: float) -> np.ndarray:
    """`[features / 2]` float32: the angle in radians by which each pair turns per position."""
    exponents = np.arange(0, features, 2, dtype=np.float32) / np.float32(features)
    return np.float32(1.0) / np.float32(theta) ** exponents


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns feature `i` against feature `i + features / 2` of each head.

    Args:
      x: `[batch, time, heads, head_dim]`.
      cos, sin: `[batch, time, head_dim]`. The arithmetic is done in their type: the
        decoder passes the type of `x`, the vision tower float32.

    Returns:
      Shape and type of `x`.
    """
    wide = x.astype(cos.dtype)
    first, second = jnp.split(wide, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return (wide * cos[:, :, None] + turned * sin[:, :, None]).astype(x.dtype)


def stacked(make, count: int):
    """A module whose parameters have a leading axis of `count`; `make` takes nothing."""
    return nnx.vmap(lambda _: make())(jnp.arange(count))
