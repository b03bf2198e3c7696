"""Settings that would train nothing, or something else than was meant, are refused."""

import functools
import math
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_collections
import optax
from jax.sharding import AbstractMesh

from awm_jax.models import hf
from awm_jax.models.attention import IMPLEMENTATIONS
from awm_jax.rl import losses
from awm_jax.rl.rewards import ANSWER_ONLY, CellRewards, check_order
from awm_jax.training import grpo, sharding, state


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


def update_count(config: ml_collections.ConfigDict) -> int:
    """Updates of the whole run: several a step where its groups are gone through in parts."""
    return config.steps * config.grpo.epochs * config.grpo.minibatches


def learning_rate(config: ml_collections.ConfigDict) -> optax.Schedule:
    """The learning rate of each update; ValueError where the settings give none."""
    names = ("learning_rate", "warmup_steps", "decay", "final_learning_rate")
    return state.learning_rate_schedule(
        **{name: config.optimizer[name] for name in names}, updates=update_count(config)
    )


def check_updates(config: ml_collections.ConfigDict) -> str:
    """How a step's groups are gone through, in words; ValueError where they cannot be."""
    parts = grpo.minibatches(
        config.groups.questions_per_step,
        epochs=config.grpo.epochs,
        minibatches=config.grpo.minibatches,
        seed=(),
    )
    if config.grpo.stop_after_skipped < 1:
        raise ValueError(
            f"found stop_after_skipped {config.grpo.stop_after_skipped}, expected at least 1"
        )
    return f"{len(parts)} updates a step of {len(parts[0])} groups"


def check_skipped(skipped: Sequence[int], stop_after: int, folder: pathlib.Path) -> None:
    """ValueError where each of the last `stop_after` steps had to skip an update."""
    if len(skipped) >= stop_after and all(skipped[-stop_after:]):
        raise ValueError(
            f"{folder}: each of the last {stop_after} steps had an update whose loss or gradient "
            "was not finite, and which was skipped. What they were given lies in skipped-*.jsonl. "
            "A lower learning rate or master_dtype 'float32' may help"
        )


def check_loss(section: ml_collections.ConfigDict) -> str:
    """The loss, in words; ValueError or TypeError for an option that it does not have."""
    grid = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    row = jax.ShapeDtypeStruct((2,), jnp.float32)
    whose = jax.ShapeDtypeStruct((2,), jnp.int32)
    loss = functools.partial(losses.clipped_policy_loss, **section)
    # Traced on shapes: what the options name is looked for, nothing is computed.
    jax.eval_shape(
        lambda a, b, c, d, e: loss(a, b, c, d, trajectory=e), grid, grid, row, grid, whose
    )
    return f"aggregate {section.aggregate!r}, clip {section.clip_low} and {section.clip_high}"


def check_mesh(config: ml_collections.ConfigDict) -> str:
    """The mesh, in words; ValueError where policy or reader cannot be spread over it.

    The devices may be others where it is run. Checkpoints that are not here are not looked at.
    """
    sizes = config.mesh.to_dict()
    if min(sizes.values()) < 1:
        raise ValueError(f"mesh {sizes}: expected sizes of at least 1")
    mesh = AbstractMesh(tuple(sizes[axis] for axis in sharding.AXES), sharding.AXES)
    for section, rows in ((config.policy, config.packing.rows), (config.reader, None)):
        if pathlib.Path(section.checkpoint).is_dir():
            sharding.check_mesh(mesh, hf.load_config(section.checkpoint), rows=rows)
    return f"{sizes}, {math.prod(sizes.values())} devices"


def check_dtypes(config: ml_collections.ConfigDict) -> str:
    """The types of a run, in words; ValueError for one that is none of floating point."""
    names = {
        "policy": config.policy.dtype,
        "reader": config.reader.dtype,
        "master_dtype": config.master_dtype,
        "export": config.export,
    }
    allowed = ("float32", "bfloat16", "float16")
    if wrong := {name: dtype for name, dtype in names.items() if dtype not in allowed}:
        raise ValueError(f"found types {wrong}, expected one of {allowed}")
    return ", ".join(f"{name} {dtype}" for name, dtype in names.items())


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
