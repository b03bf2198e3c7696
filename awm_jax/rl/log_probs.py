"""Log-probabilities of sampled tokens, straight from hidden states.

The logits of a real vocabulary are the largest array of an update: 4,096 tokens over 151,936
ids take 2.3 GiB, several times over. Here they exist one block of the vocabulary at a time,
and the backward pass makes them again. Blocks of the vocabulary rather than of tokens: each
row of the head's gradient is then one product over all tokens, accumulated in fp32 and written
once, instead of a sum that is carried, read and written once a block.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

# Stands for the logit of an id that cannot be chosen: finite, so that no inf - inf arises.
_NEVER = float(jnp.finfo(jnp.float32).min)


class _How(NamedTuple):
    """The static arguments."""

    chunk_size: int
    with_entropy: bool
    mesh: Mesh | None
    split: str


def token_log_probs(
    hidden: chex.Array,
    output_embedding: chex.Array,
    targets: chex.Array,
    *,
    chunk_size: int,
    temperature: float = 1.0,
    banned: chex.Array | None = None,
    mesh: Mesh | None = None,
    split: str = "vocab",
    with_entropy: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """log softmax(hidden @ output_embedding.T / temperature) at the targets.

    Never holds `[batch, time, vocab]`, forward or backward: at most `chunk_size * vocab`
    logits at one time. Pass the hidden states of predicting tokens only (`select_predictors`),
    so that prompts cost nothing.

    Args:
      hidden: `[..., hidden]`; products are taken in its dtype and summed in fp32.
      output_embedding: `[vocab, hidden]`. Its gradient is summed in fp32 and has its dtype.
      targets: `[...]` int. Ids outside the vocabulary (padding) give NaN, to be masked, and
        no gradient.
      chunk_size: tokens whose whole logits would fill the memory that may be used.
      temperature: of the sampler; not differentiated.
      banned: `[vocab]` bool, True for ids that the sampler cannot choose, rows of the
        embedding without a token included. They have probability 0.
      mesh: where the arrays are spread over devices. The computation is then a `shard_map`
        over all its axes; under plain GSPMD each block would gather the head.
      split: what each device of the mesh holds: "vocab", its rows of the head (which never
        move) against all tokens, or "tokens", its tokens against the head, gathered once.
        The vocabulary must divide by the number of devices.
      with_entropy: also returns the entropy, from the same pass, with its gradient where that
        is asked for.

    Returns:
      `[...]` float32, in nats; with the entropy, a pair of them.
    """
    chex.assert_rank(output_embedding, 2)
    chex.assert_shape(hidden, (*targets.shape, output_embedding.shape[1]))
    vocab = output_embedding.shape[0]
    devices = 1 if mesh is None else mesh.size
    if split not in ("vocab", "tokens"):
        raise ValueError(f'split must be "vocab" or "tokens", found {split!r}')
    if vocab % devices:
        raise ValueError(f"a vocabulary of {vocab} rows does not divide over {devices} devices")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 token, found {chunk_size}")
    if isinstance(temperature, float | int) and temperature <= 0:
        raise ValueError(f"temperature must be above 0, found {temperature}")
    banned = jnp.zeros(vocab, bool) if banned is None else jnp.asarray(banned, bool)
    chex.assert_shape(banned, (vocab,))
    count = targets.size
    extra = -count % devices
    log_probs, entropy = _log_probs_and_entropy(
        _How(chunk_size, with_entropy, mesh, split),
        jnp.pad(hidden.reshape(count, hidden.shape[-1]), ((0, extra), (0, 0))),
        output_embedding,
        jnp.pad(targets.reshape(count), (0, extra), constant_values=-1),
        banned,
        jnp.asarray(1.0 / temperature, jnp.float32),
    )
    log_probs, entropy = (x[:count].reshape(targets.shape) for x in (log_probs, entropy))
    return (log_probs, entropy) if with_entropy else log_probs


def select_predictors(
    hidden: chex.Array, token_ids: chex.Array, mask: chex.Array, *, max_targets: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gathers the states that predict the policy's own tokens, and those tokens.

    Args:
      hidden: `[batch, time, hidden]` over whole sequences, prompts included.
      token_ids: `[batch, time]`.
      mask: `[batch, time]` bool, True on tokens whose log-prob is wanted; the first position
        has no predictor and must be False.
      max_targets: static bound on their number.

    Returns:
      hidden `[max_targets, hidden]`, targets `[max_targets]` (-1 where there is none), and
      positions `[max_targets]`, flat indices into `[batch, time]`, `batch * time` where there
      is none: `jnp.zeros(mask.size).at[positions].set(log_probs, mode="drop")` puts log-probs
      back. More targets than `max_targets` make all hidden states NaN rather than be dropped.
    """
    chex.assert_equal_shape([token_ids, mask])
    (positions,) = jnp.nonzero(mask.reshape(-1), size=max_targets, fill_value=mask.size)
    real = positions < mask.size
    fits = mask.sum() <= max_targets
    states = hidden.reshape(mask.size, -1)[jnp.where(real, positions - 1, 0)]
    targets = jnp.where(real, token_ids.reshape(-1)[jnp.where(real, positions, 0)], -1)
    return jnp.where(fits, states, jnp.nan), targets, positions


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_probs_and_entropy(how, *operands):
    return _on_mesh(how, _forward, operands, ("token",) * 3)[:2]


