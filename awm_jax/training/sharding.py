"""Where arrays lie on a mesh of devices: rules on parameter paths, nothing inside the model.

The mesh has three axes. `data` holds whole copies, `fsdp` spreads parameters and optimiser at
rest and the batch in use, `tensor` splits heads and feed-forward layers. All axes are Auto: the
compiler moves what the rules leave open. For sampling, where every token would gather the
parameters anew, they are gathered over `fsdp` once and stay split over `tensor` alone.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from awm_jax.models.attention import KVCache
from awm_jax.models.config import Config

AXES = ("data", "fsdp", "tensor")
# Rows of a batch are spread over these.
BATCH = ("data", "fsdp")

Place = Callable[[str, Sequence[int]], NamedSharding]

# The first that matches a path says which axes of the array are split, counted from the last: a
# leading layer axis, where there is one, is never split. Kernels are [inputs, outputs].
_RULES = (
    (r"(q_proj|k_proj|v_proj|gate_proj|up_proj)/kernel$", ("fsdp", "tensor")),
    (r"(o_proj|down_proj)/kernel$", ("tensor", "fsdp")),
    # A ragged product is not split by the compiler: whole experts are stored apart and gathered
    # a layer at a time.
    (r"experts/(gate_up_proj|down_proj)$", (("fsdp", "tensor"), None, None)),
    (r"mlp/gate/kernel$", ("fsdp", None)),
    (r"^visual/.*kernel$", (("fsdp", "tensor"),)),
)
_VOCABULARY = re.compile(r"(embed_tokens|lm_head)/embedding$")


def make_mesh(
    *, data: int = 1, fsdp: int = 1, tensor: int = 1, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of `data * fsdp * tensor` devices; `tensor` lies within a process where it can.

    Args:
      data, fsdp, tensor: the sizes of the axes.
      devices: to choose from, in order; all that JAX finds by default. Several processes must
        use all of theirs.

    Raises:
      ValueError: a size below 1, or other devices than there are.
    """
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    if any(size < 1 for size in sizes.values()):
        raise ValueError(f"mesh {sizes}: expected sizes of at least 1")
    devices = list(jax.devices() if devices is None else devices)
    needed = data * fsdp * tensor
    processes = {device.process_index for device in devices}
    if needed > len(devices) or (len(processes) > 1 and needed != len(devices)):
        raise ValueError(
            f"mesh {sizes} needs {needed} devices, found {len(devices)} of kind "
            f"{devices[0].device_kind!r} in {len(processes)} processes; choose sizes whose "
            f"product is {len(devices)}"
        )
    # The default of `make_mesh` is Explicit, under which an unannotated model fails.
    shape, types = (data, fsdp, tensor), (AxisType.Auto,) * len(AXES)
    if len(processes) > 1:
        # `make_mesh` follows the torus, whose rows cross the hosts' blocks of 2 x 2 chips.
        devices.sort(key=lambda device: (device.process_index, device.id))
        return Mesh(np.array(devices).reshape(shape), AXES, axis_types=types)
    return jax.make_mesh(shape, AXES, types, devices=devices[:needed])


def check_mesh(mesh: Mesh, config: Config, *, rows: int | None = None) -> None:
    """ValueError, naming all that is wrong, unless the model can be spread over the mesh.

    Args:
      mesh: made by `make_mesh`.
      config: the model's shape.
      rows: of a training micro-batch; None where the model is not trained.
    """
    text, (fsdp, tensor) = config.text, (mesh.shape["fsdp"], mesh.shape["tensor"])
    inner = {"intermediate_size": (text.intermediate_size, "tensor", tensor)}
    if text.num_experts is not None:
        inner = {"num_experts": (text.num_experts, "fsdp x tensor", fsdp * tensor)}
    must = {
        "num_attention_heads": (text.num_attention_heads, "tensor", tensor),
        "num_key_value_heads": (text.num_key_value_heads, "tensor", tensor),
        **inner,
        "hidden_size": (text.hidden_size, "fsdp", fsdp),
    }
    if rows is not None:
        must["rows of a micro-batch"] = (rows, "data x fsdp", batch_ways(mesh))
    problems = [
        f"{name} {size} does not divide over {axis} = {ways}"
        for name, (size, axis, ways) in must.items()
        if size % ways
    ]
    if problems:
        raise ValueError(f"mesh {dict(mesh.shape)} does not fit:\n  " + "\n  ".join(problems))


