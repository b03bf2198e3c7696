"""Checkpoints in the form of HF transformers: read, checked, written.

One table, `entries`, says which tensors of a checkpoint are which array of ours; it is read in
both directions. Our modules have HF's names, so that it follows from them: linear kernels are
`[inputs, outputs]` here and `[outputs, inputs]` there, layers are stacked here and numbered
there.
"""

import contextlib
import functools
import json
import math
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx, traverse_util

from awm_jax.models import qwen3, qwen3_vl
from awm_jax.models.config import Config, parse_config

# What HF calls weight; other leaves have the same name there.
_WEIGHTS = {"kernel", "scale", "embedding"}
# Arrays under these have a leading layer axis here and are numbered there.
_STACKED = {"layers", "blocks", "deepstack_merger_list"}
_EMBEDDING = ("embed_tokens", "embedding")
# Bytes that are read at a time: what the host holds of an array beside the array itself.
_PIECE_BYTES = 2**23


class Entry(NamedTuple):
    """One array of ours and the tensors that hold it.

    Attributes:
      path: keys into the parameters.
      names: the tensors' names, one a layer where `stacked`.
      stacked: whether the array has a leading layer axis.
      axes: the tensors' axes, as numbers of the array's (but for the layer axis).
      shape: of our array.
    """

    path: tuple[str, ...]
    names: tuple[str, ...]
    stacked: bool
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        shape = self.shape[1:] if self.stacked else self.shape
        return tuple(shape[axis] for axis in self.axes)


@functools.lru_cache
def _variables(config: Config) -> dict[tuple[str, ...], nnx.Param]:
    """All parameters by path: their shapes, and how a fresh model draws them."""
    kind = qwen3.Qwen3 if config.vision is None else qwen3_vl.Qwen3VL
    state = nnx.state(nnx.eval_shape(lambda: kind(config)), nnx.Param)
    return dict(nnx.to_flat_state(state))


def entries(config: Config) -> list[Entry]:
    """The table for a model of this shape, one entry an array."""
    prefixes = {
        "language_model": "model." if config.vision is None else "model.language_model.",
        "visual": "model.visual.",
        "lm_head": "lm_head.",
    }
    result = []
    for path, variable in _variables(config).items():
        root, *inner, leaf = path
        theirs = "weight" if leaf in _WEIGHTS else leaf
        stacked = bool(inner) and inner[0] in _STACKED
        axes = tuple(range(len(variable.shape) - stacked))
        # A linear layer has its outputs first there, and so has the patch embedding.
        axes = (axes[-1], *axes[:-1]) if leaf == "kernel" else axes
        numbers = [[str(n)] for n in range(variable.shape[0])] if stacked else [[]]
        names = tuple(
            prefixes[root] + ".".join([*inner[:1], *number, *inner[1:], theirs])
            for number in numbers
        )
        result.append(Entry(path, names, stacked, axes, variable.shape))
    return result


def _build(config: Config, arrays, **options):
    kind = qwen3.Model if config.vision is None else qwen3_vl.Model
    return kind(config=config, params=traverse_util.unflatten_dict(arrays), **options)


def init_model(config: Config, key: jax.Array, *, dtype="float32", **options):
    """A model with random parameters, to be trained from scratch; options as `load_model`.

    Each array's numbers depend on the key, its path and its shape only. They are drawn on the
    host: a program that draws each of them takes longer to compile than a tiny model to train.
    """
    seed, arrays = np.asarray(jax.random.key_data(key)).ravel().tolist(), {}
    for path, variable in _variables(config).items():
        rng = np.random.default_rng([zlib.crc32("/".join(path).encode()), *seed])
        about = variable.get_metadata()
        drawn = rng.standard_normal(variable.shape, np.float32) if about["deviation"] else 0.0
        values = np.full(variable.shape, about["mean"] + about["deviation"] * drawn)
        arrays[path] = jnp.asarray(values, dtype)
    return _build(config, arrays, **options)


def abstract_model(config: Config, *, dtype="bfloat16", place, **options):
    """As `load_model`, with placed shapes instead of arrays: to compile for, not to compute with.

    Args:
      config: the model's shape.
      dtype, place, **options: as in `load_model`.
    """
    arrays = {
        path: jax.ShapeDtypeStruct(
            variable.shape, jnp.dtype(dtype), sharding=place("/".join(path), variable.shape)
        )
        for path, variable in _variables(config).items()
    }
    return _build(config, arrays, **options)


def checkpoint_directory(path: str | os.PathLike) -> pathlib.Path:
    """The directory itself, or that of a hub id, downloaded unless it is in hub's cache."""
    if pathlib.Path(path).is_dir():
        return pathlib.Path(path)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        raise ValueError(f"{path}: found neither a directory nor a hub id such as Qwen/Qwen3-4B")
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(str(path), allow_patterns=patterns))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise ValueError(
            f"{path}: no such directory, and the hub did not give it: {error}"
        ) from error


