"""The training state and the optimiser."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from awm_jax.training.sharding import optimizer_shardings, replicated

Params = Mapping[str, Any]


class TrainState(NamedTuple):
    """`params` holds the trained parameters alone; `step` counts updates."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def learning_rate_schedule(
    *,
    learning_rate: float,
    warmup_steps: int,
    decay: str = "constant",
    final_learning_rate: float = 0.0,
    updates: int | None = None,
) -> optax.Schedule:
    """A linear warm-up, then constant or down to the final rate at the last update.

    Args:
      learning_rate: the highest.
      warmup_steps: updates until it is reached; the first is made with a part of it.
      decay: "constant", "cosine" or "linear".
      final_learning_rate: not reached by "constant".
      updates: of the whole run; not needed by "constant".

    Raises:
      ValueError: a rate is not a positive number, the decay is unknown, or the warm-up leaves it
        no updates.
    """
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"found learning rate {learning_rate}, expected a positive number")
    rest = 0 if updates is None else updates - warmup_steps
    match decay:
        case "constant":
            after = optax.constant_schedule(learning_rate)
        case "cosine" | "linear" if not (0 <= final_learning_rate <= learning_rate and rest > 0):
            raise ValueError(
                f"found a {decay} decay from {learning_rate} to {final_learning_rate} in "
                f"{updates} updates, {warmup_steps} of them warm-up; expected a final rate from 0 "
                "to the highest and more updates than those of the warm-up"
            )
        case "cosine":
            share = final_learning_rate / learning_rate
            after = optax.cosine_decay_schedule(learning_rate, rest, alpha=share)
        case "linear":
            after = optax.linear_schedule(learning_rate, final_learning_rate, rest)
        case other:
            raise ValueError(f"decay {other!r}: expected constant, cosine or linear")
    return optax.join_schedules(
        [
            optax.linear_schedule(learning_rate / (warmup_steps + 1), learning_rate, warmup_steps),
            after,
        ],
        [warmup_steps],
    )


def adamw(
    *, b1: float, b2: float, weight_decay: float, max_gradient_norm: float, **rate: Any
) -> optax.GradientTransformation:
    """AdamW behind a clip of the global gradient norm.

    Args:
      b1, b2, weight_decay: as optax has them.
      max_gradient_norm: gradients with a greater norm are scaled down to it.
      rate: keyword arguments of `learning_rate_schedule`.
    """
    schedule = learning_rate_schedule(**rate)
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm),
        optax.adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay),
    )


def initial_state(
    params: Params, optimizer: optax.GradientTransformation, *, dtype: str | None = None
) -> TrainState:
    """The state before the first update, placed as the parameters are.

    Args:
      params: the trained parameters. They are copied: updates donate theirs.
      optimizer: its moments have the type of the state's parameters.
      dtype: the type in which parameters are kept and updated, "float32" for master weights of
        a model that computes in bfloat16; None for the type that they have.
    """
    # Committed to where they lie, as what an update returns is: else the second update would be
    # compiled anew.
    params = jax.tree.map(
        lambda leaf: jax.device_put(jnp.array(leaf, dtype), leaf.sharding), params
    )
    placed = optimizer_shardings(optimizer, params)
    step = jax.device_put(jnp.int32(0), replicated(params))
    return TrainState(step, params, jax.jit(optimizer.init, out_shardings=placed)(params))


def abstract_state(
    params: Params, optimizer: optax.GradientTransformation, *, dtype: str | None = None
) -> TrainState:
    """As `initial_state`, of placed shapes: nothing is computed or held."""

    def placed(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=leaf.sharding),
        params,
    )
    opt_state = jax.eval_shape(optimizer.init, params)
    opt_state = jax.tree.map(placed, opt_state, optimizer_shardings(optimizer, params))
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(params))
    return TrainState(step, params, opt_state)


def computed_params(params: Params, dtype: str | None) -> Params:
    """The parameters in the type in which the model computes; None for the type they have.

    The token embedding keeps its own: the gradient of a frequent token is a sum over thousands
    of its occurrences and, where the head is tied, over the vocabulary's. The model casts what
    is looked up.
    """
    if dtype is None:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: leaf if keys[-1].key == "embedding" else leaf.astype(dtype), params
    )
