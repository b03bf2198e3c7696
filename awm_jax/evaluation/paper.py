"""Every table of the paper in its own shape, our numbers beside the paper's.

The paper is arXiv 2608.25618v1. Its numbers stand here as printed; what does not fit together in
it is noted under the table that it concerns. Shares are in [0, 1] in JSON and CSV, in per cent in
Markdown.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.figure
import matplotlib.ticker

from awm_jax.evaluation.audit import ArtifactAudit, HumanAgreement
from awm_jax.evaluation.cells import CELLS, CellSummary, cell, summarize, wilson_interval
from awm_jax.evaluation.statistics import pair
from awm_jax.evaluation.tables import (
    Caption,
    csv_text,
    evidence_group,
    json_text,
    percent,
    summarize_groups,
    write_texts,
)
from awm_jax.types import Question, Trajectory, Verdict

Judged = Sequence[tuple[Trajectory, Verdict]]
Value = str | int | float | tuple | None

NOT_PRINTED = "\u2013"
# Where the paper contradicts itself or leaves open what a number means.
TWO_ACCURACIES = (
    "The paper prints two final accuracies for the same three variants on MMLongBench-Doc: "
    "49.2 / 51.6 / 53.9 in Table 4 and 40.8 / 43.2 / 45.4 in Table 5; it does not say why."
)
MEAN_OR_RATE = (
    "Table 2 calls 36.2 an official mean score; Table 8 prints the same 36.2 as the binary rate "
    "181 / 500. A mean over scores below 1 cannot exceed the binary rate, so both can hold only if "
    "every positive score is 1."
)
NO_IDS = (
    "The paper names neither the ids of its 500 and 733 questions nor the rule that chose them."
)
MULTI_IS_A_READING = (
    "Pure-text, Table, Chart, Figure and Layout are the questions with exactly that one source "
    "(counts as in the paper). How the paper divides the others is not stated; here text-multi "
    "are those with two or more of Pure-text, Layout and Table alone, and mixed visual+text all "
    "other ones, three of which have no text source."
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: key of its values, title, and kind.

    `kind` is "text", "count", "share" (in [0, 1]), "change" (signed share), "of" (part, whole) or
    "interval" (low, high).
    """

    key: str
    title: str
    kind: str = "share"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with the paper's numbers beside.

    Attributes:
      name: of the files, such as "table5".
      title: what it shows.
      columns: the first one labels the rows.
      rows: values by column key; one that is missing was not measured.
      paper: the paper's, by the row's label; shares in [0, 1].
      notes: what to know about the numbers.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]
    paper: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[str, ...]:
        """Keys of the columns of which the paper prints something."""
        printed = {key for row in self.paper.values() for key in row}
        return tuple(column.key for column in self.columns if column.key in printed)

    def of_paper(self, row: Mapping[str, Value]) -> Mapping[str, Value]:
        """The paper's values for a row of ours."""
        return self.paper.get(str(row[self.columns[0].key]), {})


