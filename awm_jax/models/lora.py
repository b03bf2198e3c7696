"""LoRA (https://arxiv.org/abs/2106.09685): low-rank changes of named projections.

Adapters are a tree of their own beside the parameters, and applying them is a pure function of
both: W + alpha / rank * A B, section 4.1, kernels being `[inputs, outputs]` here. What is
trained is then the adapters' tree, what is exported the merged parameters.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

_DOWN, _UP = "lora_a", "lora_b"


def init_adapters(
    params: Mapping[str, Any],
    key: jax.Array,
    *,
    rank: int,
    projections: Sequence[str],
    dtype: str = "float32",
) -> dict[str, Any]:
    """Adapters that change nothing yet: A is drawn with variance 1 / inputs, B is zero.

    Args:
      params: the model's, arrays or their shapes.
      key: each adapter's numbers depend on it, on its path and on its shape.
      rank: of the change.
      projections: names such as "q_proj" and "down_proj"; every linear layer of that name, in
        decoder and vision tower, gets an adapter.
      dtype: type of the adapters, which need not be the parameters'.

    Returns:
      For each kernel `[..., inputs, outputs]` of those projections, in its place, `lora_a`
      `[..., inputs, rank]` and `lora_b` `[..., rank, outputs]`.

    Raises:
      ValueError: a name is that of no linear layer, or the rank fits none.
    """
    kernels = {
        path[:-1]: leaf.shape
        for path, leaf in traverse_util.flatten_dict(params).items()
        if path[-1] == "kernel" and len(path) > 1
    }
    found = sorted({path[-1] for path in kernels})
    unknown = sorted(set(projections) - set(found))
    if unknown or not projections:
        raise ValueError(
            f"projections {list(projections)}: found no linear layer for {unknown}; expected "
            f"names of {found}"
        )
    chosen = {path: shape for path, shape in kernels.items() if path[-1] in projections}
    smallest = min(min(shape[-2:]) for shape in chosen.values())
    if not 1 <= rank <= smallest:
        raise ValueError(
            f"rank {rank}: expected 1 to {smallest}, the smallest side of the kernels chosen"
        )
    adapters = {}
    for path, (*stacked, inputs, outputs) in chosen.items():
        own = jax.random.fold_in(key, zlib.crc32("/".join(path).encode()))
        drawn = jax.random.normal(own, (*stacked, inputs, rank), dtype)
        adapters[*path, _DOWN] = drawn * inputs**-0.5
        adapters[*path, _UP] = jnp.zeros((*stacked, rank, outputs), dtype)
    return traverse_util.unflatten_dict(adapters)


def merge(
    params: Mapping[str, Any], adapters: Mapping[str, Any], *, alpha: float
) -> dict[str, Any]:
    """The parameters with the adapters' change added to the kernels, each in its own type.

    Differentiable in both; take the gradient in `adapters` to train them alone. The sum is taken
    in the wider of the two types and rounded once.

    Args:
      params: the model's; not changed.
      adapters: as `init_adapters` returned them, or trained since.
      alpha: the change is alpha / rank times A B.

    Raises:
      ValueError: an adapter belongs to no kernel of the parameters, or to one of another shape.
    """
    merged, parts = traverse_util.flatten_dict(params), traverse_util.flatten_dict(adapters)
    problems = []
    for path in sorted({path[:-1] for path in parts}):
        down, up, at = parts.get((*path, _DOWN)), parts.get((*path, _UP)), (*path, "kernel")
        shapes = [None if x is None else x.shape for x in (merged.get(at), down, up)]
        if None in shapes or shapes[0] != (*shapes[1][:-1], shapes[2][-1]):
            problems.append(f"{'/'.join(path)}: kernel, A and B have the shapes {shapes}")
            continue
        kernel, scale = merged[at], alpha / down.shape[-1]
        merged[at] = (kernel + scale * (down @ up)).astype(kernel.dtype)
    if problems:
        raise ValueError("adapters do not belong to the parameters:\n  " + "\n  ".join(problems))
    return traverse_util.unflatten_dict(merged)
