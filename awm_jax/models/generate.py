"""Sampling with a key/value cache: prefill, then one loop on the device.

A row's tokens depend on its prompt and its key alone: not on its neighbours, on padding, or on
the size of the batch, but for the last bits of the logits. Programs are compiled once a static
shape; callers bucket theirs.
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
      prompts: `[prompt, time]` int32, right-padded.
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
    prefilled = _prefill(
        params,
        prompts,
        lengths,
        position_ids,
        image_features,
        model=model,
        slots=time + max_new_tokens,
    )
    samples, _ = _decode(
        prefilled if rows is None else _of_rows(prefilled, rows),
        params,
        keys,
        banned,
        np.array(stop_ids, np.int32),
        np.float32(temperature),
        model=model,
        max_new_tokens=max_new_tokens,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
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
    """How many programs of the sampler this process has compiled, those of `store` included."""
    # Here and not above: the store's programs are made of this module's parts.
    from awm_jax.models import store

    own = (_prefill, _decode, store.prefill, store.decode, store.copy_rows)
    return sum(program._cache_size() for program in own)


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
    keys = jnp.repeat(jax.random.key(0)[None], len(numbers), axis=0)
    for depth in range(numbers.shape[1]):
        folded = jax.vmap(jax.random.fold_in)(keys, numbers[:, depth])
        keys = jnp.where(depth < depths, folded, keys)
    return keys


class _Prefilled(NamedTuple):
    """The last hidden state and the next position of each prompt, and the filled cache."""

    hidden: jax.Array
    positions: jax.Array
    cache: KVCache


@functools.partial(jax.jit, static_argnames=("model", "slots"))
def _prefill(params, prompts, lengths, position_ids, image_features, *, model, slots) -> _Prefilled:
    batch, time = prompts.shape
    real = jnp.arange(time)[None] < lengths[:, None]
    dtype = params["language_model"]["norm"]["scale"].dtype
    hidden, cache = model.hidden(
        params,
        prompts,
        attention_mask=real,
        position_ids=position_ids,
        image_features=image_features,
        cache=model.init_cache(batch, slots, dtype),
    )
    # Positions never fall along a row: what follows stands behind the farthest of them.
    farthest = jnp.max(jnp.where(real[None], position_ids, -1), axis=(0, 2))
    last = hidden[jnp.arange(batch), jnp.maximum(lengths - 1, 0)]
    return _Prefilled(last, farthest + 1, cache)


@jax.jit
def _of_rows(prefilled: _Prefilled, rows) -> _Prefilled:
    """A copy for each row of what belongs to its prompt."""
    hidden, positions, (key, value, mask, index) = prefilled
    index = jnp.where(rows >= 0, index[rows], 0)
    cache = KVCache(key[:, rows], value[:, rows], mask[rows], index)
    return _Prefilled(hidden[rows], positions[rows], cache)


class _State(NamedTuple):
    step: jax.Array
    cache: KVCache
    active: jax.Array
    samples: Samples


@functools.partial(
    jax.jit,
    static_argnames=("model", "max_new_tokens", "top_p", "top_k", "min_p"),
    # Given back unread: without an output to take its place the loop would hold the cache twice.
    donate_argnames=("prefilled",),
)
def _decode(
    prefilled,
    params,
    keys,
    banned,
    stop_ids,
    temperature,
    *,
    model,
    max_new_tokens,
    top_p,
    top_k,
    min_p=0.0,
) -> tuple[Samples, _Prefilled]:
    batch = len(keys)
    head = model.output_embedding(params)

    def choose(hidden, state: _State) -> _State:
        """Samples token `step` of the active rows."""
        tokens, log_probs, raw_log_probs = chosen(
            hidden, head, banned, keys, state.step, temperature, (top_p, top_k, min_p)
        )
        ended = state.active & jnp.any(tokens[:, None] == stop_ids[None], axis=-1)
        written = state.samples
        samples = Samples(
            written.token_ids.at[:, state.step].set(tokens),
            written.log_probs.at[:, state.step].set(log_probs),
            written.lengths + state.active,
            written.finished | ended,
            written.raw_log_probs.at[:, state.step].set(raw_log_probs),
        )
        return state._replace(step=state.step + 1, active=state.active & ~ended, samples=samples)

    def advance(state: _State) -> _State:
        tokens = jax.lax.dynamic_slice_in_dim(state.samples.token_ids, state.step - 1, 1, axis=1)
        at = jnp.broadcast_to((prefilled.positions + state.step - 1)[None, :, None], (3, batch, 1))
        hidden, cache = model.hidden(
            params,
            tokens,
            attention_mask=state.active[:, None],
            position_ids=at,
            cache=state.cache,
        )
        return choose(hidden[:, 0], state._replace(cache=cache))

    empty = no_samples(batch, max_new_tokens)
    cache = prefilled.cache
    state = choose(prefilled.hidden, _State(jnp.int32(0), cache, cache.index > 0, empty))
    state = jax.lax.while_loop(
        lambda state: (state.step < max_new_tokens) & jnp.any(state.active), advance, state
    )
    return state.samples, prefilled._replace(cache=state.cache)


def no_samples(batch: int, time: int) -> Samples:
    """Room for samples, none of which was made yet."""
    numbers, nothing = jnp.zeros((batch, time), jnp.float32), jnp.zeros(batch, jnp.int32)
    return Samples(numbers.astype(jnp.int32), numbers, nothing, nothing > 0, numbers)


def chosen(
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