def _text(value: Value, kind: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOT_PRINTED
    match kind:
        case "count":
            return f"{value:,}"
        case "share":
            return percent(value)
        case "change":
            return f"{100 * value:+.1f}"
        case "of":
            return f"{value[0]:,} / {value[1]:,}"
        case "interval":
            return f"[{percent(value[0])}, {percent(value[1])}]"
    return " ".join(str(value).split()).replace("|", "\\|")


def to_markdown(table: Table, caption: Caption) -> str:
    """Title, pipe table with a column for each of the paper's, notes, caption."""
    head, ruler = [], []
    for place, column in enumerate(table.columns):
        titles = [column.title] + ["paper"] * (column.key in table.compared)
        head += titles
        ruler += ["---" if place == 0 else "---:"] * len(titles)
    lines = [head, ruler]
    for row in table.rows:
        line = []
        for column in table.columns:
            line.append(_text(row.get(column.key), column.kind))
            if column.key in table.compared:
                line.append(_text(table.of_paper(row).get(column.key), column.kind))
        lines.append(line)
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = "".join(f"* {note}\n" for note in table.notes)
    return f"**{table.title}**\n\n{body}\n{notes}{chr(10) if notes else ''}{caption}\n"


def _flat(key: str, value: Value, kind: str) -> dict[str, Any]:
    names = {"of": ("part", "whole"), "interval": ("low", "high")}.get(kind)
    if names is None:
        return {key: None if isinstance(value, float) and math.isnan(value) else value}
    return {f"{key}_{n}": v for n, v in zip(names, value or (None, None), strict=True)}


def _record(table: Table, row: Mapping[str, Value]) -> dict[str, Any]:
    record = {}
    for column in table.columns:
        record |= _flat(column.key, row.get(column.key), column.kind)
    for column in table.columns:
        if column.key in table.compared:
            value = table.of_paper(row).get(column.key)
            record |= _flat(f"paper_{column.key}", value, column.kind)
    return record


def to_csv(table: Table, caption: Caption) -> str:
    """A line a row, the paper's values in columns of their own, the caption in the last one."""
    records = [_record(table, row) | {"caption": str(caption)} for row in table.rows]
    return csv_text(records)


def to_json(table: Table, caption: Caption) -> str:
    """`{"title", "caption", "rows", "notes"}`; null where there is no number."""
    content = {
        "title": table.title,
        "caption": dataclasses.asdict(caption),
        "rows": [_record(table, row) for row in table.rows],
        "notes": list(table.notes),
    }
    return json_text(content)


def write(folder: str | pathlib.Path, table: Table, caption: Caption) -> list[pathlib.Path]:
    """Writes `<name>.md`, `.csv` and `.json` into the folder; returns where."""
    texts = {"md": to_markdown, "csv": to_csv, "json": to_json}
    return write_texts(
        folder, table.name, {key: text(table, caption) for key, text in texts.items()}
    )


_DIAGNOSIS = (
    Column("n", "N", "count"),
    Column("final_acc", "Final-ans. acc. (%)"),
    Column("mem_acc", "Memory-only acc. (%)"),
    Column("mmc", "MMC / correct", "of"),
    Column("p_mmc", "P_mmc (%)"),
    Column("interval", "95 % interval", "interval"),
    Column("invalid", "No judgement", "count"),
)


def _diagnosis(label: str, name: str, summary: CellSummary) -> dict[str, Value]:
    return {
        label: name,
        "n": summary.total,
        "final_acc": summary.final_acc,
        "mem_acc": summary.mem_acc,
        "mmc": (summary.missing_correct, summary.correct),
        "p_mmc": summary.p_mmc,
        "interval": summary.p_mmc_interval,
        "invalid": summary.invalid,
    }


def table2(settings: Sequence[tuple[str, CellSummary]]) -> Table:
    """The diagnosis of an agent: rows "Full multi-turn" and "EP-given"."""
    return Table(
        "table2",
        "Table 2. Memory-quality diagnosis on 500 answerable MMLongBench-Doc questions",
        (Column("setting", "Setting", "text"), *_DIAGNOSIS),
        tuple(_diagnosis("setting", *row) for row in settings),
        {
            "Full multi-turn": _printed(500, 0.334, 0.274, (43, 172)),
            "EP-given": _printed(500, 0.362, 0.302, (77, 181)),
        },
        (MEAN_OR_RATE, NO_IDS),
    )


def _printed(n: int, final_acc: float, mem_acc: float, mmc: tuple[int, int]) -> dict[str, Value]:
    return {
        "n": n,
        "final_acc": final_acc,
        "mem_acc": mem_acc,
        "mmc": mmc,
        "p_mmc": mmc[0] / mmc[1],
    }


# Rows of Table 4: method -> backbone, parameters, paradigm, MMLongBench-Doc, LongDocURL.
_TABLE4 = {
    "Qwen2.5-VL": ("Qwen2.5-VL", "7B", "VLM", 0.280, 0.329),
    "SV-RAG": ("InternVL2", "4B", "RAG", 0.230, None),
    "M3DocRAG": ("Qwen2-VL", "7B", "RAG", 0.210, 0.351),
    "VisRAG": ("MiniCPM-V", "8B", "RAG", 0.188, 0.419),
    "MoLoRAG": ("Qwen2.5-VL", "7B", "RAG", 0.410, 0.519),
    "URaG-7B": ("Qwen2.5-VL", "7B", "RAG", 0.338, 0.522),
    "VRAG-RL": ("Qwen2.5-VL", "7B", "Agent + RL", 0.266, 0.449),
    "Doc-V* (SFT)": ("Qwen2.5-VL", "7B", "Agent + SFT", 0.398, 0.530),
    "Doc-V* (GRPO)": ("Qwen2.5-VL", "7B", "Agent + GRPO", 0.421, 0.563),
    "Qwen3-VL-4B (direct input)": ("Qwen3-VL", "4B", "VLM", 0.435, None),
    "VLM + RAG Top-3 (no memory)": ("Qwen3-VL", "4B", "RAG", 0.458, 0.482),
    "AWM-Agent (SFT)": ("Qwen3-VL", "4B", "Agent + SFT", 0.492, 0.557),
    "+ Answer-GRPO": ("Qwen3-VL", "4B", "GRPO", 0.516, 0.574),
    "+ AWM-GRPO": ("Qwen3-VL", "4B", "GRPO", 0.539, 0.601),
}


def table4(measured: Mapping[str, Mapping[str, CellSummary]]) -> Table:
    """Final accuracy: method -> benchmark ("mmlongbench", "longdocurl") -> what was measured.

    Methods of the paper keep its order and stay without a number of ours where there is none;
    other ones follow.
    """
    rows = []
    for method in dict.fromkeys([*_TABLE4, *measured]):
        backbone, size, paradigm = _TABLE4.get(method, ("", "", ""))[:3]
        row = {"method": method, "backbone": backbone, "param": size, "paradigm": paradigm}
        for benchmark, summary in measured.get(method, {}).items():
            row[benchmark] = summary.final_acc
        rows.append(row)
    return Table(
        "table4",
        "Table 4. Final-answer accuracy; rows above the five Qwen3-VL-4B ones as their own papers "
        "report them",
        (
            Column("method", "Method", "text"),
            Column("backbone", "Backbone", "text"),
            Column("param", "Param", "text"),
            Column("paradigm", "Paradigm", "text"),
            Column("mmlongbench", "MMLongBench-Doc (%)"),
            Column("longdocurl", "LongDocURL (%)"),
        ),
        tuple(rows),
        {
            method: {"mmlongbench": values[3], "longdocurl": values[4]}
            for method, values in _TABLE4.items()
        },
        (
            TWO_ACCURACIES,
            "External rows use other backbones, protocols and in part other scorers; MoLoRAG "
            "scores with a modified copy of the official rules.",
        ),
    )


def table5(variants: Sequence[tuple[str, CellSummary]]) -> Table:
    """Memory quality of the variants in the full setting: "SFT", "+ Answer-GRPO", "+ AWM-GRPO"."""
    return Table(
        "table5",
        "Table 5. Memory quality, full multi-turn",
        (Column("variant", "Variant", "text"), *_DIAGNOSIS),
        tuple(_diagnosis("variant", *row) for row in variants),
        {
            "SFT": {"n": 1082, "final_acc": 0.408, "mem_acc": 0.385, "p_mmc": 0.177},
            "+ Answer-GRPO": {"n": 1082, "final_acc": 0.432, "mem_acc": 0.425, "p_mmc": 0.199},
            "+ AWM-GRPO": {"n": 1082, "final_acc": 0.454, "mem_acc": 0.445, "p_mmc": 0.172},
        },
        (TWO_ACCURACIES, "The paper's numbers are of MMLongBench-Doc, whatever ours are of."),
    )


def table6(variants: Sequence[tuple[str, CellSummary]]) -> Table:
    """Memory quality with the gold pages given: "+ Answer-GRPO" and "+ AWM-GRPO"."""
    return Table(
        "table6",
        "Table 6. Memory quality, EP-given",
        (Column("variant", "Variant", "text"), *_DIAGNOSIS),
        tuple(_diagnosis("variant", *row) for row in variants),
        {
            "+ Answer-GRPO": {"n": 733, "final_acc": 0.454, "mem_acc": 0.412, "p_mmc": 0.191},
            "+ AWM-GRPO": {"n": 733, "final_acc": 0.480, "mem_acc": 0.435, "p_mmc": 0.164},
        },
        (NO_IDS,),
    )


# Table 7: source -> N, final accuracy and P_mmc of answer-only and AWM; the last three rows'
# P_mmc of two is in the text of section 4.3 alone.
_TABLE7 = {
    "Pure-text": (135, 0.461, 0.585, 0.228, 0.231),
    "Table": (143, 0.367, 0.395, 0.152, 0.239),
    "Chart": (107, 0.457, 0.460, 0.214, 0.175),
    "Figure": (187, 0.410, 0.439, 0.203, 0.162),
    "Layout": (32, 0.759, 0.743, 0.048, 0.158),
}


def table7(answer_only: Judged, awm: Judged) -> Table:
    """The two trained variants by evidence source, an exclusive partition."""
    groups = [dict(summarize_groups(run)) for run in (answer_only, awm)]
    order = (*_TABLE7, "text-multi", "mixed visual+text", "none")
    names = dict.fromkeys([*order, *sorted({name for group in groups for name in group})])
    rows = []
    for name in names:
        ans, ours = (group.get(name) for group in groups)
        if ans is None and ours is None:
            continue
        row: dict[str, Value] = {"source": name, "n": (ours or ans).total}
        for label, summary in (("ans", ans), ("awm", ours)):
            if summary is not None:
                row |= {f"final_{label}": summary.final_acc, f"p_mmc_{label}": summary.p_mmc}
                row[f"mmc_{label}"] = (summary.missing_correct, summary.correct)
        rows.append(row)
    keys = ("n", "final_ans", "final_awm", "p_mmc_ans", "p_mmc_awm")
    return Table(
        "table7",
        "Table 7. By evidence source, full multi-turn",
        (
            Column("source", "Source", "text"),
            Column("n", "N", "count"),
            Column("final_ans", "Final acc., Ans (%)"),
            Column("final_awm", "Final acc., AWM (%)"),
            Column("p_mmc_ans", "P_mmc, Ans (%)"),
            Column("p_mmc_awm", "P_mmc, AWM (%)"),
            Column("mmc_ans", "MMC / correct, Ans", "of"),
            Column("mmc_awm", "MMC / correct, AWM", "of"),
        ),
        tuple(rows),
        {name: dict(zip(keys, values, strict=True)) for name, values in _TABLE7.items()},
        (MULTI_IS_A_READING,),
    )


@dataclasses.dataclass(frozen=True)
class Controlled:
    """The same questions under three terminal memories; everything else is the same."""

    empty: Judged
    original: Judged
    improved: Judged


# The paper's names of the three conditions, in the order of its Tables 3 and 8.
CONDITIONS = ("Empty memory", "Original agent memory", "Improved memory")


def _conditions(controlled: Controlled) -> list[tuple[str, CellSummary]]:
    runs = (controlled.empty, controlled.original, controlled.improved)
    return [
        (name, summarize(verdict for _, verdict in run))
        for name, run in zip(CONDITIONS, runs, strict=True)
    ]


def table3(controlled: Controlled) -> Table:
    """Binary rates of final and memory-only answers under each memory."""
    return Table(
        "table3",
        "Table 3. Controlled memory comparison, EP-given",
        (
            Column("condition", "Memory condition", "text"),
            Column("n", "N", "count"),
            Column("final_rate", "Final-ans. binary rate (%)"),
            Column("mem_rate", "Memory-only binary rate (%)"),
        ),
        tuple(
            {
                "condition": name,
                "n": summary.total,
                "final_rate": summary.final_rate,
                "mem_rate": summary.mem_rate,
            }
            for name, summary in _conditions(controlled)
        ),
        {
            name: {"n": 500, "final_rate": final, "mem_rate": memory}
            for name, final, memory in zip(
                CONDITIONS, (0.028, 0.362, 0.444), (0.026, 0.302, 0.448), strict=True
            )
        },
        ("The paper's agent is Qwen3-VL-4B; GPT-4o wrote its improved memories.", NO_IDS),
    )


def table8(controlled: Controlled) -> Table:
    """Positive final answers with Wilson intervals under each memory."""

    def row(name: str, correct: int, total: int) -> dict[str, Value]:
        return {
            "condition": name,
            "correct": (correct, total),
            "rate": correct / total if total else math.nan,
            "interval": wilson_interval(correct, total),
        }

    return Table(
        "table8",
        "Table 8. Final-answer positive-score rate in the controlled comparison",
        (
            Column("condition", "Memory condition", "text"),
            Column("correct", "Correct / N", "of"),
            Column("rate", "Rate (%)"),
            Column("interval", "95 % Wilson CI (%)", "interval"),
        ),
        tuple(row(name, s.correct, s.total) for name, s in _conditions(controlled)),
        {
            name: row(name, correct, 500)
            for name, correct in zip(CONDITIONS, (14, 181, 222), strict=True)
        },
        (MEAN_OR_RATE, "The paper's intervals were computed anew from its counts; they agree."),
    )


def table9(controlled: Controlled) -> Table:
    """Memory-only answers by the outcome that the original memory had."""
    pairs, unpaired = pair(controlled.original, controlled.improved)
    judged = [(one, other) for _, one, _, other in pairs if not (one.error or other.error)]

    def row(name: str, n: int, before: int, after: int) -> dict[str, Value]:
        return {
            "outcome": name,
            "n": n,
            "before": before,
            "after": after,
            "change": f"{after - before:+d}",
            "points": (after - before) / n if n else math.nan,
        }

    rows = []
    for key, name in CELLS.items():
        inside = [(one, other) for one, other in judged if cell(one) == key]
        rows.append(
            row(
                name.capitalize(),
                len(inside),
                sum(one.memory_answerable for one, _ in inside),
                sum(other.memory_answerable for _, other in inside),
            )
        )
    sums = [sum(r[key] for r in rows) for key in ("n", "before", "after")]
    printed = [(104, 104, 88), (77, 0, 48), (47, 47, 29), (272, 0, 59)]
    paper = {r["outcome"]: row(r["outcome"], *v) for r, v in zip(rows, printed, strict=True)}
    left_out = len(pairs) - len(judged) + unpaired
    return Table(
        "table9",
        "Table 9. Memory-only correctness by the original agent's outcome",
        (
            Column("outcome", "Original outcome", "text"),
            Column("n", "N", "count"),
            Column("before", "Original memory correct", "count"),
            Column("after", "Improved memory correct", "count"),
            Column("change", "Change", "text"),
            Column("points", "pp", "change"),
        ),
        (*rows, row("Total", *sums)),
        paper | {"Total": row("Total", 500, 151, 224)},
        (f"{left_out} rollouts without a judgement or a partner are left out.",) * bool(left_out),
    )


def official_report(
    items: Sequence[tuple[Question, str, float]], document_types: Mapping[str, str]
) -> Table:
    """MMLongBench-Doc's own report (its eval/eval_score.py, `show_results`).

    Args:
      items: question, extracted answer as it was scored, score.
      document_types: of each document, as the loader's report has them.

    A question counts once for each of its sources, unlike in Table 7. F1's precision divides by
    answers that are not literally "Not answerable".
    """
    refused = "Not answerable"
    positive = [score for q, _, score in items if q.answer != refused]
    answered = sum(prediction != refused for _, prediction, _ in items)
    recall = sum(positive) / len(positive) if positive else 0.0
    precision = sum(positive) / answered if answered else 0.0
    f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0.0

    def row(group: str, scores: Sequence[float]) -> dict[str, Value]:
        accuracy = math.fsum(scores) / len(scores) if scores else math.nan
        return {"group": group, "n": len(scores), "accuracy": accuracy}

    def of(keep: Callable[[Question], bool]) -> list[float]:
        return [score for question, _, score in items if keep(question)]

    sources = dict.fromkeys(source for q, _, _ in items for source in q.evidence_sources)
    types = dict.fromkeys(document_types[q.document] for q, _, _ in items)
    rows = [
        row("Overall", of(lambda q: True)),
        {"group": "Overall F1", "n": len(items), "accuracy": f1},
        row("Single-page", of(lambda q: len(q.evidence_pages) == 1)),
        row("Cross-page", of(lambda q: len(q.evidence_pages) != 1 and q.answer != refused)),
        row("Unanswerable", of(lambda q: q.answer == refused)),
        *(row(f"Source: {s}", of(lambda q, s=s: s in q.evidence_sources)) for s in sources),
        *(row(f"Document: {t}", of(lambda q, t=t: document_types[q.document] == t)) for t in types),
    ]
    return Table(
        "official_report",
        "MMLongBench-Doc's official report",
        (
            Column("group", "Group", "text"),
            Column("n", "N", "count"),
            Column("accuracy", "Accuracy or F1 (%)"),
        ),
        tuple(rows),
        notes=(
            "Pages are counted after invalid and repeated ones were dropped; the official script "
            "counts them as they stand in the file.",
        ),
    )


def figure4(points: Sequence[tuple[int, CellSummary]]) -> Table:
    """Memory-only accuracy by checkpoint; `points` are (training step, what was measured)."""
    return Table(
        "figure4",
        "Figure 4. Memory-only accuracy by training step",
        (
            Column("step", "Step", "text"),
            Column("n", "N", "count"),
            Column("mem_acc", "Memory-only acc. (%)"),
            Column("final_acc", "Final acc. (%)"),
            Column("p_mmc", "P_mmc (%)"),
        ),
        tuple(
            {
                "step": step,
                "n": summary.total,
                "mem_acc": summary.mem_acc,
                "final_acc": summary.final_acc,
                "p_mmc": summary.p_mmc,
            }
            for step, summary in sorted(points, key=lambda point: point[0])
        ),
        {"40": {"mem_acc": 0.388}, "280": {"mem_acc": 0.435}},
        (
            "The paper prints its first and its last point; its last one, 43.5 at step 280, is not "
            "the 44.5 of Table 5.",
        ),
    )


def plot_figure4(
    path: str | pathlib.Path, runs: Sequence[tuple[str, Sequence[tuple[int, CellSummary]]]]
) -> None:
    """Plots memory-only accuracy against the training step, a line a run, as a PNG.

    Raises:
      ValueError: there is no point to plot.
    """
    if not any(points for _, points in runs):
        raise ValueError("found no checkpoint, expected at least one (step, summary)")
    figure = matplotlib.figure.Figure(figsize=(6.4, 3.8), layout="constrained", dpi=130)
    axes = figure.subplots()
    for name, points in runs:
        ordered = sorted(points, key=lambda point: point[0])
        axes.plot(
            [step for step, _ in ordered],
            [summary.mem_acc for _, summary in ordered],
            marker="o",
            lw=2,
            label=name,
        )
    axes.set_title("Memory-only accuracy", loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.grid(axis="y", color="#dddddd", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, format="png")


def artifact_table(audits: Sequence[tuple[str, ArtifactAudit]]) -> Table:
    """What memories cite and copy (the paper, D.4): a row a memory condition."""
    return Table(
        "artifact_audit",
        "Artifact audit of terminal memories",
        (
            Column("condition", "Memory condition", "text"),
            Column("citing_gold", "Cites a gold page", "of"),
            Column("citing_only_gold", "Cites gold pages alone", "of"),
            Column("filtered", "Answered, without the gold string", "of"),
            Column("filtered_rate", "Rate (%)"),
            Column("interval", "95 % interval", "interval"),
            Column("echo_rate", "Answer echoes / findings (%)"),
        ),
        tuple(
            {
                "condition": name,
                "citing_gold": (audit.citing_gold, audit.with_gold_pages),
                "citing_only_gold": (audit.citing_only_gold, audit.with_gold_pages),
                "filtered": (audit.filtered_positive, audit.filtered),
                "filtered_rate": audit.filtered_rate,
                "interval": audit.filtered_interval,
                "echo_rate": audit.echo_rate,
            }
            for name, audit in audits
        ),
        {
            "Improved memory": {
                "citing_gold": (500, 500),
                "filtered": (98, 304),
                "filtered_rate": 98 / 304,
            }
        },
        (
            "A cited page among the gold pages says nothing about whether the page entails the "
            "note.",
            "The string filter takes out memories that hold the gold answer's words one after the "
            "other; the rest is another set of questions, so its rate estimates nothing about all.",
        ),
    )


def agreement_table(agreement: HumanAgreement) -> Table:
    """The manual audit of scored examples against people's marks (the paper, appendix B)."""
    disagreements = agreement.too_lenient + agreement.too_strict
    return Table(
        "manual_audit",
        "Manual audit of scored answers",
        (
            Column("audit", "", "text"),
            Column("disagreements", "Disagreements", "of"),
            Column("too_lenient", "Scored right, people say wrong", "count"),
            Column("too_strict", "Scored wrong, people say right", "count"),
            Column("kappa", "Cohen's kappa", "text"),
        ),
        (
            {
                "audit": "scorer against people",
                "disagreements": (disagreements, agreement.marked),
                "too_lenient": agreement.too_lenient,
                "too_strict": agreement.too_strict,
                "kappa": NOT_PRINTED if math.isnan(agreement.kappa) else f"{agreement.kappa:.2f}",
            },
        ),
        {"scorer against people": {"disagreements": (6, 100)}},
        (f"{agreement.unmarked} rows were left unmarked.",) * bool(agreement.unmarked),
    )


def marginal_gap(summary: CellSummary) -> float:
    """`(n10 - n01) / N`: what final minus memory-only rate shows, and why it misleads.

    Both failures enter it with opposite signs and cancel (the paper, C.1); P_mmc does not.
    """
    if not summary.total:
        return math.nan
    return (summary.missing_correct - summary.answering_error) / summary.total


def source_counts(questions: Sequence[Question]) -> dict[str, int]:
    """How many questions each row of Table 7 has."""
    counts: dict[str, int] = {}
    for question in questions:
        group = evidence_group(question)
        counts[group] = counts.get(group, 0) + 1
    return counts
