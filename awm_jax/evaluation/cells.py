"""The four outcome cells and P_mmc (the paper, section 2, Table 1)."""

import dataclasses
import math
from collections.abc import Iterable

from awm_jax.types import Verdict

# (answer correct, memory answerable) -> the paper's name, in the order of its Table 1.
CELLS = {
    (True, True): "memory-supported correct",
    (True, False): "memory-missing correct",
    (False, True): "answering error",
    (False, False): "unresolved error",
}


def cell(verdict: Verdict) -> tuple[bool, bool]:
    """`(s_ans, s_mem)`: any positive score counts as right."""
    return verdict.answer_correct, verdict.memory_answerable


def wilson_interval(successes: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion, within [0, 1]; of nothing it is (0, 1).

    Args:
      successes: how many of `total`.
      total: number of trials.
      z: quantile of the normal distribution; 1.96 gives 95 %.

    Raises:
      ValueError: unless 0 <= successes <= total and z >= 0.
    """
    if not 0 <= successes <= total or z < 0:
        raise ValueError(
            f"found {successes} successes of {total} with z = {z}, "
            "expected 0 <= successes <= total and z >= 0"
        )
    if total == 0:
        return 0.0, 1.0
    share, spread = successes / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # The ends are exact at 0 and at 1, where rounding could leave the share outside.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return low, high


@dataclasses.dataclass(frozen=True)
class CellSummary:
    """What a set of judged rollouts amounts to. Shares are in [0, 1], nan where of nothing.

    Attributes:
      supported_correct: how many answered right with a memory that one can answer from (1,1).
      missing_correct: right, memory not answerable (1,0).
      answering_error: wrong, memory answerable (0,1).
      unresolved_error: both wrong (0,0).
      invalid: how many had no judgement; they are in none of the numbers beside.
      final_acc: mean score of the final answers, the official accuracy.
      mem_acc: mean score of the memory-only answers.
    """

    supported_correct: int
    missing_correct: int
    answering_error: int
    unresolved_error: int
    invalid: int
    final_acc: float
    mem_acc: float

    @property
    def total(self) -> int:
        """How many were judged."""
        return self.correct + self.answering_error + self.unresolved_error

    @property
    def correct(self) -> int:
        return self.supported_correct + self.missing_correct

    @property
    def answerable(self) -> int:
        return self.supported_correct + self.answering_error

    @property
    def final_rate(self) -> float:
        """Share of final answers with a positive score."""
        return _share(self.correct, self.total)

    @property
    def mem_rate(self) -> float:
        """Share of memory-only answers with a positive score."""
        return _share(self.answerable, self.total)

    @property
    def p_mmc(self) -> float:
        """Share of right answers whose memory one cannot answer from."""
        return _share(self.missing_correct, self.correct)

    @property
    def p_mmc_interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of `p_mmc`."""
        return wilson_interval(self.missing_correct, self.correct)


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


def summarize(judged: Iterable[Verdict]) -> CellSummary:
    """Counts the cells of all verdicts that are judgements and averages their scores."""
    judged = list(judged)
    valid = [verdict for verdict in judged if not verdict.error]
    count = dict.fromkeys(CELLS, 0)
    for verdict in valid:
        count[cell(verdict)] += 1
    return CellSummary(
        supported_correct=count[True, True],
        missing_correct=count[True, False],
        answering_error=count[False, True],
        unresolved_error=count[False, False],
        invalid=len(judged) - len(valid),
        final_acc=_share(math.fsum(v.answer_score for v in valid), len(valid)),
        mem_acc=_share(math.fsum(v.memory_score for v in valid), len(valid)),
    )
