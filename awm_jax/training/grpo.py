"""AWM-GRPO, one step at a time (the paper, section 3): roll out, read the memories, judge,
reward, normalise within groups, update.

A step is a function of the state, the questions and the run's seed. What happens on the host
comes in as functions: `rollout` plays the agent, `judge` scores answers and memories.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from awm_jax.models.qwen3_vl import ImageFeatures, Model
from awm_jax.rl.advantages import group_advantages, group_spread
from awm_jax.rl.log_probs import token_log_probs
from awm_jax.rl.losses import Metrics, Range, WeightedSum, merge
from awm_jax.rl.rewards import CellRewards, awm_reward, judge_passes
from awm_jax.training.batch import PolicyBatch, TrainingSequence, training_sequences
from awm_jax.training.sharding import batch_shardings, padded_head, placement, shardings
from awm_jax.training.state import Params, TrainState, computed_params
from awm_jax.types import ANSWERED, Question, Trajectory, Verdict

# A rollout to make: the question, its index in the group, its seed.
Task = tuple[Question, int, tuple[int, ...]]
# (log_probs, old_log_probs, advantages, mask, trajectory=...) -> summed loss, metrics.
PolicyLoss = Callable[..., tuple[WeightedSum, Metrics]]


def tasks_at_step(
    questions: Sequence[Question], *, group_size: int, seed: int, step: int
) -> list[Task]:
    """A group of rollouts for each question, each with a seed of its own."""
    return [
        (question, rollout, (seed, step, index, rollout))
        for index, question in enumerate(questions)
        for rollout in range(group_size)
    ]


class Outcome(NamedTuple):
    """What a step's rollouts earned; all `[group_count, group_size]`.

    Attributes:
      rewards: float32.
      valid: bool, False where there is no judgement.
      advantages: float32.
      trained: bool, True where the rollout can have a gradient: valid, in a group with spread.
    """

    rewards: np.ndarray
    valid: np.ndarray
    advantages: np.ndarray
    trained: np.ndarray


def outcome(
    trajectories: Sequence[Trajectory],
    verdicts: Sequence[Verdict],
    *,
    group_size: int,
    cells: CellRewards,
    epsilon: float,
    ddof: int,
    scale_by_std: bool,
) -> Outcome:
    """Rewards each trajectory by its cell and normalises within its group (section 3.1)."""
    groups = (-1, group_size)
    answer = np.array([v.answer_correct for v in verdicts]).reshape(groups)
    memory = np.array([v.memory_answerable for v in verdicts]).reshape(groups)
    judged = [t.valid and not v.error for t, v in zip(trajectories, verdicts, strict=True)]
    valid = np.array(judged).reshape(groups)
    rewards = awm_reward(answer, memory, cells)
    advantages = group_advantages(
        rewards, valid, epsilon=epsilon, ddof=ddof, scale_by_std=scale_by_std
    )
    spread = np.asarray(group_spread(rewards, valid))[:, None]
    return Outcome(np.asarray(rewards), valid, np.asarray(advantages), valid & spread)


def trained_sequences(
    trajectories: Sequence[Trajectory],
    outcome: Outcome,
    own: slice = slice(None),
    groups: Sequence[int] | None = None,
) -> tuple[list[tuple[list[TrainingSequence], float]], int]:
    """The sequences that can have a gradient, by trajectory, with its advantage.

    Args:
      trajectories: of the whole step, with their tokens.
      outcome: what they earned.
      own: those whose sequences are wanted, this process's share.
      groups: those that an update takes, by index; None for all.

    Returns:
      Those, and how many tokens the policy wrote in all valid trajectories left out of these
      groups. They have no gradient, but they count in the average over tokens.
    """
    chosen, left_out, wanted = [], 0, range(len(trajectories))[own]
    group_count, group_size = outcome.rewards.shape
    taken = set(range(group_count) if groups is None else groups)
    advantages, valid, trained = (
        field.reshape(-1) for field in (outcome.advantages, outcome.valid, outcome.trained)
    )
    for index, trajectory in enumerate(trajectories):
        if index // group_size not in taken:
            continue
        if trained[index]:
            if index in wanted:
                chosen.append((training_sequences(trajectory, index), float(advantages[index])))
        elif valid[index]:
            left_out += sum(len(turn.sample.token_ids) for turn in trajectory.turns)
    return chosen, left_out


def minibatches(
    group_count: int, *, epochs: int, minibatches: int, seed: tuple[int, ...]
) -> list[list[int]]:
    """Which groups each update of a step takes: every epoch all of them, in equal parts.

    In one part the groups keep their order; in several they are dealt anew each epoch. The
    log-probabilities of the policy that sampled stay those of the ratio throughout.

    Raises:
      ValueError: the groups do not divide, or a count is below 1.
    """
    if min(epochs, minibatches) < 1 or group_count % minibatches:
        raise ValueError(
            f"found {epochs} epochs of {minibatches} mini-batches for {group_count} groups, "
            "expected at least 1, and mini-batches that divide the groups"
        )
    chosen = []
    for epoch in range(epochs):
        order = np.arange(group_count)
        if minibatches > 1:
            order = np.random.default_rng((*seed, epoch)).permutation(group_count)
        chosen += [sorted(part.tolist()) for part in np.split(order, minibatches)]
    return chosen


def joined(frozen: Params, trained: Params) -> Params:
    """The model's parameters of those that are not trained and those that are."""
    return {**frozen, **trained}


