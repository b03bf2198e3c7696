"""One run made by several processes, one a host: who does what, and what all must know.

Each process rolls out, reads and packs its own share of a step, on its own devices, so that none
waits for another in between. The update is one program over all devices. What a step's statistics
need (verdicts, lengths, notes) goes to every process; pages and tokens stay where they are. The
first process alone writes files, in a folder that all of them see. With one process every
function here gives back what it was given.
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from awm_jax.training import sharding
from awm_jax.training.batch import PackShape, PolicyBatch
from awm_jax.training.sharding import AXES, BATCH


@contextlib.contextmanager
def together(*, coordinator: str, count: int, index: int, heartbeat_seconds: int) -> Iterator[None]:
    """Joins the run's processes; entered before anything else asks JAX for a device.

    An error ends this process at once, without the wait for the others that JAX's own end has:
    they wait for this one, notice that it is gone and end too, with a line that says how to go on
    or, where they are not told but found out by its silence, with JAX's own.

    Args:
      coordinator: "HOST:PORT" of the first process; "auto" where JAX can find out by itself (a
        TPU pod, Slurm, Open MPI, Kubernetes); "" for a process alone.
      count, index: how many processes there are, and which this is; not read with "auto".
      heartbeat_seconds: after so long a silence a process counts as dead.

    Raises:
      ValueError: the settings name no such process.
    """
    if coordinator == "":
        yield
        return
    # It would take SIGTERM for a notice and go on.
    jax.config.update("jax_enable_preemption_service", False)
    if coordinator == "auto":
        jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_seconds)
    else:
        if ":" not in coordinator or not 0 <= index < count:
            raise ValueError(
                f"hosts: found coordinator {coordinator!r}, index {index} of {count}; expected "
                "HOST:PORT and an index from 0 to count - 1"
            )
        jax.distributed.initialize(
            coordinator, count, index, heartbeat_timeout_seconds=heartbeat_seconds
        )
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        print(_last_words(error), file=sys.stderr, flush=True)
        os._exit(1)


def _last_words(error: BaseException) -> str:
    me = f"process {jax.process_index()} of {jax.process_count()}"
    if isinstance(error, jax.errors.JaxRuntimeError):
        why = "cannot go on: a program failed, most likely because another process has ended"
    else:
        why = f"ends: {type(error).__name__}: {error}"
    return (
        f"{me} {why}. All processes end now. The same command, on all hosts or on another number "
        "of them, goes on from the last checkpoint."
    )


def first() -> bool:
    """Whether this process is the one that writes files and talks."""
    return jax.process_index() == 0


def own_name(name: str) -> str:
    """A name for what each process has for itself: with its index behind it, but for the first."""
    return name if first() else f"{name}-{jax.process_index()}"


def of_first(value: bool) -> bool:
    """What the first process holds; for questions whose answer may change meanwhile."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.bool_(value)))


@contextlib.contextmanager
def first_alone(what: str) -> Iterator[None]:
    """The first process goes through the block before the others do: it may make files."""
    if not first():
        multihost_utils.sync_global_devices(what)
    yield
    if first() and jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