def batch_ways(mesh: Mesh) -> int:
    """Over how many devices the rows of a batch are spread."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def placement(mesh: Mesh, *, gathered: bool = False) -> Place:
    """(path such as "language_model/norm/scale", shape) -> where that parameter lies.

    Serves policy and frozen reader, and `hf.load_model`'s `place`. What no rule names (norms,
    biases, the vision tower's position table) and the vision tower's kernels where their size
    does not divide have a copy on each device.

    Args:
      mesh: made by `make_mesh`.
      gathered: for sampling: the decoder is split over `tensor` alone.
    """
    ways = {**mesh.shape, "fsdp": 1} if gathered else dict(mesh.shape)

    def kept(names, size):
        """Those of an axis' mesh axes that split it evenly and are in use."""
        names = (names,) if isinstance(names, str) else names or ()
        used, product = [], 1
        for name in names:
            if ways[name] > 1 and size % (product * ways[name]) == 0:
                used.append(name)
                product *= ways[name]
        return tuple(used) or None

    def place(path: str, shape: Sequence[int]) -> NamedSharding:
        return NamedSharding(mesh, P(*map(kept, _split(path, shape, ways), shape)))

    return place


def _split(path: str, shape: Sequence[int], ways: Mapping[str, int]) -> tuple:
    """The mesh axes that each axis of an array is spread over, as the rules have it."""
    if _VOCABULARY.search(path):
        by_row = shape[0] % (ways["fsdp"] * ways["tensor"]) == 0
        return (("fsdp", "tensor"), None) if by_row else (None, ("fsdp", "tensor"))
    for pattern, axes in _RULES:
        if re.search(pattern, path):
            return (None,) * (len(shape) - len(axes)) + axes
    return (None,) * len(shape)


def path_of(keys) -> str:
    """The path of a leaf, as `jax.tree_util` gives it, in the form that the rules read."""
    return "/".join(str(key.key) for key in keys)