class NotFinite(ValueError):
    """The loss or a gradient of an update is no number; its state is as it was."""


class Accumulated(NamedTuple):
    """What the micro-batches of one update have added up to.

    Attributes:
      gradients: of the summed loss, like the trained parameters.
      loss: the summed loss and its weight.
      metrics: as the loss gives them, merged.
    """

    gradients: Params
    loss: WeightedSum
    metrics: Metrics


class Update(NamedTuple):
    """The compiled halves of an update.

    Attributes:
      accumulate: (trained params, None or accumulated, micro-batch) -> accumulated.
      apply: (state, accumulated, tokens left out) -> (state, metrics).
      finite: accumulated -> whether loss and gradients are numbers.
      compiled: how many programs each half has needed so far; one, at one packing shape.
      programs: what the halves run, to be lowered ahead of time: `of_batch` (trained params,
        frozen, micro-batch) -> accumulated, `add` of two and `apply` as above.
    """

    accumulate: Callable[[Params, Accumulated | None, PolicyBatch], Accumulated]
    apply: Callable[[TrainState, Accumulated, int], tuple[TrainState, dict[str, jax.Array]]]
    finite: Callable[[Accumulated], jax.Array]
    compiled: Callable[[], dict[str, int]]
    programs: Mapping[str, Any]


