"""Metrics of a run for TensorBoard and Weights & Biases, beside the JSON lines it always writes."""

import contextlib
import hashlib
import importlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# What `log_to` may name -> the package that writes it, an extra of the same name.
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}

Write = Callable[[Mapping[str, float]], None]


def check(names: Sequence[str]) -> str:
    """The logs, in words.

    Raises:
      ValueError: one is unknown, or its package is not installed.
    """
    for name in names:
        if name not in PACKAGES:
            raise ValueError(f"log_to {name!r}: expected names of {[*PACKAGES]}")
        try:
            importlib.import_module(PACKAGES[name])
        except ImportError as error:
            raise ValueError(
                f"log_to {name!r} needs the package {PACKAGES[name]}, which cannot be imported "
                f"({error}): pip install 'awm-jax[{name}]'"
            ) from error
    return ", ".join(("metrics.jsonl", *names))


@contextlib.contextmanager
def open_logs(
    names: Sequence[str], folder: pathlib.Path, *, done: int, config: Mapping[str, Any]
) -> Iterator[Write]:
    """Yields a function that writes one step's metrics, which hold the `step`, to all logs.

    Args:
      names: of `PACKAGES`.
      folder: of the run; a run that goes on in the same folder goes on in the same log.
      done: what was written of this step and those after it is made again.
      config: noted beside the metrics where the log has a place for it.
    """
    check(names)
    with contextlib.ExitStack() as stack:
        writes: list[Write] = []
        if "tensorboard" in names:
            writer = importlib.import_module("tensorboardX").SummaryWriter(
                str(folder / "tensorboard"), purge_step=done
            )
            stack.callback(writer.close)
            writes.append(lambda metrics: _to_tensorboard(writer, metrics))
        if "wandb" in names:
            run = importlib.import_module("wandb").init(
                project="awm_jax",
                name="/".join(folder.absolute().parts[-2:]),
                id=hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16],
                resume="allow",
                dir=str(folder),
                config=dict(config),
            )
            stack.callback(run.finish)
            writes.append(lambda metrics: run.log(dict(metrics), step=int(metrics["step"])))

        def write(metrics: Mapping[str, float]) -> None:
            for write_one in writes:
                write_one(metrics)

        yield write


def _to_tensorboard(writer: Any, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        writer.add_scalar(name, value, int(metrics["step"]))
    writer.flush()
