"""How sure a difference is: paired bootstrap between runs, agreement between readers.

Runs are paired rollout by rollout and resampled question by question, so that several rollouts of
one question do not pass for as many questions.
"""

import collections
import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from awm_jax.evaluation.cells import CELLS, cell
from awm_jax.types import Trajectory, Verdict

Judged = Sequence[tuple[Trajectory, Verdict]]
_RESAMPLES_AT_ONCE = 500


@dataclasses.dataclass(frozen=True)
class Change:
    """A quantity in two runs. Shares are in [0, 1], nan where of nothing.

    Attributes:
      first: in the first run.
      second: in the second run.
      low: lower end of the 95 % percentile interval of the difference.
      high: upper end.
      p_value: two-sided, from the share of resamples on the other side of no difference.
    """

    first: float
    second: float
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        return self.second - self.first


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs on what both have.

    Attributes:
      final_acc: mean score of the final answers.
      mem_acc: mean score of the memory-only answers.
      p_mmc: share of right answers whose memory one cannot answer from.
      questions: how many were resampled.
      pairs: rollouts that both runs have a judgement of.
      unpaired: rollouts that only one run has.
      without_judgement: pairs left out since a run has no judgement.
      resamples: how many were drawn.
      seed: of the resampling.
    """

    final_acc: Change
    mem_acc: Change
    p_mmc: Change
    questions: int
    pairs: int
    unpaired: int
    without_judgement: int
    resamples: int
    seed: int


def pair(
    first: Judged, second: Judged
) -> tuple[list[tuple[Trajectory, Verdict, Trajectory, Verdict]], int]:
    """Rollouts of both runs by document, question and rollout, and how many have no partner."""

    def by_key(judged: Judged) -> dict[Hashable, tuple[Trajectory, Verdict]]:
        return {
            (t.question.document, t.question.id, t.rollout): (t, verdict) for t, verdict in judged
        }

    one, other = by_key(first), by_key(second)
    pairs = [(*one[key], *other[key]) for key in one if key in other]
    return pairs, len(one) + len(other) - 2 * len(pairs)


def paired_bootstrap(
    first: Judged, second: Judged, *, seed: int, resamples: int = 10_000
) -> Comparison:
    """Differences from the first run to the second, with percentile intervals.

    Args:
      first: one run; a question is told by its document and id.
      second: the other, on the same questions.
      seed: of the resampling.
      resamples: how many.

    Raises:
      ValueError: the runs have no judged rollout in common.
    """
    pairs, unpaired = pair(first, second)
    judged = [p for p in pairs if not (p[1].error or p[3].error)]
    if not judged:
        raise ValueError(
            f"found {len(first)} and {len(second)} rollouts, none of which both runs have a "
            "judgement of; they are paired by document, question id and rollout"
        )
    # Of a question: count, then score, memory score, right answers and missing memories a run.
    sums: dict[Hashable, np.ndarray] = collections.defaultdict(lambda: np.zeros(9))
    for trajectory, one, _, other in judged:
        question = (trajectory.question.document, trajectory.question.id)
        sums[question] += [1.0, *_of_verdict(one), *_of_verdict(other)]
    table = np.stack(list(sums.values()))
    whole = _quantities(table.sum(0))
    random = np.random.default_rng(seed)
    share = np.full(len(table), 1 / len(table))
    drawn = np.concatenate(
        [
            _quantities(
                random.multinomial(len(table), share, min(_RESAMPLES_AT_ONCE, resamples - done))
                @ table
            )
            for done in range(0, resamples, _RESAMPLES_AT_ONCE)
        ]
    )
    final_acc, mem_acc, p_mmc = (_change(whole[index], drawn[:, index]) for index in range(3))
    return Comparison(
        final_acc,
        mem_acc,
        p_mmc,
        questions=len(table),
        pairs=len(judged),
        unpaired=unpaired,
        without_judgement=len(pairs) - len(judged),
        resamples=resamples,
        seed=seed,
    )


def moves(first: Judged, second: Judged) -> list[tuple[str, str, int]]:
    """Cell before, cell after, and how many rollouts moved so, most first."""
    pairs, _ = pair(first, second)
    counts = collections.Counter(
        (CELLS[cell(one)], CELLS[cell(other)])
        for _, one, _, other in pairs
        if not (one.error or other.error) and cell(one) != cell(other)
    )
    return [(before, after, count) for (before, after), count in counts.most_common()]


def _of_verdict(verdict: Verdict) -> tuple[float, ...]:
    missing = verdict.answer_correct and not verdict.memory_answerable
    return verdict.answer_score, verdict.memory_score, verdict.answer_correct, missing


def _quantities(sums: np.ndarray) -> np.ndarray:
    """`[..., 9]` sums -> `[..., 3, 2]`: accuracy, memory accuracy, P_mmc; first run, second."""
    count = sums[..., :1]
    runs = np.stack([sums[..., 1:5], sums[..., 5:9]], axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        p_mmc = runs[..., 3, :] / runs[..., 2, :]
    return np.stack([runs[..., 0, :] / count, runs[..., 1, :] / count, p_mmc], axis=-2)


def _change(whole: np.ndarray, drawn: np.ndarray) -> Change:
    differences = drawn[:, 1] - drawn[:, 0]
    # A resample without a right answer has no P_mmc and says nothing about it.
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return Change(float(whole[0]), float(whole[1]), math.nan, math.nan, math.nan)
    low, high = np.quantile(differences, [0.025, 0.975])
    tail = min(np.sum(differences <= 0), np.sum(differences >= 0))
    p_value = min(1.0, 2 * (float(tail) + 1) / (len(differences) + 1))
    return Change(float(whole[0]), float(whole[1]), float(low), float(high), p_value)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """As JSON values; null where there is no number."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return None if isinstance(value, float) and math.isnan(value) else value

    return plain(dataclasses.asdict(comparison))


