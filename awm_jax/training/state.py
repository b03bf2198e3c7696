"""The training state and the optimiser."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Mapping[str, Any]


class TrainState(NamedTuple):
    """`params` holds the trained parameters alone; `step` counts updates."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def adamw(
    *,
    learning_rate: float,
    warmup_steps: int,
    b1: float,
    b2: float,
    weight_decay: float,
    max_gradient_norm: float,
) -> optax.GradientTransformation:
    """AdamW behind a clip of the global gradient norm; a linear warm-up, then constant."""
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(learning_rate / (warmup_steps + 1), learning_rate, warmup_steps),
            optax.constant_schedule(learning_rate),
        ],
        [warmup_steps],
    )
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm),
        optax.adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay),
    )


def initial_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first update. The parameters are copied: updates donate theirs."""
    params = jax.tree.map(jnp.copy, params)
    return TrainState(jnp.int32(0), params, optimizer.init(params))
