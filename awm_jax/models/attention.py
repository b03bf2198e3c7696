"""Attention under a boolean mask, and the key/value cache."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from awm_jax.models import attention_kernels

# By name, the platform that each needs; None for any.
IMPLEMENTATIONS = {"xla": None, "splash": "tpu", "cudnn": "gpu"}


class KVCache(NamedTuple):
    """Keys and values of the tokens so far; rows of a batch have their own lengths.

    Each lies as its product reads it, so that no step turns a layer's cache round.

    Attributes:
      key: `[layer, batch, kv_heads, slot, head_dim]`, rotated.
      value: `[layer, batch, kv_heads, head_dim, slot]`.
      mask: `[batch, slot]` bool, True where the slot holds a real token.
      index: `[batch]` int32, the next free slot of the row.
    """

    key: jax.Array
    value: jax.Array
    mask: jax.Array
    index: jax.Array


class Visibility(NamedTuple):
    """Who sees whom in one call.

    Attributes:
      mask: `[batch, time, source]` bool, True where the token may attend to the source.
      slots: `[batch, time]` int32, the cache slot of each token, out of range for padding;
        None without a cache.
      segments: `[batch, time]` int32, of which the mask is made; None with a cache.
    """

    mask: jax.Array
    slots: jax.Array | None
    segments: jax.Array | None


def packed_visibility(segment_ids: jax.Array) -> Visibility:
    """Causal attention within segments; segment 0 is padding, which nobody sees.

    Args:
      segment_ids: `[batch, time]` int32.
    """
    time = segment_ids.shape[1]
    causal = jnp.tril(jnp.ones((1, time, time), bool))
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return Visibility(causal & same & (segment_ids != 0)[:, None, :], None, segment_ids)


def advance(cache: KVCache, real: jax.Array) -> tuple[KVCache, Visibility]:
    """Gives each real token the next slot of its row.

    Args:
      cache: the cache before the call.
      real: `[batch, time]` bool, False for padding, which is not written.

    Returns:
      The cache with `mask` and `index` moved on, its keys and values still to be written, and
      what the tokens see: all earlier real tokens of their row and themselves. A token past the
      last slot is lost, as in any scatter; callers size the cache.
    """
    slot_count = cache.mask.shape[1]
    slots = cache.index[:, None] + jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1
    rows = jnp.arange(real.shape[0])[:, None]
    # A slot out of range makes the scatter drop the write.
    written = jnp.where(real, slots, slot_count)
    mask = cache.mask.at[rows, written].set(True, mode="drop")
    seen = mask[:, None, :] & (jnp.arange(slot_count)[None, None, :] <= slots[:, :, None])
    index = cache.index + jnp.sum(real, axis=1, dtype=jnp.int32)
    return cache._replace(mask=mask, index=index), Visibility(seen, written, None)


def attention(
    query,
    key,
    value,
    mask,
    *,
    segments=None,
    implementation="xla",
    per_device=lambda kernel: kernel,
    query_block=512,
):
    """Softmax attention with grouped heads; the scores are float32.

    Queries are taken in blocks, so that neither pass holds the scores of all; the backward pass
    makes them again. Callers run it in a scan over layers, which keeps the compiler from merging
    the two. This is "xla", the reference of the hardware's kernels.

    Args:
      query: `[batch, time, heads, head_dim]`. Head `h` reads key/value head
        `h // (heads / kv_heads)`.
      key, value: `[batch, source, kv_heads, head_dim]`.
      mask: `[batch, time, source]` bool, or `[batch, 1, source]` where all queries see the
        same; True where the query may attend. A query that sees nothing gets a finite mean.
      segments: `[batch, time]` int32, where `mask` is what `packed_visibility` makes of them. Each
        quarter of the row then leaves out what lies behind it, three eighths of the work.
      implementation: of calls with `segments`; one of `IMPLEMENTATIONS`. Others go by "xla".
      per_device: makes a function of query, key, value and segments one of arrays that are spread
        over devices; for a kernel that the compiler cannot split.
      query_block: how many queries at most have their scores held at one time.

    Returns:
      `[batch, time, heads, head_dim]`, type of `query`.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"attention {implementation!r}: expected one of {[*IMPLEMENTATIONS]}")
    if segments is not None and implementation == "splash":
        return per_device(attention_kernels.splash)(query, key, value, segments)
    if segments is not None and implementation == "cudnn":
        return attention_kernels.cudnn(query, key, value, mask)
    batch, time = query.shape[:2]
    mask = jnp.broadcast_to(mask, (batch, time, key.shape[1]))
    if segments is None:
        return _in_blocks(query, key, value, mask, query_block)
    # A quarter of the row, in whole tiles, sees what lies before its end.
    stretch = 128 * -(-time // 512)
    out = []
    for start in range(0, time, stretch):
        rows, seen = slice(start, start + stretch), slice(start + stretch)
        parts = query[:, rows], key[:, seen], value[:, seen], mask[:, rows, seen]
        out.append(_in_blocks(*parts, query_block))
    return jnp.concatenate(out, axis=1)


def _in_blocks(query, key, value, mask, block):
    """Blocks of queries one after another in a loop: in no other form is only one held."""
    batch, time, heads, head_dim = query.shape
    if time <= block:
        return jax.checkpoint(_attend, prevent_cse=False)(query, key, value, mask)
    padding = -time % block

    def blocks(x):
        x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, -1, block, *x.shape[2:]), 1, 0)

    body = jax.checkpoint(lambda part: _attend(part[0], key, value, part[1]), prevent_cse=False)
    out = jnp.moveaxis(jax.lax.map(body, (blocks(query), blocks(mask))), 0, 1)
    return out.reshape(batch, -1, heads, head_dim)[:, :time]


def _attend(query, key, value, mask):
    batch, time, heads, head_dim = query.shape
    kv_heads = key.shape[2]
    # Queries are grouped by the head that they share, so that keys are never repeated.
    grouped = query.reshape(batch, time, kv_heads, heads // kv_heads, head_dim)
    # b batch, t time, s source, k kv_heads, g queries of a kv head, d head_dim.
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(query.shape)
