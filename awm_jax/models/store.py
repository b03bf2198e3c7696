"""The caches of many conversations in one store, and the programs that work on some of them.

A row's tokens depend on its conversation and its key alone: not on its neighbours, on padding,
on how its prompt was cut into pieces or on what the store held before, but for the last bits of
the logits. `awm_jax.models.serving` says which row is whose.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from awm_jax.models.attention import KVCache
from awm_jax.models.generate import Samples, chosen, no_samples
from awm_jax.models.qwen3 import Model


class Store(NamedTuple):
    """Keys and values of many conversations, `[layer, row, slot, kv_heads, head_dim]` each."""

    key: jax.Array
    value: jax.Array


class Pending(NamedTuple):
    """Conversations about to be continued; all `[batch]` int32.

    Attributes:
      rows: of the store; one behind the last belongs to no conversation.
      index: how many tokens the row holds: all of the conversation but its last.
      tokens: that last token, which is text.
      positions: where it stands, on all axes.
      step: how many tokens of this message were sampled before.
      budget: how many more may be; 0 for a row that is not continued.
    """

    rows: jax.Array
    index: jax.Array
    tokens: jax.Array
    positions: jax.Array
    step: jax.Array
    budget: jax.Array


@functools.partial(jax.jit, static_argnames=("model", "rows", "slots"))
def make_store(params, *, model: Model, rows: int, slots: int) -> Store:
    """An empty store, of the parameters' type."""
    cache = model.init_cache(rows, slots, params["language_model"]["norm"]["scale"].dtype)
    return Store(cache.key, cache.value)


def _taken(store: Store, rows, index, reach: int) -> KVCache:
    """The first `reach` slots of some rows, as a cache of their own."""
    key, value = (jnp.take(x[:, :, :reach], rows, axis=1, mode="clip") for x in store)
    return KVCache(key, value, jnp.arange(reach)[None] < index[:, None], index)


def _put(store: Store, rows, cache: KVCache) -> Store:
    reach = cache.mask.shape[1]
    return Store(
        store.key.at[:, rows, :reach].set(cache.key, mode="drop"),
        store.value.at[:, rows, :reach].set(cache.value, mode="drop"),
    )


@functools.partial(jax.jit, static_argnames=("model", "reach"), donate_argnames="store")
def prefill(
    store, params, rows, index, tokens, lengths, position_ids, image_features, *, model, reach
) -> Store:
    """Writes tokens into the store, each row's behind those that it holds.

    Args:
      store: given back.
      params: as `model.params`.
      rows: `[batch]` int32, of the store; out of range for none.
      index: `[batch]` int32, tokens that the row holds.
      tokens: `[batch, time]` int32, right-padded.
      lengths: `[batch]` int32, real tokens of each.
      position_ids: `[3, batch, time]` int32.
      image_features: row i belongs to the i-th image token of the flat real tokens, or None.
      model: static.
      reach: static; the slots that are looked at, at least those held and written.
    """
    _, cache = model.hidden(
        params,
        tokens,
        attention_mask=jnp.arange(tokens.shape[1])[None] < lengths[:, None],
        position_ids=position_ids,
        image_features=image_features,
        cache=_taken(store, rows, index, reach),
    )
    return _put(store, rows, cache)


@functools.partial(jax.jit, donate_argnames="store")
def copy_rows(store: Store, source, target) -> Store:
    """Rows `source` as rows `target` too; a target out of range is left out."""
    return Store(*(x.at[:, target].set(x[:, source], mode="drop") for x in store))


class _State(NamedTuple):
    step: jax.Array
    cache: KVCache
    tokens: jax.Array
    active: jax.Array
    samples: Samples


@functools.partial(
    jax.jit, static_argnames=("model", "reach", "steps", "choice"), donate_argnames="store"
)
def decode(
    store,
    params,
    pending: Pending,
    keys,
    banned,
    stop_ids,
    temperature,
    *,
    model,
    reach,
    steps,
    choice,
) -> tuple[Store, Samples]:
    """Samples up to `steps` tokens a row, each until a stop id or its budget's end.

    The row then holds all of its conversation but the last token.

    Args:
      store: given back.
      params, banned, temperature: as in `generate.sample`.
      pending: what is continued.
      keys: `[batch]`, of the message; a token's is folded from it and the token's number.
      stop_ids: `[stop]` int32.
      model: static.
      reach: static; the slots that are looked at, at least those held and written.
      steps: static.
      choice: static; top_p, top_k and min_p of `generate.sample`.
    """
    batch = len(keys)
    head = model.output_embedding(params)

    def advance(state: _State) -> _State:
        """Reads each active row's last token and samples the next."""
        at = jnp.broadcast_to((pending.positions + state.step)[None, :, None], (3, batch, 1))
        hidden, cache = model.hidden(
            params,
            state.tokens[:, None],
            attention_mask=state.active[:, None],
            position_ids=at,
            cache=state.cache,
        )
        tokens, log_probs, raw_log_probs = chosen(
            hidden[:, 0], head, banned, keys, pending.step + state.step, temperature, choice
        )
        written = state.samples
        lengths = written.lengths + state.active
        ended = state.active & jnp.any(tokens[:, None] == stop_ids[None], axis=-1)
        samples = Samples(
            written.token_ids.at[:, state.step].set(tokens),
            written.log_probs.at[:, state.step].set(log_probs),
            lengths,
            written.finished | ended,
            written.raw_log_probs.at[:, state.step].set(raw_log_probs),
        )
        active = state.active & ~ended & (lengths < pending.budget)
        return _State(state.step + 1, cache, tokens, active, samples)

    cache = _taken(store, pending.rows, pending.index, reach)
    state = jax.lax.while_loop(
        lambda state: (state.step < steps) & jnp.any(state.active),
        advance,
        _State(jnp.int32(0), cache, pending.tokens, pending.budget > 0, no_samples(batch, steps)),
    )
    return _put(store, pending.rows, state.cache), state.samples