def _forward_rule(how, *primals):
    operands = tuple(primal.value for primal in primals)
    log_probs, entropy, log_total = _on_mesh(how, _forward, operands, ("token",) * 3)
    return (log_probs, entropy), (operands, entropy, log_total)


def _backward_rule(how, residuals, cotangents):
    operands, entropy, log_total = residuals
    # An entropy that is only logged costs no gradient.
    is_logged = isinstance(cotangents[1], SymbolicZero)
    cotangents = tuple(
        jnp.zeros_like(entropy) if isinstance(x, SymbolicZero) else x for x in cotangents
    )
    d_hidden, d_head = _on_mesh(
        how._replace(with_entropy=how.with_entropy and not is_logged),
        _backward,
        (*operands, entropy, log_total, *cotangents),
        ("part", "part"),
    )
    hidden, head, *_ = operands
    return d_hidden.astype(hidden.dtype), d_head.astype(head.dtype), None, None, jnp.zeros(())


_log_probs_and_entropy.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


def _on_mesh(how, function, operands, results):
    """Calls `function` on each device's part: of the vocabulary with all tokens, or the reverse.

    States and the head come in parts either way. Per-token vectors are small: every device has
    all of them where it has all tokens.
    """
    if how.mesh is None:
        return function(how, None, *operands)
    axes, by_vocab = how.mesh.axis_names, how.split == "vocab"
    specs = {"part": P(axes), "token": P() if by_vocab else P(axes)}

    def local(hidden, head, targets, banned, scale, *by_token):
        if by_vocab:
            hidden = jax.lax.all_gather(hidden, axes, tiled=True)
            targets = targets - jax.lax.axis_index(axes) * len(head)
        else:
            head = jax.lax.all_gather(head.astype(hidden.dtype), axes, tiled=True)
            banned = jax.lax.all_gather(banned, axes, tiled=True)
        return function(how, axes, hidden, head, targets, banned, scale, *by_token)

    token = specs["token"]
    return jax.shard_map(
        local,
        mesh=how.mesh,
        in_specs=(P(axes), P(axes), token, P(axes), P(), *(token,) * (len(operands) - 5)),
        out_specs=tuple(specs[kind] for kind in results),
        check_vma=False,
    )(*operands)


