"""Attention by a hardware's own kernel, for packed rows: what `attention.attention` names.

Both are causal within segments and take grouped keys and values as they are. Splash never holds
the scores; cuDNN's takes a mask as large as one head's. The cache of generation, whose rows have
their own lengths, and the vision tower are not theirs.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention

# Rows are padded to whole tiles of so many tokens.
_TILE = 128


def splash(query, key, value, segment_ids, *, interpret=False):
    """The TPU kernel of `jax.experimental.pallas.ops.tpu.splash_attention`.

    Args:
      query: `[batch, time, heads, head_dim]`.
      key, value: `[batch, time, kv_heads, head_dim]`.
      segment_ids: `[batch, time]` int32.
      interpret: whether Pallas interprets the kernel, which it can anywhere; for tests.

    Returns:
      `[batch, time, heads, head_dim]`, type of `query`. Padding, segment 0, sees padding.
    """
    time, heads, head_dim = query.shape[1:]
    extra = -time % _TILE
    tile = next(size for size in (512, 256, _TILE) if (time + extra) % size == 0)
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask(
            [splash_attention.CausalMask((time + extra, time + extra))] * heads
        ),
        block_sizes=splash_attention.BlockSizes(
            block_q=tile,
            block_kv=tile,
            block_q_dkv=tile,
            block_kv_dkv=tile,
            block_q_dq=tile,
            block_kv_dq=tile,
        ),
        interpret=interpret,
    )

    def head_first(x):
        return jnp.swapaxes(jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))), 1, 2)

    segments = jnp.pad(segment_ids, ((0, 0), (0, extra)))
    # The kernel does not scale.
    out = jax.vmap(kernel)(
        head_first(query * head_dim**-0.5),
        head_first(key),
        head_first(value),
        splash_attention.SegmentIds(segments, segments),
    )
    return jnp.swapaxes(out, 1, 2)[:, :time].astype(query.dtype)


def cudnn(query, key, value, mask):
    """NVIDIA's kernel, through `jax.nn.dot_product_attention`; bfloat16 or float16.

    Args:
      query, key, value: as for `splash`.
      mask: `[batch, time, time]` bool.
    """
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask[:, None], implementation="cudnn"
    )
