"""Sampling with a key/value cache: programs that read prompts and continue conversations.

The caches of many conversations lie in one store; a program works on some of its rows. A row's
tokens depend on its conversation and its key alone: not on its neighbours, on padding, on how its
prompt was cut into pieces or on what the store held before, but for the last bits of the logits.
Programs are compiled once a static shape; callers bucket theirs. `awm_jax.models.serving` says
which row is whose; `sample` is for one batch in one go.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from awm_jax.models.attention import KVCache
from awm_jax.models.qwen3 import Model
from awm_jax.models.qwen3_vl import ImageFeatures


class Samples(NamedTuple):
    """What was sampled, right-padded; undefined behind a row's length.

    Attributes:
      token_ids: `[batch, time]` int32, the stop id included where one was reached.
      log_probs: `[batch, time]` float32, in nats, after temperature and ban. At temperature 0
        those of temperature 1. `top_p`, `top_k` and `min_p` choose among tokens and do not
        change what is reported, so that a trainer finds the same numbers.
      lengths: `[batch]` int32, how many tokens.
      finished: `[batch]` bool, True where the last of them is a stop id.
      raw_log_probs: `[batch, time]` float32, in nats, of the model's own distribution: at
        temperature 1 and without the ban.
    """

    token_ids: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    finished: jax.Array
    raw_log_probs: jax.Array


def sample(
    model: Model,
    params: dict,
    prompts: jax.Array,
    lengths: jax.Array,
    position_ids: jax.Array,
    image_features: ImageFeatures | None,
    keys: jax.Array,
    *,
    rows: jax.Array | None = None,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    banned: jax.Array,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> Samples:
    """Continues prompts until a stop id or `max_new_tokens`, in one batch and one go.

    Args:
      model: of the parameters; each model has programs of its own.
      params: as `model.params`.
      prompts: `[prompt, time]` int32, right-padded; the last token of each is text.
      lengths: `[prompt]` int32, real tokens of each; one of length 0 is not continued.
      position_ids: `[3, prompt, time]` int32; a text model reads the first axis.
      image_features: row i belongs to the i-th image token of the flat prompts; rows may follow
        that belong to none. None where no prompt has an image.
      keys: `[batch]` keys, see `row_keys`.
      rows: `[batch]` int32, the prompt that each row continues, -1 for none, so that a prompt
        that is shared is read once; None where each prompt is continued once.
      max_new_tokens: the cache has this many slots more than the prompts.
      stop_ids: what ends a row.
      banned: `[vocab]` bool, True for ids of probability 0.
      temperature: 0 takes the likeliest token. Another value needs no other program.
      top_p: chooses among the likeliest tokens that together have this probability.
      top_k: chooses among so many likeliest tokens; 0 for all.
      min_p: chooses among tokens at least this share as likely as the likeliest; 0 for all.
    """
    count, time = prompts.shape
    batch = count if rows is None else len(rows)
    found = (lengths.shape, position_ids.shape, keys.shape)
    if found != ((count,), (3, count, time), (batch,)):
        raise ValueError(
            f"lengths, position_ids and keys have the shapes {found}, expected "
            f"{((count,), (3, count, time), (batch,))} for prompts of {prompts.shape}"
        )
    if not (temperature >= 0 and max_new_tokens >= 1):
        raise ValueError(
            f"found temperature {temperature}, max_new_tokens {max_new_tokens}; expected "
            "temperature >= 0 and max_new_tokens >= 1"
        )
    check_choice(top_p, top_k, min_p)
    if rows is None:
        rows = np.arange(count, dtype=np.int32)
    prompts, lengths, rows = map(np.asarray, (prompts, lengths, rows))
    position_ids = np.asarray(position_ids)
    last, slots = np.maximum(lengths - 1, 0), time + max_new_tokens
    store = prefill(
        make_store(params, model=model, rows=count, slots=slots),
        params,
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int32),
        prompts,
        last,
        position_ids,
        image_features,
        model=model,
        reach=slots,
    )
    pending = Pending(
        rows=np.where(rows < 0, count, rows),
        index=last[rows],
        tokens=prompts[rows, last[rows]],
        positions=position_ids[0, rows, last[rows]],
        step=np.zeros(batch, np.int32),
        budget=np.where((rows < 0) | (lengths[rows] == 0), 0, np.int32(max_new_tokens)),
    )
    _, samples = decode(
        store,
        params,
        pending,
        keys,
        banned,
        np.array(stop_ids, np.int32),
        np.float32(temperature),
        model=model,
        reach=slots,
        steps=max_new_tokens,
        choice=(top_p, top_k, min_p),
    )
    return samples


def check_choice(top_p: float, top_k: int, min_p: float):
    """Refuses bounds on what is chosen among that make no sense."""
    if not (0 < top_p <= 1 and top_k >= 0 and 0 <= min_p <= 1):
        raise ValueError(
            f"found top_p {top_p}, top_k {top_k}, min_p {min_p}; expected 0 < top_p <= 1, "
            "top_k >= 0 and 0 <= min_p <= 1"
        )


def program_count() -> int:
    """How many programs of the sampler this process has compiled."""
    return sum(program._cache_size() for program in (prefill, decode, copy_rows))


def row_keys(seeds: Sequence[tuple[int, ...]]) -> jax.Array:
    """`[batch]` keys, each folded from the integers of its seed, in order, and nothing else.

    Raises:
      ValueError: an integer does not fit into 32 bits.
    """
    if any(not 0 <= number < 2**32 for seed in seeds for number in seed):
        raise ValueError(f"seeds {list(seeds)}: expected integers from 0 to {2**32 - 1}")
    depths = np.array([len(seed) for seed in seeds], np.int32)
    numbers = np.zeros((len(seeds), max(depths, default=0)), np.uint32)
    for row, seed in enumerate(seeds):
        numbers[row, : len(seed)] = seed
    return _fold(numbers, depths)


@jax.jit
def _fold(numbers, depths):
    def fold(keys, part):
        depth, number = part
        folded = jax.vmap(jax.random.fold_in)(keys, number)
        return jnp.where(depth < depths, folded, keys), None

    # A loop, whose body is compiled once.
    keys = jnp.repeat(jax.random.key(0)[None], len(numbers), axis=0)
    return jax.lax.scan(fold, keys, (jnp.arange(numbers.shape[1]), numbers.T))[0]


class Store(NamedTuple):
    """Keys and values of many conversations, their axes those of a `KVCache`."""

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
    key = jnp.take(store.key[..., :reach, :], rows, axis=1, mode="clip")
    value = jnp.take(store.value[..., :reach], rows, axis=1, mode="clip")
    return KVCache(key, value, jnp.arange(reach)[None] < index[:, None], index)


def _put(store: Store, rows, cache: KVCache) -> Store:
    reach = cache.mask.shape[1]
    return Store(
        store.key.at[:, rows, :, :reach].set(cache.key, mode="drop"),
        store.value.at[:, rows, :, :, :reach].set(cache.value, mode="drop"),
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
      params, banned, temperature: as in `sample`.
      pending: what is continued.
      keys: `[batch]`, of the message; a token's is folded from it and the token's number.
      stop_ids: `[stop]` int32.
      model: static.
      reach: static; the slots that are looked at, at least those held and written.
      steps: static.
      choice: static; top_p, top_k and min_p of `sample`.
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
        tokens, log_probs, raw_log_probs = _chosen(
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
        _State(jnp.int32(0), cache, pending.tokens, pending.budget > 0, _no_samples(batch, steps)),
    )
    return _put(store, pending.rows, state.cache), state.samples


def _no_samples(batch: int, time: int) -> Samples:
    """Room for samples, none of which was made yet."""
    numbers, nothing = jnp.zeros((batch, time), jnp.float32), jnp.zeros(batch, jnp.int32)
    return Samples(numbers.astype(jnp.int32), numbers, nothing, nothing > 0, numbers)


def _chosen(
    hidden, head, banned, keys, step, temperature, choice
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A token a row, the likeliest under noise, and its two log-probs; `[batch]` each.

    Args:
      hidden: `[batch, hidden]`.
      head: `[vocab, hidden]`.
      banned, temperature: as in `sample`.
      keys: `[batch]`.
      step: `[batch]` int32 or a scalar, the token's number within its message.
      choice: top_p, top_k and min_p of `sample`.
    """
    # b batch, d hidden, v vocab.
    raw = jnp.einsum("bd,vd->bv", hidden, head, preferred_element_type=jnp.float32)
    logits = raw / jnp.where(temperature > 0, temperature, 1.0)
    logits = jnp.where(banned[None], -jnp.inf, logits)

    def noise():
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(step, keys.shape))
        return jax.vmap(lambda key: jax.random.gumbel(key, banned.shape))(step_keys)

    added = jax.lax.cond(temperature > 0, noise, lambda: jnp.zeros(logits.shape, jnp.float32))
    tokens = jnp.argmax(_among_likeliest(logits, *choice) + added, axis=-1).astype(jnp.int32)

    def log_probs(logits):
        return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, None], axis=-1)[:, 0]

    return tokens, log_probs(logits), log_probs(raw)


def _among_likeliest(logits: jax.Array, top_p: float, top_k: int, min_p: float) -> jax.Array:
    """`[batch, vocab]` logits; -inf outside the top k, of those outside the top p, and below
    `min_p` times the likeliest.
    """
    vocab = logits.shape[-1]
    if min_p > 0:
        least = jnp.max(logits, axis=-1, keepdims=True) + np.log(np.float32(min_p))
        likely = jnp.where(logits < least, -jnp.inf, logits)
    else:
        likely = logits
    if top_p == 1 and top_k in (0, vocab):
        return likely
    ordered, _ = jax.lax.top_k(logits, min(top_k, vocab) if top_k else vocab)
    probabilities = jax.nn.softmax(ordered)
    likelier = jnp.cumsum(probabilities, axis=-1) - probabilities
    lowest = jnp.min(jnp.where(likelier < top_p, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits < lowest, -jnp.inf, likely)