def cohens_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Agreement of two raters beyond chance: 1 is perfect, 0 is chance.

    nan where there is nothing, and where both give one and the same label to everything: then
    chance alone agrees.

    Raises:
      ValueError: the raters did not rate the same number of items.
    """
    if len(first) != len(second):
        raise ValueError(f"found {len(first)} and {len(second)} labels, expected as many")
    if not first:
        return math.nan
    total = len(first)
    agree = sum(one == other for one, other in zip(first, second, strict=True)) / total
    ones, others = collections.Counter(first), collections.Counter(second)
    chance = sum(ones[label] * others[label] for label in ones) / total**2
    return math.nan if chance == 1 else (agree - chance) / (1 - chance)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Two readers (or judges) on the same rollouts.

    Attributes:
      both: memories that both find answerable.
      only_first: those that only the first one does.
      only_second: those that only the second one does.
      neither: those that neither does.
      without_judgement: rollouts left out since one of them gave none.
      p_mmc: with the first reader and with the second.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    without_judgement: int
    p_mmc: tuple[float, float]

    @property
    def total(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def agreement(self) -> float:
        """Share of memories on which they agree, nan of none."""
        return (self.both + self.neither) / self.total if self.total else math.nan

    @property
    def kappa(self) -> float:
        """Cohen's kappa of the two."""
        labels = [(True, True)] * self.both + [(True, False)] * self.only_first
        labels += [(False, True)] * self.only_second + [(False, False)] * self.neither
        return cohens_kappa([one for one, _ in labels], [other for _, other in labels])


def reader_agreement(first: Judged, second: Judged) -> Agreement:
    """How far the diagnosis depends on the reader: the same rollouts, read by two.

    Raises:
      ValueError: the two are not of the same rollouts.
    """
    pairs, unpaired = pair(first, second)
    if unpaired:
        raise ValueError(f"{unpaired} rollouts were read by one reader only")
    judged = [(one, other) for _, one, _, other in pairs if not (one.error or other.error)]
    counts = collections.Counter(
        (one.memory_answerable, other.memory_answerable) for one, other in judged
    )
    sums = sum((np.array(_of_verdict(a) + _of_verdict(b)) for a, b in judged), np.zeros(8))
    with np.errstate(invalid="ignore", divide="ignore"):
        p_mmc = (float(np.divide(sums[3], sums[2])), float(np.divide(sums[7], sums[6])))
    return Agreement(
        both=counts[True, True],
        only_first=counts[True, False],
        only_second=counts[False, True],
        neither=counts[False, False],
        without_judgement=len(pairs) - len(judged),
        p_mmc=p_mmc,
    )
