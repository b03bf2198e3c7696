"""Supervised fine-tuning on finished trajectories, ours or a teacher's (the paper, section 4.1).

A trajectory is not trained as it was tokenized, which a teacher's never was for this policy: it
is played again. The real agent is given the recorded messages, in the policy's own chat format,
and shows the recorded pages. So each training sequence holds, token by token, what the policy
would see at that step and what it should have said, and a recording that our tools do not lead
through to the same notes and answer is an error, not a lesson.

Only assistant messages are trained, their end token included. What the teacher did wrong (a
refused call, a message that could not be read) stays in view and is not trained.
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
import optax

from awm_jax.agent.protocol import parse_calls
from awm_jax.agent.rollout import DEFAULTS, RolloutSettings, run_rollouts
from awm_jax.models.processor import (
    END,
    START,
    Processor,
    image_grid,
    render_chat,
    render_continuation,
)
from awm_jax.rl.losses import Metrics, WeightedSum
from awm_jax.training.batch import PackShape, TrainingSequence
from awm_jax.types import (
    ANSWERED,
    Message,
    Page,
    Prompt,
    Render,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
)

# Tokens that a recorded text must not bring into a prompt; tags of the protocol may stay.
_CONTROL = re.compile(r"<(?=\|[^\s|<>]+\|>)")
_NO_TOKENS = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))


def lesson(
    trajectory: Trajectory,
    index: int,
    *,
    processor: Processor,
    render: Render,
    settings: RolloutSettings = DEFAULTS,
) -> list[TrainingSequence]:
    """The training sequences of a recorded trajectory, one a context.

    Args:
      trajectory: with an answer. Its tokens, where it has any, are not looked at.
      index: which trajectory the sequences belong to.
      processor: the policy's.
      render: shows the pages again.
      settings: those of the policy's own rollouts; `context` decides where sequences begin,
        whatever it was for the teacher.

    Returns:
      At least one sequence with at least one trained token each; `old_log_probs` are 0.

    Raises:
      ValueError: played again it does not come to the same calls, notes and answer, or the
        tokens to be trained do not hold the calls.
    """
    if trajectory.status != ANSWERED or not trajectory.turns:
        raise ValueError(
            f"{_name(trajectory)}: ended with {trajectory.status} after {len(trajectory.turns)} "
            "messages, expected some and an answer"
        )
    prompts, replayed = _replay(trajectory, render, settings)
    _check_replay(trajectory, replayed)
    sequences = []
    steps = zip(prompts, replayed.turns, strict=True)
    for _, context in itertools.groupby(steps, key=lambda step: step[1].context):
        asked, turns = zip(*context, strict=True)
        taught = [not turn.violations for turn in turns]
        if not any(taught):
            continue
        # The prompt of a context's last turn holds all its earlier ones.
        messages = (*asked[-1].messages, turns[-1].sample)
        ids, trained, pages = chat_tokens(messages, asked[-1].tools, taught, processor=processor)
        nothing = np.zeros(len(ids), np.float32)
        sequences.append(TrainingSequence(ids, trained, nothing, pages, index))
        _check_calls(trajectory, turns, sequences[-1], processor)
    if not sequences:
        raise ValueError(f"{_name(trajectory)}: no message to train on, all were refused")
    return sequences


def chat_tokens(
    messages: Sequence[Message | Sample],
    tools: Sequence[Mapping[str, Any]],
    taught: Sequence[bool],
    *,
    processor: Processor,
) -> tuple[np.ndarray, np.ndarray, tuple[Page, ...]]:
    """A conversation as the policy reads it, and which tokens are trained.

    Each part is tokenized by itself, as it is when the policy samples.

    Args:
      messages: a `Sample` stands for an assistant message of the conversation's own, a
        `Message` for all else; the last one is a `Sample`.
      tools: JSON schemas that the system message lists.
      taught: one entry a `Sample`, False where it is shown and not trained.
      processor: the policy's.

    Returns:
      `[time]` int32 ids; `[time]` bool, True on the taught samples and their end tokens; the
      images of the ids, in order.
    """
    texts, grids, trained, shown = [], [], [], []
    start = 0
    places = [place for place, message in enumerate(messages) if isinstance(message, Sample)]
    for place, train in zip(places, taught, strict=True):
        before = messages[start:place]
        pages = [part for message in before for part in message.content if isinstance(part, Page)]
        texts += [
            render_continuation(before, ended=True) if start else render_chat(before, tools),
            messages[place].text + END,
        ]
        grids += [[image_grid(*page.image.shape[:2], processor.image) for page in pages], []]
        trained += [False, train]
        shown += pages
        start = place + 1
    parts = processor.encode(texts, grids)
    mask = np.repeat(trained, [len(part) for part in parts])
    return np.concatenate(parts).astype(np.int32), mask, tuple(shown)


def message_text(turn: Turn) -> str:
    """What an assistant message is taught as: its words, then its calls, without thoughts.

    One that was refused in part or whole is left as it was written.
    """
    if turn.violations:
        return _CONTROL.sub("< ", turn.sample.text)
    content = parse_calls(turn.sample.text).content
    message = Message("assistant", (content,) if content else (), turn.calls)
    text = render_chat([message], add_generation_prompt=False)
    return text.removeprefix(f"{START}assistant\n").removesuffix(f"{END}\n")


def oversized(
    sequences: Iterable[TrainingSequence], shape: PackShape, *, image_token_id: int
) -> list[str]:
    """What does not fit into a micro-batch that is otherwise empty, in words."""
    found = []
    for sequence in sequences:
        sizes = {
            "tokens": (len(sequence.token_ids), shape.row_length),
            "image tokens": (
                int((sequence.token_ids == image_token_id).sum()),
                shape.image_tokens,
            ),
            "trained tokens": (
                int(sequence.trained.sum()),
                shape.target_rows * shape.target_length,
            ),
        }
        found += [
            f"{size} {what}, at most {most}" for what, (size, most) in sizes.items() if size > most
        ]
    return found


def cross_entropy(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    trajectory: chex.Array | None = None,
) -> tuple[WeightedSum, Metrics]:
    """The negative log-likelihood of the trained tokens, in nats, by token.

    It has the form of the policy losses, so that `grpo.make_update` compiles it; what it does
    not need is not looked at.

    Args:
      log_probs: `[batch, time]` float32.
      mask: same shape, True on trained tokens; what stands elsewhere has no gradient.
    """
    del old_log_probs, advantages, trajectory
    # Masked before the sum: padding may hold NaN.
    total = -jnp.where(mask, log_probs, 0.0).sum()
    return WeightedSum(total, mask.sum().astype(jnp.float32)), {}


def schedule(
    *, updates: int, learning_rate: float, final_learning_rate: float, warmup_share: float
) -> optax.Schedule:
    """Linear warm-up over a share of the updates, then a cosine down to the final rate.

    Raises:
      ValueError: the share is not in [0, 1).
    """
    if not 0 <= warmup_share < 1:
        raise ValueError(f"warmup_share {warmup_share}: expected at least 0 and below 1")
    warmup = round(warmup_share * updates)
    return optax.warmup_cosine_decay_schedule(
        # The first update is made with a part of the rate, not with none.
        learning_rate / (warmup + 1),
        learning_rate,
        warmup,
        max(updates, warmup + 1),
        final_learning_rate,
    )


def optimizer(
    rate: optax.Schedule, *, b1: float, b2: float, weight_decay: float, max_gradient_norm: float
) -> optax.GradientTransformation:
    """AdamW with a schedule, behind a clip of the global gradient norm."""
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm),
        optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay),
    )


def _replay(
    trajectory: Trajectory, render: Render, settings: RolloutSettings
) -> tuple[list[Prompt], Trajectory]:
    """Plays the recorded messages through the agent: each turn's prompt, and what came of it."""
    shown = iter([pages for turn in trajectory.turns for pages in _shown(turn)])
    prompts: list[Prompt] = []

    def say(asked: Sequence[Prompt], *, temperature: float) -> list[Sample]:
        text = message_text(trajectory.turns[len(prompts)])
        prompts.extend(asked)
        return [Sample(*_NO_TOKENS, text, "stop")]

    (replayed,) = run_rollouts(
        [(trajectory.question, trajectory.rollout, ())],
        say,
        search=lambda document, query, count: next(shown, ()),
        render=render,
        # Past the recorded messages there is nothing to say.
        settings=dataclasses.replace(
            settings, max_steps=min(settings.max_steps, len(trajectory.turns))
        ),
    )
    return prompts, replayed


