"""Saving and restoring a run with Orbax, so that it can be killed at any moment.

A checkpoint holds the trained parameters, the optimiser's state, the step and the settings that
a resumed run must share. Every random key is a function of (seed, step). The finished rollouts
of the step under way lie beside it, see `awm_jax.training.pending`.

Checkpoints are written in the background, under another name until they are whole: a kill or a
full disk leaves those before it as they were.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from awm_jax.training.state import TrainState

Checkpointer = ocp.training.Checkpointer
_policies = ocp.training.preservation_policies


@dataclasses.dataclass(frozen=True)
class _Best:
    """Keeps the checkpoints whose policies measured best; those not measured yet do not count."""

    count: int
    measured: Callable[[int], float | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        found = {each.step: self.measured(each.step) for each in checkpoints}
        # Of equals the earlier.
        order = sorted(
            (-value, step) for step, value in found.items() if value is not None and self.count
        )
        best = {step for _, step in order[: self.count]}
        return [each.step in best for each in checkpoints]


@contextlib.contextmanager
def open_checkpoints(
    directory: pathlib.Path,
    *,
    keep: int,
    keep_best: int = 0,
    measured: Callable[[int], float | None] = lambda step: None,
) -> Iterator[Checkpointer]:
    """Opens a directory of checkpoints; at the end the last one is waited for.

    A save that was interrupted leaves a temporary directory behind; it is removed here and
    never taken for a checkpoint.

    Args:
      directory: made where absent.
      keep: so many of the newest are kept.
      keep_best: beside them, so many of those with the greatest measure.
      measured: a checkpoint's step -> what its policy measured; None where it is not known.

    Raises:
      ValueError: the newest is not to be kept.
      OSError: at the end, the last checkpoint could not be written.
    """
    if keep < 1 or keep_best < 0:
        raise ValueError(
            f"found {keep} newest and {keep_best} best checkpoints to keep, expected at least 1 "
            "and 0"
        )
    checkpointer = ocp.training.Checkpointer(
        directory.absolute(),
        preservation_policy=_policies.AnyPreservationPolicy(
            [_policies.LatestN(keep), _Best(keep_best, measured)]
        ),
        save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
        cleanup_tmp_directories=True,
    )
    with contextlib.closing(checkpointer):
        yield checkpointer
        wait(checkpointer)


def save(checkpointer: Checkpointer, state: TrainState, settings: Mapping[str, Any]) -> None:
    """Writes `state` under its step, with the settings that a resumed run must share.

    Returns as soon as the state was copied; the one before it is whole by then.

    Raises:
      OSError: this one or the one before it could not be written.
    """
    wait(checkpointer)
    with _explained(checkpointer):
        checkpointer.save_checkpointables_async(
            int(state.step), {"state": state._asdict(), "settings": dict(settings)}
        )


def wait(checkpointer: Checkpointer) -> None:
    """Waits until the newest checkpoint is whole; OSError where it could not be written."""
    with _explained(checkpointer):
        checkpointer.wait()


@contextlib.contextmanager
def _explained(checkpointer: Checkpointer) -> Iterator[None]:
    try:
        yield
    # Storage that is full or gone comes as whatever the layers below make of it.
    except Exception as error:
        names = [path.name for path in checkpointer.directory.iterdir()]
        whole = sorted(int(name) for name in names if name.isdigit())
        raise OSError(
            f"{checkpointer.directory}: a checkpoint could not be written; found {_first(error)}. "
            f"Whole are those of the steps {whole}: make room and start the run again, it goes "
            "on from the last"
        ) from error


def restore(
    checkpointer: Checkpointer, like: TrainState, settings: Mapping[str, Any]
) -> TrainState | None:
    """The newest state, placed as `like` is; None where nothing was saved yet.

    Raises:
      ValueError: the checkpoint was made under other settings, all differences are named; or it
        is damaged.
    """
    # One that is being written counts as the latest before it is whole.
    wait(checkpointer)
    latest = checkpointer.latest
    if latest is None:
        return None
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        like._asdict(),
    )
    saved = _load(checkpointer, {"settings": None})["settings"]
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
    return TrainState(**_load(checkpointer, {"state": abstract})["state"])


def _load(checkpointer: Checkpointer, what: Mapping[str, Any]) -> dict[str, Any]:
    step = checkpointer.latest.step
    try:
        return checkpointer.load_checkpointables(step, what)
    # A file that is missing, cut off or altered is told by whoever stumbles over it.
    except Exception as error:
        others = [each.step for each in checkpointer.checkpoints if each.step != step]
        raise ValueError(
            f"{checkpointer.directory / str(step)}: the checkpoint cannot be read; found "
            f"{_first(error)}. Others are there of the steps {sorted(others)}: move this one away "
            "to go on from the newest of them"
        ) from error


def _first(error: BaseException) -> str:
    """An error's kind and the first line of what it says; the rest are another's call stacks."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
