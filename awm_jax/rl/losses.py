"""The GRPO objective in parts: clipped policy loss, KL to a reference, entropy.

Every part returns `(WeightedSum, metrics)`: a sum and what to divide it by. Sums of
micro-batches, packed rows and devices add up to those of the whole batch; means do not.

Shapes: a row is a training sequence or a piece of one. `log_probs` and their like are
`[batch, time]`, one entry a target token, and True in `mask` marks the policy's own tokens;
what stands elsewhere, NaN included, changes neither a number nor a gradient. `advantages` is
`[batch]`, that of the row's trajectory, and `trajectory` `[batch]` int tells which rows belong
to one trajectory (all its rows must be in one call); without it each row is its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

# exp(20) is 5e8: beyond it a ratio is a defect, not information, and exp(89) is inf.
_MAX_LOG_RATIO = 20.0


class WeightedSum(NamedTuple):
    """A sum and its weight, both scalar float32; the mean is one divided by the other."""

    total: jax.Array
    weight: jax.Array

    @property
    def mean(self) -> jax.Array:
        """`total / weight`, or 0 where there is no weight."""
        some = self.weight > 0
        return jnp.where(some, self.total / jnp.where(some, self.weight, 1.0), 0.0)


class Range(NamedTuple):
    """The extremes of a quantity; `merge` takes the extremes of both, a sum would be wrong."""

    low: jax.Array
    high: jax.Array


Metrics = Mapping[str, WeightedSum | Range]


def merge(left: Metrics, right: Metrics) -> Metrics:
    """The metrics of two micro-batches taken together."""
    return {
        name: Range(
            jnp.minimum(value.low, right[name].low), jnp.maximum(value.high, right[name].high)
        )
        if isinstance(value, Range)
        else WeightedSum(value.total + right[name].total, value.weight + right[name].weight)
        for name, value in left.items()
    }


def combine(policy: WeightedSum, *terms: tuple[float, WeightedSum]) -> WeightedSum:
    """`policy` plus coefficient times term, over the policy's weight.

    The terms must have been aggregated over the same tokens in the same way.
    """
    total = policy.total + sum(coefficient * term.total for coefficient, term in terms)
    return WeightedSum(total, policy.weight)


def clipped_policy_loss(
    log_probs: chex.Array,
    old_log_probs: chex.Array | None,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    ratio: str = "token",
    aggregate: str = "token",
    fixed_length: int | None = None,
    trajectory: chex.Array | None = None,
    sampler_log_probs: chex.Array | None = None,
    importance_cap: float = 2.0,
) -> tuple[WeightedSum, Metrics]:
    """The negated clipped surrogate of PPO with GRPO's advantages.

    -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), rho = pi / pi_old
    (https://arxiv.org/abs/1707.06347, equation 7; separate bounds as in DAPO,
    https://arxiv.org/abs/2503.14476, equation 10).

    Args:
      log_probs: `[batch, time]` under the policy that is trained.
      old_log_probs: same shape, under the policy that sampled; None where that is the policy
        itself, so that the ratio is 1 and its gradient that of REINFORCE.
      advantages: `[batch]`.
      mask: `[batch, time]` bool.
      clip_low: how far below 1 the ratio counts.
      clip_high: how far above.
      dual_clip: bound of the ratio where the advantage is negative (c > 1,
        https://arxiv.org/abs/1912.09729, equation 5).
      ratio: "token", or "sequence" for the geometric mean over a trajectory's tokens (GSPO,
        https://arxiv.org/abs/2507.18071, equation 7).
      aggregate: "token" averages over all tokens (DAPO), "sequence" over each trajectory's
        tokens and then over trajectories (GRPO), "fixed_length" divides each trajectory's sum
        by `fixed_length` (Dr. GRPO).
      fixed_length: tokens; for that aggregate alone.
      trajectory: `[batch]` int.
      sampler_log_probs: `[batch, time]` as the sampler computed them, where `old_log_probs`
        were computed again by the trainer. Each token's loss is then multiplied by
        min(pi_old / pi_sampler, importance_cap), without gradient.
      importance_cap: bound of that weight.

    Returns:
      The loss, and metrics: `ratio`, `clip_low_share` and `clip_high_share` (tokens whose
      gradient the bound cut off), `dual_clip_share`, `old_kl` (from the sampling policy, k3),
      `sampled_entropy` (mean of -log_probs), and with `sampler_log_probs`
      `importance_weight` and its `importance_weight_range`.
    """
    chex.assert_rank([log_probs, mask], 2)
    chex.assert_shape(advantages, log_probs.shape[:1])
    mask = jnp.asarray(mask, bool)
    frozen = jax.lax.stop_gradient(log_probs if old_log_probs is None else old_log_probs)
    log_ratio = token_log_ratio = _log_ratio(log_probs, frozen, mask)
    if ratio == "sequence":
        same = _same_trajectory(trajectory, len(mask))
        tokens = jnp.maximum(_over_trajectory(mask.sum(axis=1), same), 1)
        log_ratio = _over_trajectory(token_log_ratio.sum(axis=1), same) / tokens
        log_ratio = jnp.broadcast_to(log_ratio[:, None], mask.shape)
    elif ratio != "token":
        raise ValueError(f'ratio must be "token" or "sequence", found {ratio!r}')
    rho = jnp.exp(log_ratio)
    # A row without any token of its own may carry any advantage.
    advantage = jnp.where(mask, advantages[:, None], 0.0)
    surrogate = jnp.minimum(
        rho * advantage, jnp.clip(rho, 1.0 - clip_low, 1.0 + clip_high) * advantage
    )
    clipped = {
        "clip_low_share": (rho < 1.0 - clip_low) & (advantage < 0),
        "clip_high_share": (rho > 1.0 + clip_high) & (advantage > 0),
    }
    if dual_clip is not None:
        clipped["dual_clip_share"] = (rho > dual_clip) & (advantage < 0)
        surrogate = jnp.where(
            advantage < 0, jnp.maximum(surrogate, dual_clip * advantage), surrogate
        )
    measured = {name: cut.astype(jnp.float32) for name, cut in clipped.items()} | {
        "ratio": rho,
        "old_kl": jnp.expm1(token_log_ratio) - token_log_ratio,
        "sampled_entropy": -log_probs,
    }
    metrics = {name: _aggregate(values, mask) for name, values in measured.items()}
    if sampler_log_probs is not None:
        weight = jnp.exp(_log_ratio(frozen, sampler_log_probs, mask))
        metrics["importance_weight"] = _aggregate(weight, mask)
        metrics["importance_weight_range"] = Range(
            jnp.min(weight, where=mask, initial=jnp.inf),
            jnp.max(weight, where=mask, initial=-jnp.inf),
        )
        surrogate = surrogate * jax.lax.stop_gradient(jnp.minimum(weight, importance_cap))
    loss = _aggregate(-surrogate, mask, aggregate, trajectory, fixed_length)
    return loss, jax.lax.stop_gradient(metrics)


def kl_penalty(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    estimator: str = "k2",
    old_log_probs: chex.Array | None = None,
    has_spread: chex.Array | None = None,
    aggregate: str = "token",
    fixed_length: int | None = None,
    trajectory: chex.Array | None = None,
) -> tuple[WeightedSum, Metrics]:
    """An estimate of KL(pi || pi_ref) from the sampled tokens, made to be differentiated.

    With d = log pi - log pi_ref (http://joschu.net/blog/kl-approx.html):

    * k1 = d. Unbiased value; its expected gradient is zero.
    * k2 = d^2 / 2. Biased value; its expected gradient is exactly the KL's.
    * k3 = exp(-d) - 1 + d. Unbiased, never negative; its expected gradient is that of the
      reverse divergence, KL(pi_ref || pi).

    Those are the gradients on samples of pi itself. With `old_log_probs`, those of the policy
    that sampled, each term is weighted with pi / pi_old so that the expected gradient is the
    KL's for all three: the weight of k1 and k3, whose values are unbiased, is differentiated,
    that of k2 is not.

    Args:
      log_probs: `[batch, time]`.
      ref_log_probs: same shape, of the frozen reference.
      mask: same shape, bool.
      estimator: "k1", "k2" or "k3".
      old_log_probs: same shape, or None on samples of the policy itself.
      has_spread: `[batch]` bool, False for rows of groups without spread. They add nothing to
        the sum and stay in the weight, as in the policy loss.
      aggregate: as in `clipped_policy_loss`, and so are the rest.
      fixed_length: see there.
      trajectory: see there.

    Returns:
      The penalty, and the metric `kl`: k3 over all tokens, whatever the estimator.
    """
    chex.assert_rank([log_probs, ref_log_probs, mask], 2)
    mask = jnp.asarray(mask, bool)
    distance = _log_ratio(log_probs, jax.lax.stop_gradient(ref_log_probs), mask)
    estimates = {
        "k1": distance,
        "k2": jnp.square(distance) / 2.0,
        "k3": jnp.expm1(-distance) + distance,
    }
    if estimator not in estimates:
        raise ValueError(f"estimator must be one of {sorted(estimates)}, found {estimator!r}")
    penalty = estimates[estimator]
    if old_log_probs is not None:
        rho = jnp.exp(_log_ratio(log_probs, jax.lax.stop_gradient(old_log_probs), mask))
        penalty = penalty * (jax.lax.stop_gradient(rho) if estimator == "k2" else rho)
    penalty = _of_spread_groups(penalty, has_spread)
    total = _aggregate(penalty, mask, aggregate, trajectory, fixed_length)
    return total, jax.lax.stop_gradient({"kl": _aggregate(estimates["k3"], mask)})


def entropy_bonus(
    entropy: chex.Array,
    mask: chex.Array,
    *,
    has_spread: chex.Array | None = None,
    aggregate: str = "token",
    fixed_length: int | None = None,
    trajectory: chex.Array | None = None,
) -> tuple[WeightedSum, Metrics]:
    """The policy's entropy `[batch, time]`, in nats, aggregated like the loss.

    The arguments are those of `kl_penalty`; the metric `entropy` is over all tokens.
    """
    mask = jnp.asarray(mask, bool)
    metrics = jax.lax.stop_gradient({"entropy": _aggregate(entropy, mask)})
    bonus = _of_spread_groups(entropy, has_spread)
    return _aggregate(bonus, mask, aggregate, trajectory, fixed_length), metrics


def advantage_metrics(
    advantages: chex.Array, rewards: chex.Array, valid: chex.Array, has_spread: chex.Array
) -> Metrics:
    """What a step's groups looked like.

    Args:
      advantages: `[group_count, group_size]`.
      rewards: same shape.
      valid: same shape, bool.
      has_spread: `[group_count]` bool.

    Returns:
      `reward`, `advantage`, `advantage_square` and `valid_share` over rollouts,
      `zero_spread_share` over groups, and `advantage_range`, which holds 0: the advantages of
      a group add up to it.
    """
    everyone = jnp.ones_like(valid, bool)
    groups = has_spread[:, None]
    return {
        "reward": _aggregate(rewards, valid),
        "advantage": _aggregate(advantages, valid),
        "advantage_square": _aggregate(jnp.square(advantages), valid),
        "advantage_range": Range(
            jnp.min(advantages, where=valid, initial=0.0),
            jnp.max(advantages, where=valid, initial=0.0),
        ),
        "valid_share": _aggregate(valid.astype(jnp.float32), everyone),
        "zero_spread_share": _aggregate(1.0 - groups, jnp.ones_like(groups)),
    }


def _log_ratio(log_probs, base_log_probs, mask):
    chex.assert_equal_shape([log_probs, base_log_probs, mask])
    # Masked before `exp`: an overflow there would reach the gradient as 0 * inf.
    log_ratio = jnp.where(mask, log_probs - base_log_probs, 0.0)
    return jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _of_spread_groups(values, has_spread):
    """Zero in the rows of groups without spread, which have no gradient at all."""
    if has_spread is None:
        return values
    chex.assert_shape(has_spread, values.shape[:1])
    return jnp.where(has_spread[:, None], values, 0.0)


def _same_trajectory(trajectory, rows):
    """`[batch, batch]` bool, True where two rows are of one trajectory."""
    if trajectory is None:
        return jnp.eye(rows, dtype=bool)
    chex.assert_shape(trajectory, (rows,))
    return trajectory[:, None] == trajectory[None, :]


def _over_trajectory(by_row, same):
    """`[batch]` sums by row -> `[batch]` sums over all rows of the row's trajectory."""
    return jnp.where(same, by_row[None, :], 0).sum(axis=1)


def _aggregate(values, mask, aggregate="token", trajectory=None, fixed_length=None) -> WeightedSum:
    chex.assert_equal_shape([values, mask])
    values = jnp.where(mask, values, 0.0).astype(jnp.float32)
    if (fixed_length is not None) != (aggregate == "fixed_length"):
        raise ValueError(
            'fixed_length, in tokens, goes with aggregate="fixed_length"; found '
            f"fixed_length={fixed_length} and aggregate={aggregate!r}"
        )
    if aggregate == "token":
        return WeightedSum(values.sum(), mask.sum().astype(jnp.float32))
    if aggregate not in ("sequence", "fixed_length"):
        raise ValueError(
            f'aggregate must be "token", "sequence" or "fixed_length", found {aggregate!r}'
        )
    same = _same_trajectory(trajectory, len(mask))
    by_row = mask.sum(axis=1)
    tokens = _over_trajectory(by_row, same)
    # A trajectory counts once, at its first row that has a token.
    earlier = _over_trajectory(by_row, same & jnp.tri(len(mask), k=-1, dtype=bool))
    trajectories = ((by_row > 0) & (earlier == 0)).sum().astype(jnp.float32)
    if aggregate == "fixed_length":
        return WeightedSum(values.sum(), fixed_length * trajectories)
    return WeightedSum((values.sum(axis=1) / jnp.maximum(tokens, 1)).sum(), trajectories)