def _shown(turn: Turn) -> list[tuple[int, ...]]:
    """The pages that each search of a turn found; only its last one can have found any."""
    searches = sum(call.name == "search_pages" for call in turn.calls)
    found = tuple(part.number for part in turn.observation if isinstance(part, Page))
    return [()] * (searches - 1) + [found] * bool(searches)


def _check_replay(recorded: Trajectory, replayed: Trajectory) -> None:
    differences = [
        f"{what}: recorded {before!r}, played again {after!r}"
        for what, before, after in (
            ("status", recorded.status, replayed.status),
            ("final answer", recorded.final_answer, replayed.final_answer),
            ("memory", recorded.memory.text, replayed.memory.text),
            ("calls", _calls(recorded.turns), _calls(replayed.turns)),
        )
        if _canonical(before) != _canonical(after)
    ]
    if differences:
        refused = [violation for turn in replayed.turns for violation in turn.violations]
        errors = [f"error: {error}" for error in (*refused, replayed.error) if error]
        raise ValueError(
            f"{_name(recorded)}: our tools and settings do not lead through it.\n  "
            + "\n  ".join([*differences, *errors])
        )


def _check_calls(trajectory, turns, sequence: TrainingSequence, processor: Processor) -> None:
    """`ValueError` where the trained tokens do not say what was to be taught."""
    ids = sequence.token_ids[sequence.trained]
    ends = np.flatnonzero(ids == processor.stop_ids[0]) + 1
    said = processor.decode(np.split(ids, ends)[:-1])
    taught = [turn for turn in turns if not turn.violations]
    found = [list(parse_calls(text.removesuffix(END)).calls) for text in said]
    expected = [list(turn.calls) for turn in taught]
    if _canonical(found) != _canonical(expected):
        raise ValueError(
            f"{_name(trajectory)}: the trained tokens do not hold the calls. The chat template "
            f"or the tokenizer drops some.\n  expected {expected}\n  found    {found}"
        )


def _calls(turns: Sequence[Turn]) -> list[list[ToolCall]]:
    return [list(turn.calls) for turn in turns]


def _canonical(value: Any) -> str:
    """Equal for values that differ only in how their letters are composed.

    Qwen's tokenizer composes accents (NFC), so that what it read cannot be told apart.
    """
    return unicodedata.normalize("NFC", repr(value))


def _name(trajectory: Trajectory) -> str:
    return f"question {trajectory.question.id}, rollout {trajectory.rollout}"
