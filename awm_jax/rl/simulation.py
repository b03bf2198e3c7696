"""Advantages of outcome mixtures (the AWM paper, section 3.3, appendix C.6, Figure 3).

The rollouts of a group fall into cells independently, with the mixture's probabilities. The
law of a cell's advantage is then finite: `exact_advantages` enumerates it, and
`simulate_advantages` draws from it as the paper does.
"""

import functools
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from awm_jax.rl.advantages import group_advantages
from awm_jax.rl.rewards import AWM, CellRewards, cell_values

_MAX_COMPOSITIONS = 1_000_000


class AdvantageLaw(NamedTuple):
    """Distribution of the advantage of a rollout, given its cell.

    Cells are in the order of the mixture: (0, 0), (0, 1), (1, 0), (1, 1) for four.

    Attributes:
      cell_mean: `[cell]`.
      cell_std: `[cell]`.
      share_positive: `[cell]`, probability of an advantage above 0.
      values: `[cell, point]`, advantages that occur.
      weights: `[cell, point]`, their probabilities; each row sums to 1.
    """

    cell_mean: chex.Array
    cell_std: chex.Array
    share_positive: chex.Array
    values: chex.Array
    weights: chex.Array


@functools.partial(jax.jit, static_argnames=("group_count", "group_size", "ddof", "scale_by_std"))
def simulate_advantages(
    key: chex.PRNGKey,
    mixture: chex.ArrayTree,
    *,
    cells: CellRewards | chex.Array = AWM,
    group_count: int = 15_000,
    group_size: int = 8,
    epsilon: float = 1e-6,
    ddof: int = 0,
    scale_by_std: bool = True,
) -> AdvantageLaw:
    """Draws groups as appendix C.6 does, and takes the statistics of their advantages.

    Args:
      key: as from `jax.random.key`.
      mixture: `[cell]` probabilities.
      cells: rewards; an array `[cell]` for another number of cells than four.
      group_count: groups drawn.
      group_size: rollouts a group.
      epsilon: as in `group_advantages`, and so are the others.
      ddof: see there.
      scale_by_std: see there.

    Returns:
      The empirical law, one point a rollout. NaN for a cell that was never drawn.
    """
    mixture, values = _checked(mixture, cells, jnp)
    drawn = jax.random.categorical(key, jnp.log(mixture), shape=(group_count, group_size))
    advantages = group_advantages(
        values[drawn], epsilon=epsilon, ddof=ddof, scale_by_std=scale_by_std
    ).reshape(1, -1)
    member = drawn.reshape(1, -1) == jnp.arange(len(values))[:, None]
    return _law(jnp.broadcast_to(advantages, member.shape), member.astype(jnp.float32), jnp)


def exact_advantages(
    mixture: chex.ArrayTree,
    *,
    cells: CellRewards | chex.Array = AWM,
    group_size: int = 8,
    epsilon: float = 1e-6,
    ddof: int = 0,
    scale_by_std: bool = True,
) -> AdvantageLaw:
    """The law itself, by enumerating the compositions of a group: 165 for 8 rollouts, 4 cells.

    The composition of the *other* rollouts is multinomial; together with the rollout's own
    cell it fixes the advantage. Probabilities are float64, advantages those of
    `group_advantages`. A host function: the mixture must be concrete.

    Args:
      mixture: `[cell]` probabilities.
      cells: as in `simulate_advantages`, and so are the others.
      group_size: see there.
      epsilon: see there.
      ddof: see there.
      scale_by_std: see there.

    Returns:
      The law, one point a composition of the other rollouts. It is defined for a cell of
      probability 0 too, as that of a rollout that fell there nevertheless.

    Raises:
      ValueError: too many compositions to enumerate.
    """
    mixture, values = _checked(np.asarray(mixture, np.float64), cells, np)
    size, cell_count = group_size - 1, len(values)
    count = math.comb(size + cell_count - 1, size)
    if count * cell_count > _MAX_COMPOSITIONS:
        raise ValueError(
            f"{count} compositions of {size} rollouts in {cell_count} cells are more than can be "
            "enumerated; simulate instead"
        )
    others = _compositions(size, cell_count)
    factorials = np.array([math.lgamma(n + 1.0) for n in range(group_size + 1)])
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 log 0 is 0 here: a cell that cannot occur and does not.
        occurs = np.where(others > 0, others * np.log(mixture)[None, :], 0.0)
    weights = np.exp(factorials[size] - factorials[others].sum(axis=1) + occurs.sum(axis=1))
    own = np.repeat(np.arange(cell_count), count)
    ids = np.concatenate([own[:, None], np.tile(_members(others), (cell_count, 1))], axis=1)
    advantages = group_advantages(
        values[ids], epsilon=epsilon, ddof=ddof, scale_by_std=scale_by_std
    )[:, 0]
    points = np.asarray(advantages, np.float64).reshape(cell_count, count)
    return _law(points, np.broadcast_to(weights[None, :], points.shape), np)


def _checked(mixture, cells, xp):
    values = cell_values(cells) if isinstance(cells, CellRewards) else cells
    mixture, values = xp.asarray(mixture), xp.asarray(values, xp.float32)
    chex.assert_rank([mixture, values], 1)
    chex.assert_equal_shape([mixture, values])
    return mixture, values


def _law(values, frequencies, xp) -> AdvantageLaw:
    """Statistics over `[cell, point]`; divided last, so that a share never exceeds 1."""
    total = frequencies.sum(axis=1)

    def mean_of(x):
        return (frequencies * x).sum(axis=1) / total

    mean = mean_of(values)
    std = xp.sqrt(mean_of(xp.square(values - mean[:, None])))
    return AdvantageLaw(mean, std, mean_of(values > 0), values, frequencies / total[:, None])


def _compositions(size: int, cells: int) -> np.ndarray:
    """All ways to spread `size` rollouts over the cells, `[composition, cell]` int."""
    if cells == 1:
        return np.full((1, 1), size)
    parts = []
    for first in range(size + 1):
        rest = _compositions(size - first, cells - 1)
        parts.append(np.concatenate([np.full((len(rest), 1), first), rest], axis=1))
    return np.concatenate(parts)


def _members(compositions: np.ndarray) -> np.ndarray:
    """Counts `[composition, cell]` -> the cell of each rollout, `[composition, size]`."""
    count, cells = compositions.shape
    flat = np.repeat(np.tile(np.arange(cells), count), compositions.reshape(-1))
    return flat.reshape(count, -1)