def load_config(path: str | os.PathLike) -> Config:
    """The shape of the model in a directory or of a hub id."""
    file = checkpoint_directory(path) / "config.json"
    try:
        return parse_config(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def load_model(path: str | os.PathLike, *, dtype="bfloat16", place=None, **options):
    """A model from an HF checkpoint: Qwen3 or Qwen3-VL, told from config.json.

    Each array is read straight to its shards in pieces of 8 MiB: beside the parameters, the host
    holds no more than a few of these.

    Args:
      path: a directory or a hub id.
      dtype: type of the parameters, and of all that is computed with them.
      place: (path such as "language_model/norm/scale", shape) -> `Sharding`; None for the
        default device.
      **options: those of `qwen3.Model`, such as `remat` and `attention`.

    Raises:
      ValueError: for a config that asks for something else than we compute, and, listed
        together, for all tensors that are missing, unexpected or of the wrong shape. A tied
        model's file may hold the head too, if it equals the embedding.
    """
    directory = checkpoint_directory(path)
    config = load_config(directory)
    dtype = jnp.dtype(dtype)
    arrays = {}
    with contextlib.ExitStack() as stack:
        files = _open(directory, stack)
        table = _as_in(files, entries(config))
        _check(directory, config, table, files)
        for entry in table:
            sharding = None if place is None else place("/".join(entry.path), entry.shape)
            arrays[entry.path] = _load_array(files, entry, dtype, sharding)
    return _build(config, arrays, **options)


def _as_in(files: dict, table: list[Entry]) -> list[Entry]:
    """The table for these files: their experts may have inputs and outputs swapped.

    Released checkpoints have our layout; transformers 5 saves the other under the same names.
    Where a matrix is square the other one tells.
    """
    swapped = {e.path: e._replace(axes=(0, 2, 1)) for e in table if e.path[-2] == "experts"}
    if any(
        entry.path in swapped
        and entry.names[0] in files
        and tuple(files[entry.names[0]].get_slice(entry.names[0]).get_shape())
        == swapped[entry.path].tensor_shape
        != entry.tensor_shape
        for entry in table
    ):
        return [swapped.get(entry.path, entry) for entry in table]
    return table


def _open(directory: pathlib.Path, stack: contextlib.ExitStack) -> dict:
    """Tensor name -> the open file that holds it."""
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    absent = [name for name in names if not (directory / name).is_file()]
    files, problems = {}, [f"found no {absent}"] if absent else []
    for name in sorted(set(names) - set(absent)):
        try:
            file = safetensors.safe_open(directory / name, framework="numpy")
        except (OSError, safetensors.SafetensorError) as error:
            problems.append(f"{name} cannot be read ({error})")
            continue
        stack.enter_context(file)
        files.update({tensor: file for tensor in file.keys()})  # noqa: SIM118 (not a mapping)
    if problems:
        raise ValueError(f"{directory}: " + "; ".join(problems))
    return files


def _check(directory, config: Config, table: list[Entry], files: dict) -> None:
    shapes = {name: entry.tensor_shape for entry in table for name in entry.names}
    missing = sorted(shapes.keys() - files.keys())
    unexpected = sorted(files.keys() - shapes.keys())
    problems = []
    if config.tie_word_embeddings and "lm_head.weight" in unexpected:
        unexpected.remove("lm_head.weight")
        embedding = next(e.names[0] for e in table if e.path[-2:] == _EMBEDDING)
        if embedding in files and not np.array_equal(
            files["lm_head.weight"].get_tensor("lm_head.weight"),
            files[embedding].get_tensor(embedding),
        ):
            problems.append("lm_head.weight differs from the embedding that it is tied to")
    for name in sorted(shapes.keys() & files.keys()):
        found = tuple(files[name].get_slice(name).get_shape())
        if found != shapes[name]:
            problems.append(f"{name}: found {found}, expected {shapes[name]}")
    if missing or unexpected or problems:
        raise ValueError(
            f"{directory}: checkpoint and model disagree.\n  missing:    {missing}\n"
            f"  unexpected: {unexpected}\n  wrong:      {problems}"
        )


def _load_array(files: dict, entry: Entry, dtype, sharding) -> jax.Array:
    """An array on its devices, or on the default one; a part that several hold is read once."""
    if sharding is None:
        return _load_shard(files, entry, dtype, (slice(None),) * len(entry.shape), None)
    parts, shards = {}, []
    for device, index in sharding.addressable_devices_indices_map(entry.shape).items():
        if str(index) not in parts:
            parts[str(index)] = _load_shard(files, entry, dtype, index, device)
        shards.append(jax.device_put(parts[str(index)], device))
    return jax.make_array_from_single_device_arrays(entry.shape, sharding, shards)


def _load_shard(files: dict, entry: Entry, dtype, index: tuple[slice, ...], device) -> jax.Array:
    """The part of an array that `index` asks for, on a device; None for the default one."""
    spans = [range(*s.indices(n)) for s, n in zip(index, entry.shape, strict=True)]
    pieces = list(_pieces(spans, _PIECE_BYTES // dtype.itemsize))
    if len(pieces) == 1:
        return jax.device_put(_read(files, entry, dtype, pieces[0]), device)
    out = jnp.zeros([len(span) for span in spans], dtype, device=device)
    for piece in pieces:
        values = jax.device_put(_read(files, entry, dtype, piece), device)
        start = [part.start - span.start for part, span in zip(piece, spans, strict=True)]
        # Waited for, so that no more than one piece is under way.
        out = jax.block_until_ready(_write(out, values, start))
    return out


def _pieces(spans: list[range], most: int) -> Iterator[list[range]]:
    """Parts of a box of up to `most` numbers, or of one; later axes are cut last."""
    inner = math.prod(map(len, spans[1:]))
    step = max(1, most // inner)
    rests = [spans[1:]] if inner <= most else list(_pieces(spans[1:], most))
    for first in range(0, len(spans[0]), step):
        yield from ([spans[0][first : first + step], *rest] for rest in rests)


@functools.partial(jax.jit, donate_argnums=0)
def _write(array, values, start):
    # As bits: XLA's CPU backend writes bfloat16 a tenth as fast.
    bits, dtype = f"uint{8 * array.dtype.itemsize}", array.dtype
    array, values = (jax.lax.bitcast_convert_type(x, bits) for x in (array, values))
    array = jax.lax.dynamic_update_slice(array, values, start)
    return jax.lax.bitcast_convert_type(array, dtype)


def _read(files: dict, entry: Entry, dtype, piece: list[range]) -> np.ndarray:
    """A part of an array, layer by layer into one buffer."""
    out = np.empty([len(part) for part in piece], dtype)
    index = tuple(slice(part.start, part.stop) for part in piece)
    names, inner = (entry.names[index[0]], index[1:]) if entry.stacked else (entry.names, index)
    theirs = tuple(inner[axis] for axis in entry.axes)
    for place, name in zip(out if entry.stacked else [out], names, strict=True):
        tensor = files[name].get_slice(name)[theirs]
        place[...] = tensor.transpose(np.argsort(entry.axes))
    return out


def save_model(model, params, path: str | os.PathLike, *, assets=None, shard_bytes=5 * 10**9):
    """Writes a checkpoint that transformers, vLLM and SGLang load.

    Experts have the released layout, whichever they were read in: transformers 4 and 5 load it,
    that of version 5 only version 5 does.

    Args:
      model: gives the shape; config.json is written in the form of transformers 4.
      params: what to write, each array in its own type. Every process must be able to read it.
      path: directory, made where absent; one that holds weights already is refused.
      assets: directory whose tokenizer, processor and generation files are copied beside.
      shard_bytes: size at which a new file is begun.
    """
    directory = pathlib.Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    if list(directory.glob("*.safetensors*")):
        raise ValueError(f"{directory}: found weights, expected a directory without")
    table, arrays = entries(model.config), traverse_util.flatten_dict(params)
    expected = {entry.path: entry.shape for entry in table}
    found = {keys: array.shape for keys, array in arrays.items()}
    if found != expected:
        wrong = sorted("/".join(k) for k, _ in found.items() ^ expected.items())
        raise ValueError(f"params and model disagree about {wrong}; adapters are merged first")
    shards, size = [[]], 0
    for entry in table:
        array = arrays[entry.path]
        for number, name in enumerate(entry.names):
            nbytes = array.dtype.itemsize * math.prod(entry.tensor_shape)
            if size and size + nbytes > shard_bytes:
                shards.append([])
                size = 0
            shards[-1].append((name, entry, number))
            size += nbytes
    weight_map = {}
    for count, shard in enumerate(shards, start=1):
        file = f"model-{count:05}-of-{len(shards):05}.safetensors"
        file = "model.safetensors" if len(shards) == 1 else file
        tensors = {name: _tensor(arrays[e.path], e, number) for name, e, number in shard}
        safetensors.numpy.save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))
    if len(shards) > 1:
        total = sum(array.nbytes for array in arrays.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(directory / "model.safetensors.index.json", index)
    dtype = arrays[table[0].path].dtype.name
    _write_json(directory / "config.json", _of_type(model.config.source, dtype) | {"dtype": dtype})
    for file in sorted(pathlib.Path(assets).iterdir()) if assets is not None else ():
        if file.suffix in {".json", ".txt", ".jinja"} and not (directory / file.name).exists():
            shutil.copyfile(file, directory / file.name)


def tensors(config: Config, params) -> dict[str, np.ndarray]:
    """Parameters, or anything of their form such as gradients, under HF's names and axes."""
    arrays = traverse_util.flatten_dict(params)
    return {
        name: _tensor(arrays[entry.path], entry, number)
        for entry in entries(config)
        for number, name in enumerate(entry.names)
    }


def _tensor(array: jax.Array, entry: Entry, number: int) -> np.ndarray:
    array = np.asarray(array[number] if entry.stacked else array)
    return np.ascontiguousarray(array.transpose(entry.axes))


def _of_type(section, dtype: str) -> dict:
    """A section of config.json and those in it, with the type wherever one is named."""
    named = {key: dtype for key in ("dtype", "torch_dtype") if key in section}
    inner = {k: _of_type(v, dtype) for k, v in section.items() if k.endswith("_config")}
    return dict(section) | named | inner


def _write_json(file: pathlib.Path, content) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
