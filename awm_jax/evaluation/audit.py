"""Audits beside the numbers: what memories cite and copy, what the scoring mode changes, and a
sample of scored examples for people to check (the paper, appendices B and D.4).
"""

import csv
import dataclasses
import hashlib
import io
import math
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rapidfuzz.distance import Levenshtein

from awm_jax.evaluation import statistics
from awm_jax.evaluation.cells import CELLS, cell, wilson_interval
from awm_jax.types import Question, Trajectory, Verdict

Judged = Sequence[tuple[Trajectory, Verdict]]
_ANSWER_IS = re.compile(r"^(?:the )?(?:final |correct )?answer (?:is |was |to the question is )?")
# A finding this similar to the final answer is that answer and no note.
ECHO_SIMILARITY = 0.8


def mode_differences(
    judged: Judged,
    *,
    benchmark: ModuleType,
    extract: Callable[[Sequence[tuple[Question, str]]], Sequence[str | None]] | None = None,
) -> str:
    """How many answers the two modes of the rule scorer score differently, in words.

    Args:
      judged: rollouts with their verdicts; those without a judgement are left out.
      benchmark: `judging.mmlongbench` or `judging.longdocurl`.
      extract: what made the answers short; None where they are.
    """
    items = [
        (trajectory.question, answer)
        for trajectory, verdict in judged
        if not verdict.error
        for answer in (trajectory.final_answer, verdict.memory_answer)
        if answer
    ]
    answers = [answer for _, answer in items]
    short_answers = extract(items) if items and extract is not None else answers
    changed = turned = 0
    for (question, _), short in zip(items, short_answers, strict=True):
        if short is not None:
            official, strict = (
                benchmark.score(question.answer, short, question.answer_format, mode=mode)
                for mode in ("official", "strict")
            )
            changed += official != strict
            turned += (official > 0) != (strict > 0)
    return f"{changed:,} of {len(items):,} ({turned:,} between right and wrong)"


