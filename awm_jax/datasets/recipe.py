"""The paper's data recipe (section 4.1) as functions of records: no file, no model.

A subset of questions is drawn; a teacher and the policy answer them; trajectories for SFT are
drawn so that easy and hard questions are alike in number ("difficulty-balanced bucket sampling");
the questions that are left form the pool for RL, of which the groups are kept in which the policy
both succeeds and fails ("mixed-difficulty groups"). The paper gives the counts (2,000, 994, 1,006,
226) and no more: buckets, quotas and what counts as mixed are ours.

Everything is drawn by seed from sorted ids, so that it does not depend on the order of a file.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from awm_jax.types import ANSWERED, Question, Trajectory, Verdict

Judged = Iterable[tuple[Trajectory, Verdict]]
Item = TypeVar("Item")

# Upper ends of the buckets of solve rates, hardest first: never solved, up to a quarter, ...
EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)

# Kinds of overlap with an evaluation set.
SAME_NAME = "document of the same name"
SAME_FILE = "document with the same content"
SAME_TEXT = "question with the same words"
SIMILAR_TEXT = "question with mostly the same words"


@dataclasses.dataclass(frozen=True)
class SolveRate:
    """How often the policy answered a question right, of the rollouts that could be judged."""

    correct: int
    attempts: int

    @property
    def share(self) -> float:
        return self.correct / self.attempts

    @property
    def mixed(self) -> bool:
        """True where it was answered right and wrong."""
        return 0 < self.correct < self.attempts


def choose(items: Iterable[Item], count: int, *, seed: int, name=lambda item: item) -> list[Item]:
    """`count` of the items, drawn without regard to their order.

    Args:
      items: with names that differ.
      count: how many.
      seed: of the draw.
      name: item -> what it is sorted by.

    Raises:
      ValueError: there are fewer items.
    """
    ordered = sorted(items, key=name)
    if count > len(ordered):
        raise ValueError(f"asked for {count}, found {len(ordered)}")
    places = np.random.default_rng(seed).permutation(len(ordered))[:count]
    return [ordered[place] for place in sorted(places)]


def solve_rates(judged: Judged) -> dict[str, SolveRate]:
    """By question id; a question none of whose rollouts could be judged is not there."""
    counts: dict[str, list[bool]] = {}
    for trajectory, verdict in judged:
        if trajectory.valid and not verdict.error:
            counts.setdefault(trajectory.question.id, []).append(verdict.answer_correct)
    return {id: SolveRate(sum(right), len(right)) for id, right in counts.items()}


def bucket_of(rate: SolveRate, edges: Sequence[float] = EDGES) -> int:
    """The bucket that holds the rate: above the edge before it, up to its own."""
    return int(np.searchsorted(edges, rate.share))


def check_edges(edges: Sequence[float]) -> None:
    """`ValueError` unless the edges ascend within [0, 1] and end with 1."""
    ascending = all(low < high for low, high in zip(edges, edges[1:], strict=False))
    if not edges or not ascending or edges[0] < 0 or edges[-1] != 1:
        raise ValueError(f"edges {tuple(edges)}: expected them to ascend from 0 or more to 1")


def balanced_quotas(sizes: Sequence[int], count: int) -> list[int]:
    """How many to take from each bucket: as even as their sizes allow.

    A bucket that holds less than an even share gives all it has, and the others share what is
    left. What does not divide goes to the first buckets.

    Raises:
      ValueError: all buckets together hold less than `count`.
    """
    if count > sum(sizes):
        raise ValueError(f"asked for {count}, the buckets hold {list(sizes)}, {sum(sizes)} in all")
    quotas = [0] * len(sizes)
    for _ in range(count):
        # One at a time to the emptiest quota that can still grow.
        open_ones = [place for place, size in enumerate(sizes) if quotas[place] < size]
        quotas[min(open_ones, key=lambda place: (quotas[place], place))] += 1
    return quotas


def best_trajectories(judged: Judged) -> dict[str, Trajectory]:
    """The trajectory to teach of each question, by id: answered right and cleanest.

    Of several the one with the fewest violations is taken, then the shortest, then the first.
    Questions that were never answered right are not there.
    """
    best: dict[str, Trajectory] = {}

    def flaws(trajectory: Trajectory) -> tuple[int, int, int]:
        violations = sum(len(turn.violations) for turn in trajectory.turns)
        return violations, len(trajectory.turns), trajectory.rollout

    for trajectory, verdict in judged:
        if verdict.error or not verdict.answer_correct or trajectory.status != ANSWERED:
            continue
        id = trajectory.question.id
        if id not in best or flaws(trajectory) < flaws(best[id]):
            best[id] = trajectory
    return best


@dataclasses.dataclass(frozen=True)
class Split:
    """What the questions are used for.

    Attributes:
      sft: the trajectories to fine-tune on.
      pool: the questions for RL: all others that the policy's rollouts could be judged on.
      buckets: for each bucket, hardest first: how many questions could be taught, how many were
        taken.
      unjudged: ids of questions that are in neither, because no rollout could be judged.
    """

    sft: tuple[Trajectory, ...]
    pool: tuple[Question, ...]
    buckets: tuple[tuple[int, int], ...]
    unjudged: tuple[str, ...]


def split(
    questions: Sequence[Question],
    trajectories: Mapping[str, Trajectory],
    rates: Mapping[str, SolveRate],
    *,
    count: int,
    seed: int,
    edges: Sequence[float] = EDGES,
) -> Split:
    """Draws `count` trajectories, balanced over the buckets; what is left is the pool.

    Args:
      questions: all.
      trajectories: the one to teach, by question id, where there is one.
      rates: by question id, from the policy's own rollouts.
      count: of trajectories.
      seed: of the draw.
      edges: of the buckets.

    Raises:
      ValueError: fewer trajectories can be taught, or the edges are out of order.
    """
    check_edges(edges)
    teachable: list[list[str]] = [[] for _ in edges]
    for question in questions:
        if question.id in trajectories and question.id in rates:
            teachable[bucket_of(rates[question.id], edges)].append(question.id)
    quotas = balanced_quotas([len(ids) for ids in teachable], count)
    chosen = {
        id
        for place, (ids, quota) in enumerate(zip(teachable, quotas, strict=True))
        for id in choose(ids, quota, seed=_seed(seed, place))
    }
    rest = [question for question in questions if question.id not in chosen]
    return Split(
        sft=tuple(trajectories[q.id] for q in questions if q.id in chosen),
        pool=tuple(question for question in rest if question.id in rates),
        buckets=tuple((len(ids), quota) for ids, quota in zip(teachable, quotas, strict=True)),
        unjudged=tuple(question.id for question in rest if question.id not in rates),
    )


def mixed_questions(
    questions: Sequence[Question], rates: Mapping[str, SolveRate]
) -> list[Question]:
    """The questions that were answered both right and wrong: groups with a gradient."""
    return [q for q in questions if q.id in rates and rates[q.id].mixed]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """A question of ours and one of an evaluation set that have something in common."""

    kind: str
    question: str
    other: str
    found: str


def overlaps(
    questions: Sequence[Question],
    others: Sequence[Question],
    *,
    digests: Mapping[str, str],
    other_digests: Mapping[str, str],
    words: int = 5,
    most: float = 0.8,
) -> list[Overlap]:
    """What the questions have in common with those of an evaluation set.

    Equal words alone need not matter: "What is the title?" can be asked of any document.

    Args:
      questions: ours.
      others: the evaluation set's.
      digests, other_digests: of the documents' files, by id, as far as known.
      words: two questions are compared by their runs of so many words; shorter ones are the
        same or not.
      most: share of the shorter one's runs from which on they are called similar.

    Returns:
      The first overlap of each kind for each of our questions that has any.
    """
    by_name = {_stem(q.document): q for q in reversed(others)}
    by_file = {other_digests[q.document]: q for q in others if q.document in other_digests}
    by_text = {_words(q.text): q for q in reversed(others)}
    by_run: dict[tuple[str, ...], list[int]] = {}
    runs = [_runs(_words(other.text), words) for other in others]
    for place, own in enumerate(runs):
        for run in own:
            by_run.setdefault(run, []).append(place)
    found = []
    for question in questions:

        def note(kind: str, other: Question | None, what: str, id=question.id) -> None:
            if other is not None:
                found.append(Overlap(kind, id, other.id, what))

        digest, text = digests.get(question.document, ""), _words(question.text)
        note(SAME_NAME, by_name.get(_stem(question.document)), question.document)
        note(SAME_FILE, by_file.get(digest), digest)
        note(SAME_TEXT, by_text.get(text), question.text)
        if text not in by_text:
            own = _runs(text, words)
            shared: dict[int, int] = {}
            for run in own:
                for place in by_run.get(run, ()):
                    shared[place] = shared.get(place, 0) + 1
            near = [
                place
                for place, count in shared.items()
                if count >= most * min(len(own), len(runs[place]))
            ]
            if near:
                note(SIMILAR_TEXT, others[min(near)], question.text)
    return found


def _stem(document: str) -> str:
    """A document's name as far as it tells documents apart: case and ending do not."""
    return document.lower().removesuffix(".pdf")


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.casefold()))


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