def make_update(
    model: Model,
    frozen: Params,
    optimizer: optax.GradientTransformation,
    policy_loss: PolicyLoss,
    *,
    banned: jax.Array,
    temperature: float,
    chunk_size: int,
    mesh: Mesh | None = None,
    dtype: str | None = None,
    join: Callable[[Params, Params], Params] = joined,
) -> Update:
    """Compiles the update: one program for a micro-batch, one to apply what they add up to.

    A state that was updated is donated and cannot be used again, nor can sums that were added to.

    Args:
      model: the policy.
      frozen: the parameters that are not trained.
      optimizer: takes the gradient of the averaged loss.
      policy_loss: see `awm_jax.rl.losses.clipped_policy_loss`.
      banned: `[vocab]` bool, True on ids that the sampler could not choose.
      temperature: that of the rollouts.
      chunk_size: positions whose logits exist at one time.
      mesh: where the parameters are spread; None for one device.
      dtype: the type in which the model computes; None for that of the parameters.
      join: (frozen, trained) -> the model's parameters.
    """

    def summed_loss(params, frozen, batch):
        params = join(frozen, params)
        states = model.hidden(
            computed_params(params, dtype),
            batch.input_ids,
            position_ids=batch.position_ids,
            segment_ids=batch.segment_ids,
            image_features=ImageFeatures(
                batch.image_features[:, 0], jnp.moveaxis(batch.image_features[:, 1:], 1, 0)
            ),
        )
        head, never = model.output_embedding(params), banned
        if mesh is not None:
            head, never = padded_head(head, never, mesh)
        log_probs = token_log_probs(
            states.reshape(-1, states.shape[-1])[batch.predictor],
            head,
            batch.targets,
            chunk_size=chunk_size,
            temperature=temperature,
            banned=never,
            mesh=mesh,
        )
        loss, metrics = policy_loss(
            log_probs,
            batch.old_log_probs,
            batch.advantages,
            batch.mask,
            trajectory=batch.trajectory,
        )
        return loss.total, (loss, metrics)

    @jax.jit
    def of_batch(params, frozen, batch):
        gradients, (loss, metrics) = jax.grad(summed_loss, has_aux=True)(params, frozen, batch)
        # A gradient lies where its parameter does; the compiler would choose otherwise.
        if mesh is not None:
            laid = shardings(gradients, placement(mesh))
            gradients = jax.lax.with_sharding_constraint(gradients, laid)
        return Accumulated(gradients, loss, metrics)

    @functools.partial(jax.jit, donate_argnums=0)
    def add(left, right):
        gradients, loss = jax.tree.map(jnp.add, left[:2], right[:2])
        return Accumulated(gradients, loss, merge(left.metrics, right.metrics))

    @functools.partial(jax.jit, donate_argnums=0)
    def apply(state, accumulated, left_out):
        weight = accumulated.loss.weight + left_out
        gradients = jax.tree.map(lambda leaf: leaf / weight, accumulated.gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {}
        for name, value in accumulated.metrics.items():
            if isinstance(value, Range):
                metrics |= {f"{name}/min": value.low, f"{name}/max": value.high}
            else:
                metrics[name] = value.mean
        metrics["loss"] = accumulated.loss.total / weight
        metrics["grad_norm"] = optax.tree.norm(gradients)
        return TrainState(state.step + 1, params, opt_state), metrics

    # A program of its own: `apply` may then be given only what it may keep.
    @jax.jit
    def finite(accumulated):
        leaves = jax.tree.leaves((accumulated.gradients, accumulated.loss.total))
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()

    def accumulate(params, accumulated, batch):
        if mesh is not None:
            batch = jax.device_put(batch, batch_shardings(mesh, batch))
        one = of_batch(params, frozen, batch)
        return one if accumulated is None else add(accumulated, one)

    def compiled():
        return {"accumulate": of_batch._cache_size(), "apply": apply._cache_size()}

    programs = {"of_batch": of_batch, "add": add, "apply": apply}
    return Update(accumulate, apply, finite, compiled, programs)


def update_state(
    update: Update, state: TrainState, batches: Iterable[PolicyBatch], left_out: int
) -> tuple[TrainState, dict[str, float]]:
    """One update from the micro-batches; without any, the step counts and nothing moves.

    Raises:
      NotFinite: the update was not made; `state` can be used.
    """
    accumulated = None
    for batch in batches:
        accumulated = update.accumulate(state.params, accumulated, batch)
    if accumulated is None:
        return state._replace(step=state.step + 1), {}
    if not update.finite(accumulated):
        raise NotFinite(f"step {int(state.step)}: the loss or a gradient is not finite")
    state, metrics = update.apply(state, accumulated, left_out)
    return state, {name: float(value) for name, value in metrics.items()}


def step_metrics(
    trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict], outcome: Outcome
) -> dict[str, float]:
    """What a step's rollouts say, under TRL's names where it has one; shares of the valid."""
    valid = outcome.valid.reshape(-1)
    advantages = outcome.advantages.reshape(-1)[valid]
    passes = judge_passes(np.array([t.valid for t in trajectories]))
    answer = np.array([v.answer_correct for v in verdicts])[valid]
    memory = np.array([v.memory_answerable for v in verdicts])[valid]
    count = max(len(answer), 1)
    turns = [len(t.turns) for t in trajectories]
    tokens = [sum(len(turn.sample.token_ids) for turn in t.turns) for t in trajectories]
    # What TRL calls terminated: the policy came to an end by itself.
    ended = [n for n, t in zip(tokens, trajectories, strict=True) if t.status == ANSWERED]
    words = [len(f.text.split()) for t in trajectories for f in t.memory.findings]
    violations = sum(len(turn.violations) for t in trajectories for turn in t.turns)
    metrics = {
        "reward": float(outcome.rewards.reshape(-1)[valid].mean()) if len(answer) else 0.0,
        "reward_std": float(outcome.rewards.std(axis=1).mean()),
        "frac_reward_zero_std": 1.0 - float(outcome.trained.any(axis=1).mean()),
        "cells/11": float((answer & memory).sum() / count),
        "cells/10": float((answer & ~memory).sum() / count),
        "cells/01": float((~answer & memory).sum() / count),
        "cells/00": float((~answer & ~memory).sum() / count),
        "answer_accuracy": float(answer.sum() / count),
        "memory_accuracy": float(memory.sum() / count),
        "p_mmc": float((answer & ~memory).sum() / max(answer.sum(), 1)),
        "advantage/min": float(np.min(advantages, initial=0.0)),
        "advantage/max": float(np.max(advantages, initial=0.0)),
        "advantage/std": float(advantages.std()) if len(answer) else 0.0,
        "judge/failures": float((~valid).sum()),
        # Appendix C.4: what the reward costs on top of scoring answers. Equal memories are read
        # once, so the reader may have made fewer.
        "judge/reader_passes": int(passes.reader),
        "judge/scorer_passes": int(passes.scorer),
        "agent/steps": float(np.mean(turns)),
        "agent/finding_words": float(np.mean(words)) if words else 0.0,
        "agent/protocol_violations": violations / len(trajectories),
        "completions/mean_length": float(np.mean(tokens)),
        "completions/min_length": float(np.min(tokens)),
        "completions/max_length": float(np.max(tokens)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(tokens),
        "completions/mean_terminated_length": float(np.mean(ended)) if ended else 0.0,
        "completions/min_terminated_length": float(np.min(ended)) if ended else 0.0,
        "completions/max_terminated_length": float(np.max(ended)) if ended else 0.0,
    }
    for status in sorted({t.status for t in trajectories}):
        metrics[f"stop/{status}"] = sum(t.status == status for t in trajectories) / len(turns)
    return metrics
