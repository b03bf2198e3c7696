"""Trajectories -> packed, fixed-shape arrays for one update.

A trajectory gives one training sequence a context; each carries the index of the trajectory
whose advantage it takes. Sequences are packed into rows and told apart by segment ids, and
only the positions that predict the policy's own tokens reach the output embedding.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from awm_jax.types import Page, Question, Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingSequence:
    """One context of a trajectory, token by token as it was sampled.

    Attributes:
      token_ids: `[time]` int32, prompt, tool results and sampled tokens in order.
      trained: `[time]` bool, True on the policy's own tokens.
      old_log_probs: `[time]` float32, of the sampling distribution; 0 where not `trained`.
      pages: the images of `token_ids`, in order.
      trajectory: index of the trajectory.
    """

    token_ids: np.ndarray
    trained: np.ndarray
    old_log_probs: np.ndarray
    pages: tuple[Page, ...]
    trajectory: int


class PackShape(NamedTuple):
    """The static shape of a micro-batch: one shape, one compiled program.

    `rows` sequences of `row_length` tokens; at most `image_tokens` image tokens among them;
    `target_rows` x `target_length` positions whose next token is trained.
    """

    rows: int
    row_length: int
    image_tokens: int
    target_rows: int
    target_length: int


class PolicyBatch(NamedTuple):
    """One micro-batch.

    Attributes:
      input_ids: `[rows, time]` int32.
      segment_ids: `[rows, time]` int32; 0 is padding, tokens see their own segment only.
      position_ids: `[3, rows, time]` int32.
      image_features: `[image_tokens, 1 + taps, hidden]`, in the order of the image tokens.
      predictor: `[target_rows, target_length]` int32, flat index (row * row_length + time) of
        the token that predicts the target.
      targets: same shape, int32, the ids that were sampled.
      mask: same shape, bool, True on real targets.
      old_log_probs: same shape, float32.
      advantages: `[target_rows]` float32.
      trajectory: `[target_rows]` int32.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    position_ids: np.ndarray
    image_features: np.ndarray
    predictor: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    old_log_probs: np.ndarray
    advantages: np.ndarray
    trajectory: np.ndarray


def questions_at_step(
    questions: Sequence[Question], *, seed: int, step: int, count: int
) -> list[Question]:
    """The `count` questions of a step: epochs of seeded permutations, laid end to end.

    A function of its arguments alone, so a resumed run sees the data that the killed one would.
    """
    if not questions:
        raise ValueError("no questions to train on")
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, index = divmod(place, len(questions))
        order = np.random.default_rng((seed, epoch)).permutation(len(questions))
        chosen.append(questions[order[index]])
    return chosen


def training_sequences(trajectory: Trajectory, index: int) -> list[TrainingSequence]:
    """The training sequences of one trajectory, one a context.

    Raises:
      ValueError: a turn's ids do not extend those of the turn before it in its context.
    """
    sequences = []
    for context, turns in itertools.groupby(trajectory.turns, key=lambda turn: turn.context):
        samples = [turn.sample for turn in turns if len(turn.sample.token_ids)]
        if not samples:
            continue
        last = samples[-1]
        token_ids = np.concatenate([last.prompt_ids, last.token_ids]).astype(np.int32)
        trained = np.zeros(len(token_ids), bool)
        old_log_probs = np.zeros(len(token_ids), np.float32)
        for sample in samples:
            start, stop = len(sample.prompt_ids), len(sample.prompt_ids) + len(sample.token_ids)
            kept = np.concatenate([sample.prompt_ids, sample.token_ids])
            if not np.array_equal(token_ids[:stop], kept):
                raise ValueError(
                    f"question {trajectory.question.id}, rollout {trajectory.rollout}, context "
                    f"{context}: the ids of a later turn do not extend those of an earlier one"
                )
            trained[start:stop] = True
            old_log_probs[start:stop] = sample.log_probs
        sequences.append(TrainingSequence(token_ids, trained, old_log_probs, last.pages, index))
    return sequences


