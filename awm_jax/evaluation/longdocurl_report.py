"""LongDocURL's own report: tasks, kinds of element, counts of pages, and their combinations."""

import collections
import math
from collections.abc import Mapping, Sequence

from awm_jax.datasets.longdocurl import GROUPS
from awm_jax.evaluation.paper import Column, Table, Value


def official_report(
    items: Sequence[tuple[str, float]], groups: Mapping[str, Sequence[str]]
) -> Table:
    """The official report (utils/calculate_metrics_fine_grained.py of the benchmark).

    It divides the sum of a group's scores by the group's questions in the file, so that one
    without a score counts as 0 (its "rectified" accuracy). The mean of the scored ones stands
    beside it. A question with several rollouts counts by their mean.

    Args:
      items: question id and score in [0, 1] of each judged rollout.
      groups: of every question in the file, as the loader's report has them.

    Raises:
      ValueError: a scored question is not in the file.
    """
    rollouts = collections.defaultdict(list)
    for question, score in items:
        rollouts[question].append(score)
    if strangers := sorted(rollouts.keys() - groups.keys()):
        raise ValueError(
            f"{len(strangers)} scored questions are not in LongDocURL's file, such as "
            f"{strangers[0]!r}; expected records of questions from that file"
        )
    scores = {question: math.fsum(found) / len(found) for question, found in rollouts.items()}

    def row(group: str, members: Sequence[str]) -> dict[str, Value]:
        scored = [scores[question] for question in members if question in scores]
        total = math.fsum(scored)
        return {
            "group": group,
            "n": len(members),
            "scored": len(scored),
            "accuracy": total / len(members) if members else math.nan,
            "mean": total / len(scored) if scored else math.nan,
        }

    members = collections.defaultdict(list)
    for question, of_question in groups.items():
        for group in of_question:
            members[group].append(question)
    return Table(
        "longdocurl_report",
        "LongDocURL's official report",
        (
            Column("group", "Group", "text"),
            Column("n", "N", "count"),
            Column("scored", "Scored", "count"),
            Column("accuracy", "Accuracy (%)"),
            Column("mean", "Mean of the scored (%)"),
        ),
        (row("Overall", list(groups)), *(row(g, members[g]) for g in GROUPS if g in members)),
        notes=(
            "Accuracy counts a question without a score as 0. A question counts once for each "
            "time that a source is named in its record, in N as well.",
        ),
    )
