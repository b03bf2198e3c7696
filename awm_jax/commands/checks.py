"""Settings that would train nothing, or something else than was meant, are refused."""

from collections.abc import Sequence

import ml_collections

from awm_jax.models.attention import IMPLEMENTATIONS
from awm_jax.rl.rewards import ANSWER_ONLY, CellRewards, check_order


def cell_rewards(values: Sequence[float]) -> CellRewards:
    """The four rewards of a config, in the paper's order unless they are answer-only.

    Raises:
      ValueError: there are not four, or their order is another.
    """
    if len(values) != len(CellRewards._fields):
        raise ValueError(
            f"found {len(values)} rewards {tuple(values)}, expected {len(CellRewards._fields)}: "
            f"{', '.join(CellRewards._fields)}"
        )
    cells = CellRewards(*values)
    if cells != ANSWER_ONLY:
        check_order(cells)
    return cells


def check_groups(groups: ml_collections.ConfigDict) -> str:
    """What a step rolls out, in words.

    Raises:
      ValueError: no group of that kind has a spread.
    """
    if groups.questions_per_step < 1 or groups.group_size < 2:
        raise ValueError(
            f"found {groups.questions_per_step} questions x {groups.group_size} rollouts, "
            "expected at least 1 x 2: a rollout alone has no advantage"
        )
    if not 0 <= groups.ddof < groups.group_size or not groups.epsilon > 0:
        raise ValueError(
            f"found ddof {groups.ddof} and epsilon {groups.epsilon} for groups of "
            f"{groups.group_size}, expected 0 <= ddof < {groups.group_size} and epsilon > 0"
        )
    if groups.rollouts_at_once < 1:
        raise ValueError(f"found {groups.rollouts_at_once} rollouts at once, expected at least 1")
    return f"{groups.questions_per_step} questions x {groups.group_size} rollouts"


def check_steps(steps: int) -> str:
    """The number of updates, in words; ValueError for one below 0."""
    if steps < 0:
        raise ValueError(f"found {steps} updates, expected 0 or more")
    return f"{steps} updates"


def check_attention(name: str, platform: str | None, dtype: str) -> str:
    """The attention implementation; ValueError for one that is unknown or cannot run.

    Args:
      name: as `models.attention` has it.
      platform: of the devices, as JAX names it; None where they are not known.
      dtype: in which the policy computes.
    """
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"attention {name!r}: expected one of {[*IMPLEMENTATIONS]}")
    if platform is not None and IMPLEMENTATIONS[name] not in (None, platform):
        raise ValueError(
            f"attention {name!r} is a kernel for {IMPLEMENTATIONS[name]}, the devices are of "
            f"platform {platform!r}; 'xla' runs anywhere"
        )
    if name == "cudnn" and dtype not in ("bfloat16", "float16"):
        raise ValueError(
            f"attention 'cudnn' is a kernel for bfloat16 and float16, the policy computes in "
            f"{dtype}; 'xla' takes any"
        )
    return name
