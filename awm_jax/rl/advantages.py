"""Group-relative advantages (the AWM paper, section 3.1), exact where a group has no spread.

The textbook formula in float32 does not give 0 for a group of equal rewards: the mean of
eight times -0.1 is not -0.1, and what is left is divided by epsilon. Here every reward is
first taken relative to the least of its group, which is exactly 0 throughout such a group.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

# Its square is still a float32. Bounds instead of tests for infinities: selects would keep the
# compiler from doing all of it in one pass.
_LARGEST = 1e18

# Reduces within the group and hands the result back to every member: same shape in and out
# (or broadcastable to it).
_Reduce = Callable[[jax.Array], jax.Array]


def group_advantages(
    rewards: chex.ArrayTree,
    valid: chex.ArrayTree | None = None,
    *,
    epsilon: float = 1e-6,
    ddof: int = 0,
    scale_by_std: bool = True,
    axis_name: str | None = None,
) -> jax.Array:
    """Centres each reward on its group and, optionally, scales by the group's spread.

    With `scale_by_std` this is the outcome-supervised advantage of GRPO
    (https://arxiv.org/abs/2402.03300, section 4.1.2; the AWM paper, section 3.1); without,
    that of Dr. GRPO (https://arxiv.org/abs/2503.20783).

    Args:
      rewards: `[group_count, group_size]`, computed with as float32. Beyond 1e18, infinity
        included, counts as 1e18.
      valid: same shape, bool. False drops a rollout that failed for a reason the policy could
        not help; its reward may be NaN.
      epsilon: added to the standard deviation, in units of reward.
      ddof: 0 divides by n (the paper's sigma), 1 by n - 1 (TRL, Tunix, verl).
      scale_by_std: whether to divide by the standard deviation.
      axis_name: mapped axis over which the members of each group are spread, if any.

    Returns:
      Same shape. Exactly zero where `valid` is False, in a group whose valid rewards are all
      equal, and in one with fewer than two of them. NaN throughout a group with a valid NaN.
    """
    rewards, valid = _checked(rewards, valid, rank=2)
    return _normalised(
        rewards, valid, *_over_rows(axis_name), epsilon, ddof if scale_by_std else None
    )


def segment_advantages(
    rewards: chex.ArrayTree,
    group_ids: chex.ArrayTree,
    valid: chex.ArrayTree | None = None,
    *,
    num_groups: int,
    epsilon: float = 1e-6,
    ddof: int = 0,
    scale_by_std: bool = True,
    axis_name: str | None = None,
) -> jax.Array:
    """`group_advantages` of groups that differ in size.

    Args:
      rewards: `[rollout]`.
      group_ids: `[rollout]` int, in any order; a rollout whose id is outside
        `[0, num_groups)` is padding and gets 0.
      valid: `[rollout]` bool.
      num_groups: how many groups there are; static.
      epsilon: as above, and so are the others.
      ddof: see above.
      scale_by_std: see above.
      axis_name: see above.

    Returns:
      `[rollout]` float32.
    """
    rewards, valid = _checked(rewards, valid, rank=1)
    ids = jnp.asarray(group_ids)
    chex.assert_equal_shape([rewards, ids])
    in_range = (ids >= 0) & (ids < num_groups)
    valid = in_range if valid is None else valid & in_range
    ids = jnp.where(in_range, ids, 0)

    def total(values):
        sums = jax.ops.segment_sum(values, ids, num_groups)
        return (sums if axis_name is None else jax.lax.psum(sums, axis_name))[ids]

    def least(values):
        minima = jax.ops.segment_min(values, ids, num_groups)
        return (minima if axis_name is None else jax.lax.pmin(minima, axis_name))[ids]

    return _normalised(rewards, valid, total, least, epsilon, ddof if scale_by_std else None)


def leave_one_out_advantages(
    rewards: chex.ArrayTree, valid: chex.ArrayTree | None = None, *, axis_name: str | None = None
) -> jax.Array:
    """Each reward minus the mean of the *others* (RLOO, https://arxiv.org/abs/2402.14740).

    n / (n - 1) times the centred reward. Arguments and edge cases as in `group_advantages`.
    """
    rewards, valid = _checked(rewards, valid, rank=2)
    total, least = _over_rows(axis_name)
    centred = _normalised(rewards, valid, total, least, 0.0, None)
    count = total(jnp.ones_like(rewards) if valid is None else valid.astype(jnp.float32))
    return centred * count / jnp.maximum(count - 1.0, 1.0)


def group_spread(
    rewards: chex.ArrayTree, valid: chex.ArrayTree | None = None, *, axis_name: str | None = None
) -> jax.Array:
    """`[group_count]` bool, True where two valid rewards of the group differ.

    Groups without spread have zero advantage; the KL term leaves them out as well.
    """
    rewards, valid = _checked(rewards, valid, rank=2)
    known = ~jnp.isnan(rewards) if valid is None else valid & ~jnp.isnan(rewards)
    _, least = _over_rows(axis_name)
    low = least(jnp.where(known, rewards, jnp.inf))
    high = -least(jnp.where(known, -rewards, jnp.inf))
    return (high > low)[:, 0]


def _checked(rewards, valid, rank):
    rewards = jnp.asarray(rewards, jnp.float32)
    chex.assert_rank(rewards, rank)
    if valid is not None:
        valid = jnp.asarray(valid, bool)
        chex.assert_equal_shape([rewards, valid])
    return rewards, valid


def _over_rows(axis_name) -> tuple[_Reduce, _Reduce]:
    def total(values):
        sums = values.sum(axis=-1, keepdims=True)
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    def least(values):
        minima = values.min(axis=-1, keepdims=True)
        return minima if axis_name is None else jax.lax.pmin(minima, axis_name)

    return total, least


def _normalised(rewards, valid, total: _Reduce, least: _Reduce, epsilon, ddof) -> jax.Array:
    """Centres, and divides by the standard deviation unless `ddof` is None."""

    def kept(values):
        return values if valid is None else jnp.where(valid, values, 0.0)

    count = total(jnp.ones_like(rewards) if valid is None else valid.astype(jnp.float32))
    bounded = jnp.clip(rewards, -_LARGEST, _LARGEST)
    low = least(bounded if valid is None else jnp.where(valid, bounded, _LARGEST))
    # `kept` once more after each step: NaN under `valid` must stay out of gradients too.
    distance = kept(kept(bounded) - low)
    centred = kept(distance - total(distance) / jnp.maximum(count, 1.0))
    if ddof is None:
        return centred
    variance = total(jnp.square(centred)) / jnp.maximum(count - ddof, 1.0)
    # The square root of 0 has no derivative, and `epsilon` may be 0. 1e36 is still a float32.
    std = jnp.sqrt(jnp.maximum(variance, 1e-36))
    return centred / (std + epsilon)