def shardings(params: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    """Where each array of a tree of parameters lies."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: place(path_of(keys), leaf.shape), params
    )


def optimizer_shardings(optimizer: optax.GradientTransformation, params: Mapping[str, Any]):
    """For `jax.jit(optimizer.init, out_shardings=...)`: moments lie where their parameters do.

    Args:
      optimizer: whose state it is.
      params: arrays, or their shapes with a sharding. Without out_shardings the state would
        lie on one device.
    """
    state = jax.eval_shape(optimizer.init, params)
    everywhere = replicated(params)
    return optax.tree.map_params(
        optimizer,
        lambda _, param: param.sharding,
        state,
        params,
        transform_non_params=lambda _: everywhere,
    )


def replicated(params: Mapping[str, Any]) -> Sharding:
    """A copy on each of the devices over which the parameters are spread."""
    sharding = jax.tree.leaves(params)[0].sharding
    return NamedSharding(sharding.mesh, P()) if isinstance(sharding, NamedSharding) else sharding


def for_sampling(params: Mapping[str, Any], *, mesh: Mesh, dtype: str) -> Mapping[str, Any]:
    """The parameters as sampling wants them: in its type, gathered over `fsdp`.

    The vision tower stays where it is; features of pages are worked out once. Arrays that are so
    already are not copied.
    """

    # One array at a time: a program for all of them would hold the copy twice.
    def copied(leaf, place):
        return gather(leaf, place=place, dtype=dtype) if moves(leaf, place, dtype) else leaf

    return jax.tree.map(copied, params, laid_for_sampling(params, mesh))


def moves(leaf: jax.Array, place: Sharding, dtype: str) -> bool:
    """Whether an array, or its placed shape, is of another type or lies elsewhere."""
    return leaf.dtype != dtype or not leaf.sharding.is_equivalent_to(place, leaf.ndim)


@functools.partial(jax.jit, static_argnames=("place", "dtype"))
def gather(leaf: jax.Array, *, place: Sharding, dtype: str) -> jax.Array:
    """The copy of an array that `for_sampling` makes. Cast first, then moved."""
    return jax.lax.with_sharding_constraint(leaf.astype(dtype), place)


def laid_for_sampling(params: Mapping[str, Any], mesh: Mesh) -> Mapping[str, Any]:
    """Where each array lies that `for_sampling` gives."""
    place, rest = placement(mesh, gathered=True), placement(mesh)
    return shardings(
        params, lambda path, shape: (rest if path.startswith("visual/") else place)(path, shape)
    )


def batch_spec(mesh: Mesh, rows: int) -> tuple[str, ...] | None:
    """The axes over which so many rows can be spread evenly, None for none of them."""
    for axes in (BATCH, ("fsdp",), ("data",)):
        ways = [mesh.shape[axis] for axis in axes]
        if ways != [1] * len(ways) and rows % functools.reduce(int.__mul__, ways) == 0:
            return axes
    return None


def constrain_hidden(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Keeps hidden states `[batch, time, hidden]` spread by rows between layers.

    Left alone, the compiler may spread them by features, as the parameters are, and move them
    at every product.
    """

    def constrain(x: jax.Array) -> jax.Array:
        spec = P(batch_spec(mesh, x.shape[0]), None, None)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return constrain


def constrain_cache(mesh: Mesh) -> Callable[[KVCache], KVCache]:
    """Keeps a cache spread by rows, and its keys and values by heads."""

    def constrain(cache: KVCache) -> KVCache:
        rows = batch_spec(mesh, cache.mask.shape[0])
        stored = P(None, rows, "tensor", None, None)
        specs = KVCache(stored, stored, P(rows, None), P(rows))
        return jax.tree.map(
            lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
            cache,
            specs,
        )

    return constrain


def attention_per_device(mesh: Mesh) -> Callable[[Callable], Callable]:
    """Runs an attention kernel on each device's rows and heads."""

    def on_mesh(kernel):
        def run(query, key, value, segments):
            rows = batch_spec(mesh, query.shape[0])
            heads = P(rows, None, "tensor", None)
            return jax.shard_map(
                kernel,
                mesh=mesh,
                in_specs=(heads, heads, heads, P(rows, None)),
                out_specs=heads,
                check_vma=False,
            )(query, key, value, segments)

        return run

    return on_mesh


def model_options(mesh: Mesh) -> dict[str, Any]:
    """What `hf.load_model` takes to spread a model over the mesh: where parameters and, in use,
    hidden states and the cache lie, and how a kernel is run on each device's part."""
    return {
        "place": placement(mesh),
        "constrain": constrain_hidden(mesh),
        "constrain_cache": constrain_cache(mesh),
        "per_device": attention_per_device(mesh),
    }


def batch_shardings(mesh: Mesh, batch):
    """Where the arrays of a `PolicyBatch` lie: rows of tokens over the batch axes, the rest,
    small but for the image features, whole; those split by feature."""

    def of(name, array):
        spec = [None] * array.ndim
        if name in ("input_ids", "segment_ids"):
            spec[0] = batch_spec(mesh, array.shape[0])
        elif name == "position_ids":
            spec[1] = batch_spec(mesh, array.shape[1])
        return NamedSharding(mesh, P(*spec))

    return type(batch)(*(of(name, array) for name, array in batch._asdict().items()))


def padded_head(head: jax.Array, banned: jax.Array, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """The head and its banned ids with rows of probability 0 added, so that the rows divide over
    all devices (151,936 = 2^7 x 1187 rows do not over 256)."""
    extra = -head.shape[0] % mesh.size
    if not extra:
        return head, banned
    return (
        jnp.pad(head, ((0, extra), (0, 0))),
        jnp.pad(jnp.asarray(banned, bool), (0, extra), constant_values=True),
    )
