"""Saving and restoring a run with Orbax, so that it can be killed at any moment.

A checkpoint holds the trained parameters, the optimiser's state and the step. Nothing else is
needed: the data order and every random key are functions of (seed, step), and what a killed
step had rolled out is rolled out again, to the same tokens.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from awm_jax.training.state import TrainState

Checkpointer = ocp.training.Checkpointer


@contextlib.contextmanager
def open_checkpoints(directory: pathlib.Path, *, keep: int) -> Iterator[Checkpointer]:
    """Opens a directory of checkpoints that keeps the newest `keep`.

    A save that was interrupted leaves a temporary directory behind; it is removed here and
    never taken for a checkpoint.
    """
    checkpointer = ocp.training.Checkpointer(
        directory.absolute(),
        preservation_policy=ocp.training.preservation_policies.LatestN(keep),
        save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
        cleanup_tmp_directories=True,
    )
    with contextlib.closing(checkpointer):
        yield checkpointer


def save(checkpointer: Checkpointer, state: TrainState, settings: Mapping[str, Any]) -> None:
    """Writes `state` under its step, with the settings that a resumed run must share."""
    checkpointer.save_checkpointables(
        int(state.step), {"state": state._asdict(), "settings": dict(settings)}
    )


def restore(
    checkpointer: Checkpointer, like: TrainState, settings: Mapping[str, Any]
) -> TrainState | None:
    """The newest state, placed as `like` is; None where nothing was saved yet.

    Raises:
      ValueError: the checkpoint was made under other settings; all differences are named.
    """
    latest = checkpointer.latest
    if latest is None:
        return None
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        like._asdict(),
    )
    loaded = checkpointer.load_checkpointables(latest.step, {"settings": None})
    saved = loaded["settings"]
    different = [
        f"{name}: found {saved.get(name)!r}, now {settings.get(name)!r}"
        for name in sorted(saved.keys() | settings.keys())
        if saved.get(name) != settings.get(name)
    ]
    if different:
        raise ValueError(
            f"{checkpointer.directory}: step {latest.step} was saved under other settings. Use "
            "another run directory or the settings it had.\n  " + "\n  ".join(different)
        )
    state = checkpointer.load_checkpointables(latest.step, {"state": abstract})["state"]
    return TrainState(**state)