def normalized(text: object) -> str:
    """Lower-case words with single spaces; punctuation is a space, but inside of a number."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", str(text).lower())
    return " ".join(re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", text))


def contains(text: str, part: object) -> bool:
    """Whether the words of `part` stand in `text` one after the other; nothing is in nothing."""
    part = normalized(part)
    return bool(part) and f" {part} " in f" {normalized(text)} "


@dataclasses.dataclass(frozen=True)
class ArtifactAudit:
    """What terminal memories cite and copy. It tells nothing about whether a page entails a note.

    Attributes:
      memories: how many have a finding.
      empty: how many have none.
      with_gold_pages: memories with a finding of questions whose gold pages are known.
      citing_gold: of those, how many cite at least one gold page.
      citing_only_gold: of those, how many cite gold pages alone.
      findings: of all memories.
      echoes: findings that are the final answer and little else.
      memories_echoing: memories that hold such a finding.
      with_gold_answer: memories that hold the gold answer's words one after the other.
      filtered: what the answer-string filter leaves: memories without them, empty ones included.
      filtered_positive: of those, how many a reader answered from with a positive score.
    """

    memories: int
    empty: int
    with_gold_pages: int
    citing_gold: int
    citing_only_gold: int
    findings: int
    echoes: int
    memories_echoing: int
    with_gold_answer: int
    filtered: int
    filtered_positive: int

    @property
    def filtered_rate(self) -> float:
        """The paper's is 98 / 304 for memories by GPT-4o; no estimate for the full set."""
        return self.filtered_positive / self.filtered if self.filtered else math.nan

    @property
    def echo_rate(self) -> float:
        return self.echoes / self.findings if self.findings else math.nan

    @property
    def filtered_interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of `filtered_rate`."""
        return wilson_interval(self.filtered_positive, self.filtered)


def is_echo(finding: str, final_answer: str) -> bool:
    """Whether a finding mirrors the final answer ("The answer is 42."; the paper, C.3)."""
    finding = _ANSWER_IS.sub("", normalized(finding))
    answer = normalized(final_answer)
    return bool(answer) and (Levenshtein.normalized_similarity(finding, answer) >= ECHO_SIMILARITY)


def artifact_audit(judged: Judged) -> ArtifactAudit:
    """Audits all rollouts that have a judgement."""
    judged = [(trajectory, verdict) for trajectory, verdict in judged if not verdict.error]
    count = dict.fromkeys((field.name for field in dataclasses.fields(ArtifactAudit)), 0)
    for trajectory, verdict in judged:
        question, memory = trajectory.question, trajectory.memory
        pages = {finding.source_page for finding in memory.findings}
        gold = set(question.evidence_pages)
        echoes = sum(is_echo(f.text, trajectory.final_answer) for f in memory.findings)
        texts = "\n".join(finding.text for finding in memory.findings)
        holds_answer = contains(texts, question.answer)
        count["memories"] += bool(pages)
        count["empty"] += not pages
        if gold and pages:
            count["with_gold_pages"] += 1
            count["citing_gold"] += bool(pages & gold)
            count["citing_only_gold"] += pages <= gold
        count["findings"] += len(memory.findings)
        count["echoes"] += echoes
        count["memories_echoing"] += echoes > 0
        count["with_gold_answer"] += holds_answer
        count["filtered"] += not holds_answer
        count["filtered_positive"] += not holds_answer and verdict.memory_answerable
    return ArtifactAudit(**count)


# Columns of the sheet that people fill in; the last two are theirs.
SHEET = (
    "example",
    "question_id",
    "rollout",
    "document",
    "question",
    "gold",
    "answer_format",
    "which",
    "answer",
    "score",
    "human_correct",
    "comment",
)


def audit_sheet(judged: Judged, *, seed: int, count: int = 100) -> str:
    """A CSV sheet of scored answers for people to check: half final, half memory-only.

    Examples are drawn evenly from the four cells as far as they go, by a hash of the seed, so
    that the sheet does not depend on the order of the rollouts. The cell is not shown.
    """
    groups: dict[Any, list] = {key: [] for key in CELLS}
    for trajectory, verdict in judged:
        if not verdict.error:
            groups[cell(verdict)].append((trajectory, verdict))

    def drawn(pair: tuple[Trajectory, Verdict]) -> str:
        question = pair[0].question
        key = f"{seed}\0{question.document}\0{question.id}\0{pair[0].rollout}"
        return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()

    queues = [sorted(group, key=drawn) for group in groups.values()]
    chosen = [
        queue[place]
        for place in range(max(map(len, queues), default=0))
        for queue in queues
        if place < len(queue)
    ][:count]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(SHEET)
    for number, (trajectory, verdict) in enumerate(sorted(chosen, key=drawn), start=1):
        final = number % 2 == 1
        question = trajectory.question
        writer.writerow(
            _harmless(value)
            for value in (
                number,
                question.id,
                trajectory.rollout,
                question.document,
                question.text,
                question.answer,
                question.answer_format,
                "final" if final else "memory-only",
                trajectory.final_answer if final else verdict.memory_answer,
                f"{verdict.answer_score if final else verdict.memory_score:.4f}",
                "",
                "",
            )
        )
    return text.getvalue()


def _harmless(value: object) -> object:
    """Text that no spreadsheet takes for a formula."""
    if isinstance(value, int | float):
        return value
    text = str(value)
    # A number may keep its sign: it has to be readable as one.
    if text[:1] in "=+-@\t\r" and text and not re.fullmatch(r"[-+]?[\d.,]+\s?%?", text):
        return "'" + text
    return text


@dataclasses.dataclass(frozen=True)
class HumanAgreement:
    """People's marks against the scores, any positive one counting as right.

    Attributes:
      agree_right: both say right.
      agree_wrong: both say wrong.
      too_lenient: scored right, people say wrong.
      too_strict: scored wrong, people say right.
      unmarked: rows without a mark.
      disagreements: numbers of the examples on which they differ.
      kappa: Cohen's.
    """

    agree_right: int
    agree_wrong: int
    too_lenient: int
    too_strict: int
    unmarked: int
    disagreements: tuple[int, ...]
    kappa: float

    @property
    def marked(self) -> int:
        return self.agree_right + self.agree_wrong + self.too_lenient + self.too_strict


def human_agreement(sheet: str) -> HumanAgreement:
    """What a filled-in sheet of `audit_sheet` says.

    Raises:
      ValueError: a column is missing, or a mark is none of yes/no, 1/0, true/false, right/wrong.
    """
    rows = list(csv.DictReader(io.StringIO(sheet)))
    if rows and (missing := {"example", "score", "human_correct"} - set(rows[0])):
        raise ValueError(f"columns not there: {sorted(missing)}; found {list(rows[0])}")
    scored, marked, numbers, unmarked = [], [], [], 0
    for place, row in enumerate(rows, start=2):
        mark = (row["human_correct"] or "").strip().lower()
        if not mark:
            unmarked += 1
            continue
        if mark not in _MARKS:
            raise ValueError(f"line {place}: human_correct is {mark!r}, expected yes or no")
        scored.append(float(row["score"]) > 0)
        marked.append(_MARKS[mark])
        numbers.append(int(row["example"]))
    both = list(zip(scored, marked, strict=True))
    return HumanAgreement(
        agree_right=both.count((True, True)),
        agree_wrong=both.count((False, False)),
        too_lenient=both.count((True, False)),
        too_strict=both.count((False, True)),
        unmarked=unmarked,
        disagreements=tuple(n for n, (s, m) in zip(numbers, both, strict=True) if s != m),
        kappa=statistics.cohens_kappa(scored, marked),
    )


_MARKS = dict.fromkeys(("yes", "y", "1", "true", "right", "correct"), True)
_MARKS |= dict.fromkeys(("no", "n", "0", "false", "wrong", "incorrect"), False)