@contextlib.contextmanager
def written_by_first(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """`path`, for the other processes that of a copy of what lies beside it under its stem.

    All of them read the same and write the same, and what the others wrote is thrown away.
    """
    if jax.process_count() == 1:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        if not first():
            for file in path.parent.glob(f"{path.stem}.*"):
                shutil.copy(file, folder)
        multihost_utils.sync_global_devices(str(path))
        yield path if first() else pathlib.Path(folder) / path.name


def share(items: Sequence[Any]) -> slice:
    """The part of `items` that is this process's own: neighbours, so that rollouts of one
    question mostly meet; sizes differ by at most one."""
    index, count = jax.process_index(), jax.process_count()
    return slice(len(items) * index // count, len(items) * (index + 1) // count)


def gathered(values: Sequence[Any]) -> list[Any]:
    """The values of all processes, those of the first before those of the second and so on.

    Args:
      values: such as JSON has.
    """
    if jax.process_count() == 1:
        return list(values)
    text = np.frombuffer(json.dumps(values).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    # Few lengths, so that few programs are compiled.
    padded = np.zeros(1 << int(sizes.max()).bit_length(), np.uint8)
    padded[: len(text)] = text
    texts = np.asarray(multihost_utils.process_allgather(padded))
    return [
        value
        for row, size in zip(texts, sizes, strict=True)
        for value in json.loads(row[:size].tobytes())
    ]


def total(counts: Mapping[str, int]) -> dict[str, int]:
    """The sum over the processes, by name."""
    everybody = gathered([dict(counts)])
    return {name: sum(each[name] for each in everybody) for name in counts}


def own_mesh(mesh: Mesh) -> Mesh:
    """The part of the mesh that is this process's: its own devices, along the same axes.

    Raises:
      ValueError: `tensor` reaches over processes: rollouts of one would wait for the other.
    """
    if jax.process_count() == 1:
        return mesh
    mine = np.vectorize(lambda device: device.process_index == jax.process_index())(mesh.devices)
    block = mesh.devices[
        np.ix_(
            *(np.flatnonzero(mine.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(len(AXES)))
        )
    ]
    if block.size != mine.sum() or block.shape[2] != mesh.shape["tensor"]:
        raise ValueError(
            f"mesh {dict(mesh.shape)}: process {jax.process_index()} has {int(mine.sum())} of its "
            f"devices, which do not hold whole groups of tensor = {mesh.shape['tensor']}; choose "
            "a tensor that divides the devices of one process"
        )
    return Mesh(block, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def own_copy(params, mesh: Mesh):
    """The parameters on this process's devices alone: gathered over all but `tensor`.

    Args:
      params: spread over the mesh, or gathered over `fsdp` already, which costs nothing more.
      mesh: of all processes.
    """
    if jax.process_count() == 1:
        return params
    mine = own_mesh(mesh)
    laid = sharding.shardings(params, sharding.placement(mesh, gathered=True))
    gathered_params = jax.jit(lambda tree: tree, out_shardings=laid)(params)

    def own(leaf, placed):
        parts = [shard.data for shard in leaf.addressable_shards]
        place = NamedSharding(mine, placed.spec)
        return jax.make_array_from_single_device_arrays(leaf.shape, place, parts)

    return jax.tree.map(own, gathered_params, laid)


def whole(params):
    """Host arrays that every process can read whole, to be exported."""
    if jax.process_count() == 1:
        return params
    return jax.tree.map(lambda leaf: multihost_utils.process_allgather(leaf, tiled=True), params)


def own_sampler(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the rows that are sampled together and kept, this process's part, rounded up.

    Args:
      settings: keyword arguments of `policy.make_generate`, of all processes together.
    """
    count = jax.process_count()
    split = {}
    if "batch_buckets" in settings:
        split["batch_buckets"] = sorted({-(-rows // count) for rows in settings["batch_buckets"]})
    if settings.get("cache_rows") is not None:
        split["cache_rows"] = -(-settings["cache_rows"] // count)
    return {**settings, **split}


def own_shape(shape: PackShape) -> PackShape:
    """What one process packs of a micro-batch of this shape.

    Raises:
      ValueError: the shape does not divide over the processes.
    """
    count = jax.process_count()
    split = {name: getattr(shape, name) for name in ("rows", "image_tokens", "target_rows")}
    if wrong := {name: size for name, size in split.items() if size % count}:
        raise ValueError(f"packing {wrong} does not divide over {count} processes")
    return shape._replace(**{name: size // count for name, size in split.items()})


def global_batches(
    batches: Iterable[PolicyBatch], nothing: PolicyBatch, mesh: Mesh, *, image_token_id: int
) -> Iterator[PolicyBatch]:
    """The processes' micro-batches side by side, as one over all devices.

    A process that has no more gives `nothing` until all are done. Rows lie with the process that
    packed them. What is small is known to all; of the image features every device holds all.

    Args:
      batches: packed with `own_shape`.
      nothing: a batch of that shape without a token.
      mesh: of all processes.
      image_token_id: the id that stands for a merged patch.
    """
    if jax.process_count() == 1:
        yield from batches
        return
    waiting = iter(batches)
    while True:
        batch = next(waiting, None)
        here = nothing if batch is None else batch
        rows = {name: getattr(here, name) for name in ("input_ids", "segment_ids", "position_ids")}
        small = {
            name: array
            for name, array in here._asdict().items()
            if name not in rows and name != "image_features"
        }
        images = (here.input_ids == image_token_id).sum(axis=1, dtype=np.int32)
        some, images, small = multihost_utils.process_allgather(
            (np.int32(batch is not None), images, small)
        )
        if not some.any():
            return
        yield _joined(rows, small, here.image_features, images, mesh)


def _joined(rows, small, features, images, mesh: Mesh) -> PolicyBatch:
    """One batch of this process's rows and features and of what is small of all.

    Args:
      rows: `[row, time]` arrays by name, `position_ids` with an axis before.
      small: `[process, ...]` arrays by name.
      features: `[image_token, 1 + taps, hidden]`.
      images: `[process, row]`, the image tokens of each row.
      mesh: of all processes.
    """
    count, (own_rows, time) = len(images), rows["input_ids"].shape
    by_row = NamedSharding(mesh, P(BATCH, None))
    places = _places(by_row, (count * own_rows, time))
    row, column = np.divmod(small["predictor"], time)
    small["predictor"] = np.stack([p[r] for p, r in zip(places, row, strict=True)]) * time + column
    known = {
        name: _everywhere(array.reshape(-1, *array.shape[2:]), mesh)
        for name, array in small.items()
    }
    features = np.pad(features, ((0, -len(features) % sharding.batch_ways(mesh)), (0, 0), (0, 0)))
    by_token = NamedSharding(mesh, P(BATCH, None, None))
    spread = _from_here(by_token, features, axis=0)
    slots = _places(by_token, spread.shape)
    # Where the features of each row begin among those of its process.
    begins = np.cumsum(images, axis=1) - images
    order = np.zeros(spread.shape[0], np.int32)
    filled = 0
    for _, process, own in sorted(
        (place, process, own) for process, p in enumerate(places) for own, place in enumerate(p)
    ):
        start, length = begins[process, own], images[process, own]
        order[filled : filled + length] = slots[process][start : start + length]
        filled += length
    return PolicyBatch(
        input_ids=_from_here(by_row, rows["input_ids"], axis=0),
        segment_ids=_from_here(by_row, rows["segment_ids"], axis=0),
        position_ids=_from_here(
            NamedSharding(mesh, P(None, BATCH, None)), rows["position_ids"], axis=1
        ),
        image_features=_ordered(spread, order, everywhere=NamedSharding(mesh, P())),
        **known,
    )


def _from_here(place: NamedSharding, array: np.ndarray, *, axis: int) -> jax.Array:
    """An array of all processes' parts along an axis, each where it is."""
    shape = list(array.shape)
    shape[axis] *= jax.process_count()
    return jax.make_array_from_process_local_data(place, array, tuple(shape))


def _everywhere(array: np.ndarray, mesh: Mesh) -> jax.Array:
    """What all processes know, on all devices."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P()), array, array.shape)


def _places(place: NamedSharding, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Which places along the first axis each process holds, in order."""
    held = [set() for _ in range(jax.process_count())]
    for device, (along, *_) in place.devices_indices_map(shape).items():
        held[device.process_index].update(range(*along.indices(shape[0])))
    return [np.array(sorted(places)) for places in held]


@functools.partial(jax.jit, static_argnames="everywhere")
def _ordered(features, order, *, everywhere):
    """Features in the order of their tokens. Those behind the last stand for nothing."""
    return jax.lax.with_sharding_constraint(jnp.take(features, order, axis=0), everywhere)