def pack(
    trajectories: Iterable[tuple[Sequence[TrainingSequence], float]],
    shape: PackShape,
    *,
    position_ids: Callable[[np.ndarray, Sequence[Page]], np.ndarray],
    page_features: Callable[[Page], np.ndarray],
    feature_shape: tuple[int, int],
    image_token_id: int,
    pad_id: int,
) -> Iterator[PolicyBatch]:
    """Packs trajectories, in order, into as few micro-batches as their order allows.

    All sequences of a trajectory share a micro-batch, so that averages per trajectory can be
    taken inside one.

    Args:
      trajectories: the sequences of each trajectory and its advantage.
      shape: what fits into a micro-batch.
      position_ids: (ids `[time]`, pages) -> `[3, time]` int32.
      page_features: page -> `[tokens, 1 + taps, hidden]`, what the vision tower makes of it.
      feature_shape: `(1 + taps, hidden)`.
      image_token_id: the id that stands for a merged patch.
      pad_id: fills rows.

    Raises:
      ValueError: a single trajectory does not fit into an empty micro-batch, or a sequence's
        image tokens are not its pages' merged patches.
    """
    empty = _Packed((shape.row_length,) * shape.rows, 0, 0, ())
    packed = empty
    for sequences, advantage in trajectories:
        grown = _place(sequences, advantage, packed, shape, image_token_id)
        if grown is None:
            if packed.places:
                yield _arrays(
                    packed,
                    shape,
                    position_ids,
                    page_features,
                    feature_shape,
                    image_token_id,
                    pad_id,
                )
            grown = _place(sequences, advantage, empty, shape, image_token_id)
            if grown is None:
                raise ValueError(
                    f"a trajectory with sequences of {[len(s.token_ids) for s in sequences]} "
                    f"tokens, {[int(s.trained.sum()) for s in sequences]} of them its own, does "
                    f"not fit into one micro-batch of {shape}; raise the packing shape"
                )
        packed = grown
    if packed.places:
        yield _arrays(
            packed, shape, position_ids, page_features, feature_shape, image_token_id, pad_id
        )


def empty_batch(shape: PackShape, feature_shape: tuple[int, int], pad_id: int) -> PolicyBatch:
    """A micro-batch without a token; arguments as in `pack`."""
    grid, targets_grid = (shape.rows, shape.row_length), (shape.target_rows, shape.target_length)
    return PolicyBatch(
        input_ids=np.full(grid, pad_id, np.int32),
        segment_ids=np.zeros(grid, np.int32),
        position_ids=np.zeros((3, *grid), np.int32),
        image_features=np.zeros((shape.image_tokens, *feature_shape), np.float32),
        predictor=np.zeros(targets_grid, np.int32),
        targets=np.zeros(targets_grid, np.int32),
        mask=np.zeros(targets_grid, bool),
        old_log_probs=np.zeros(targets_grid, np.float32),
        advantages=np.zeros(shape.target_rows, np.float32),
        trajectory=np.full(shape.target_rows, -1, np.int32),
    )


class _Place(NamedTuple):
    row: int
    start: int
    sequence: TrainingSequence
    advantage: float


class _Packed(NamedTuple):
    """A micro-batch in the making: free tokens by row, what is used, what stands where."""

    free: tuple[int, ...]
    image_tokens: int
    target_rows: int
    places: tuple[_Place, ...]


def _place(sequences, advantage, packed, shape, image_token_id) -> _Packed | None:
    """`packed` with all of the sequences, each in the first row it fits; None if one does not."""
    free, places = list(packed.free), list(packed.places)
    image_tokens, target_rows = packed.image_tokens, packed.target_rows
    for sequence in sorted(sequences, key=lambda sequence: -len(sequence.token_ids)):
        length = len(sequence.token_ids)
        row = next((row for row, room in enumerate(free) if room >= length), None)
        if row is None:
            return None
        places.append(_Place(row, shape.row_length - free[row], sequence, advantage))
        free[row] -= length
        image_tokens += int((sequence.token_ids == image_token_id).sum())
        target_rows += -(-int(sequence.trained.sum()) // shape.target_length)
    if image_tokens > shape.image_tokens or target_rows > shape.target_rows:
        return None
    return _Packed(tuple(free), image_tokens, target_rows, tuple(places))


def _arrays(
    packed, shape, position_ids, page_features, feature_shape, image_token_id, pad_id
) -> PolicyBatch:
    batch = empty_batch(shape, feature_shape, pad_id)
    image_token, target_row = 0, 0
    # Row-major, because the model hands image features to image tokens in that order.
    ordered = sorted(packed.places, key=lambda place: (place.row, place.start))
    for segment, (row, start, sequence, advantage) in enumerate(ordered, start=1):
        where = slice(start, start + len(sequence.token_ids))
        batch.input_ids[row, where] = sequence.token_ids
        batch.segment_ids[row, where] = segment
        batch.position_ids[:, row, where] = position_ids(sequence.token_ids, sequence.pages)
        expected = int((sequence.token_ids == image_token_id).sum())
        features = [page_features(page) for page in sequence.pages]
        if sum(map(len, features)) != expected:
            raise ValueError(
                f"a sequence of trajectory {sequence.trajectory} has {expected} image tokens, but "
                f"its {len(features)} pages have {sum(map(len, features))} merged patches"
            )
        for page in features:
            batch.image_features[image_token : image_token + len(page)] = page
            image_token += len(page)
        trained = np.flatnonzero(sequence.trained)
        for chunk in np.split(
            trained, range(shape.target_length, len(trained), shape.target_length)
        ):
            batch.predictor[target_row, : len(chunk)] = row * shape.row_length + start + chunk - 1
            batch.targets[target_row, : len(chunk)] = sequence.token_ids[chunk]
            batch.mask[target_row, : len(chunk)] = True
            batch.old_log_probs[target_row, : len(chunk)] = sequence.old_log_probs[chunk]
            batch.advantages[target_row] = advantage
            batch.trajectory[target_row] = sequence.trajectory
            target_row += 1
    return batch