def _blocks(how, hidden, head, targets, banned, scale):
    """The number of blocks, and a function from a block's index to its parts.

    The last block starts early rather than end late; ids it shares with the one before are
    not `usable` in it.
    """
    vocab, tokens = len(head), max(len(hidden), 1)
    # Under 128 columns a product no longer fills the hardware.
    size = min(vocab, max(how.chunk_size * vocab // tokens, 128))

    def block(index):
        start = jnp.minimum(index * size, vocab - size)
        ids = start + jnp.arange(size)
        fresh = ids >= index * size
        usable = fresh & ~jax.lax.dynamic_slice_in_dim(banned, start, size)
        rows = jax.lax.dynamic_slice_in_dim(head, start, size).astype(hidden.dtype)
        logits = scale * jax.lax.dot_general(
            hidden, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        chosen = (ids[None, :] == targets[:, None]) & fresh[None, :]
        return start, rows, logits, usable[None, :], chosen

    return -(-vocab // size), block


def _forward(how, axes, hidden, head, targets, banned, scale):
    """Log-probs, entropy (or zeros) and log of the normaliser, each `[token]`.

    Where the vocabulary is split, `targets` count from this device's first row.
    """
    count, block = _blocks(how, hidden, head, targets, banned, scale)

    def rescaled(highest, total, weighted, new_highest):
        shift = highest - new_highest
        factor = jnp.exp(shift)
        return factor * total, factor * (weighted + shift * total)

    def body(index, carry):
        highest, total, weighted, target_logit = carry
        _, _, logits, usable, chosen = block(index)
        target_logit += jnp.where(chosen, jnp.where(usable, logits, -jnp.inf), 0.0).sum(axis=1)
        logits = jnp.where(usable, logits, _NEVER)
        new_highest = jnp.maximum(highest, logits.max(axis=1))
        total, weighted = rescaled(highest, total, weighted, new_highest)
        distance = logits - new_highest[:, None]
        mass = jnp.where(usable, jnp.exp(distance), 0.0)
        if how.with_entropy:
            weighted += jnp.where(usable, mass * distance, 0.0).sum(axis=1)
        return new_highest, total + mass.sum(axis=1), weighted, target_logit

    zeros = jnp.zeros(len(hidden), jnp.float32)
    start = (jnp.full_like(zeros, _NEVER), zeros, zeros, zeros)
    highest, total, weighted, target_logit = jax.lax.fori_loop(0, count, body, start)
    found = (targets >= 0) & (targets < len(head))
    if axes is not None and how.split == "vocab":
        top = jax.lax.pmax(highest, axes)
        sums = (*rescaled(highest, total, weighted, top), target_logit, found.astype(jnp.float32))
        total, weighted, target_logit, found = jax.lax.psum(sums, axes)
        highest = top
    log_total = highest + jnp.log(total)
    log_probs = jnp.where(found > 0, target_logit - log_total, jnp.nan)
    entropy = jnp.log(total) - weighted / total if how.with_entropy else zeros
    return log_probs, entropy, log_total


def _backward(
    how, axes, hidden, head, targets, banned, scale, entropy, log_total, d_log_probs, d_entropy
):
    """Gradients of this device's hidden states and rows of the head, fp32."""
    # A token under the mask may have any state: 0 * NaN would reach the whole head.
    wanted = (d_log_probs != 0.0) | (d_entropy != 0.0)
    hidden = jnp.where(wanted[:, None], hidden, 0)
    entropy, log_total = (jnp.where(wanted, x, 0.0) for x in (entropy, log_total))
    count, block = _blocks(how, hidden, head, targets, banned, scale)

    def body(index, carry):
        d_hidden, d_head = carry
        start, rows, logits, usable, chosen = block(index)
        log_share = logits - log_total[:, None]
        share = jnp.exp(log_share)
        d_logits = (chosen - share) * d_log_probs[:, None]
        if how.with_entropy:
            d_logits -= share * (log_share + entropy[:, None]) * d_entropy[:, None]
        d_logits = (scale * jnp.where(usable, d_logits, 0.0)).astype(hidden.dtype)
        d_hidden += jnp.dot(d_logits, rows, preferred_element_type=jnp.float32)
        d_rows = jax.lax.dot_general(
            d_logits, hidden, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        # Added, because rows that the last block shares with another are there already.
        d_rows += jax.lax.dynamic_slice_in_dim(d_head, start, len(d_rows))
        return d_hidden, jax.lax.dynamic_update_slice_in_dim(d_head, d_rows, start, axis=0)

    zeros = jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(head.shape, jnp.float32)
    d_hidden, d_head = jax.lax.fori_loop(0, count, body, zeros)
    if axes is None:
        return d_hidden, d_head
    if how.split == "vocab":
        return jax.lax.psum_scatter(d_hidden, axes, tiled=True), d_head
    return d_hidden, jax.lax.psum_scatter(d_head, axes, tiled=True)
