"""Tables and curves of evaluated runs: the paper's Table 5, and what happened on the way.

Shares are in [0, 1] in JSON and in per cent where people read them.
"""

import collections
import csv
import dataclasses
import io
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.figure
import matplotlib.ticker

from awm_jax.evaluation.cells import CellSummary, summarize
from awm_jax.types import Question, Trajectory, Verdict

# The paper's three rows of Table 5.
VARIANTS = ("SFT", "+ Answer-GRPO", "+ AWM-GRPO")
COLUMNS = (
    "Variant",
    "N",
    "Final acc. (%)",
    "Mem acc. (%)",
    "MMC / correct",
    "P_mmc (%)",
    "95 % interval",
    "No judgement",
)
Rows = Sequence[tuple[str, CellSummary]]


@dataclasses.dataclass(frozen=True)
class Caption:
    """Where the numbers of a table come from; no table is written without it.

    Attributes:
      dataset: name, split and hash of the questions.
      scorer: name and mode of the scorer, and how answers were extracted.
      step_budget: most steps a rollout may take, None where that is not known.
      seed: of the rollouts, likewise.
      questions: how many were asked.
      details: what else tells the run apart: commit, prompts, embedder, reader.
    """

    dataset: str
    scorer: str
    step_budget: int | None
    seed: int | None
    questions: int
    details: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"{self.dataset}, {self.questions:,} questions",
            f"scorer: {self.scorer}",
            *([f"step budget: {self.step_budget}"] if self.step_budget is not None else []),
            *([f"seed: {self.seed}"] if self.seed is not None else []),
            *(f"{name}: {value}" for name, value in self.details.items()),
        ]
        return (
            "; ".join(parts)
            + ". Accuracies are mean scores; P_mmc counts any positive score as right and has a "
            "95 % Wilson interval. Rollouts without a judgement are in no other column."
        )


def percent(share: float) -> str:
    """One decimal, as the paper prints it; a dash where there is no share."""
    return "\u2013" if math.isnan(share) else f"{100 * share:.1f}"


def cells_of_row(variant: str, summary: CellSummary) -> tuple[str, ...]:
    """The row's texts, one a column of `COLUMNS`."""
    low, high = summary.p_mmc_interval
    return (
        variant,
        f"{summary.total:,}",
        percent(summary.final_acc),
        percent(summary.mem_acc),
        f"{summary.missing_correct} / {summary.correct}",
        percent(summary.p_mmc),
        f"[{percent(low)}, {percent(high)}]",
        str(summary.invalid),
    )


def to_markdown(rows: Rows, caption: Caption) -> str:
    """A pipe table with the caption above."""
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1))]
    lines += [cells_of_row(variant, summary) for variant, summary in rows]
    escaped = (
        " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) for line in lines
    )
    return f"{caption}\n\n" + "".join(f"| {line} |\n" for line in escaped)


def _record(variant: str, summary: CellSummary) -> dict[str, Any]:
    low, high = summary.p_mmc_interval
    record = {
        "variant": variant,
        "n": summary.total,
        **dataclasses.asdict(summary),
        "final_rate": summary.final_rate,
        "mem_rate": summary.mem_rate,
        "p_mmc": summary.p_mmc,
        "p_mmc_low": low,
        "p_mmc_high": high,
    }
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in record.items()
    }


def to_csv(rows: Rows, caption: Caption) -> str:
    """One line a row with all counts and shares; the caption's fields are columns of each."""
    fields = {key: value for key, value in dataclasses.asdict(caption).items() if key != "details"}
    records = [
        _record(variant, summary) | fields | dict(caption.details) for variant, summary in rows
    ]
    return csv_text(records)


def to_json(rows: Rows, caption: Caption) -> str:
    """`{"caption": {...}, "rows": [{...}]}`; null where a share is of nothing."""
    table = {
        "caption": dataclasses.asdict(caption),
        "rows": [_record(variant, summary) for variant, summary in rows],
    }
    return json_text(table)


def write_tables(
    folder: str | pathlib.Path, name: str, rows: Rows, caption: Caption
) -> list[pathlib.Path]:
    """Writes `<name>.md`, `.csv` and `.json` into the folder; returns where."""
    texts = {"md": to_markdown, "csv": to_csv, "json": to_json}
    return write_texts(folder, name, {key: text(rows, caption) for key, text in texts.items()})


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line a record; all records have the fields of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]) if records else [])
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def json_text(content: Mapping[str, Any]) -> str:
    """Indented JSON; ValueError for a number that JSON does not have."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_texts(
    folder: str | pathlib.Path, name: str, texts: Mapping[str, str]
) -> list[pathlib.Path]:
    """Writes `<name>.<suffix>` for each suffix and its text; returns where."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        # As it is: CSV has its own ends of lines.
        path.write_text(text, encoding="utf-8", newline="")
    return paths


def evidence_group(question: Question) -> str:
    """The question's row in the paper's Table 7, an exclusive partition by evidence sources.

    The paper names the groups and gives five counts (Pure-text 135, Table 143, Chart 107,
    Figure 187, Layout 32), which fit questions with exactly one kind of source. How it divides
    the others between "text-multi" and "mixed visual+text" is our reading.
    """
    sources = {
        source.split(" (")[0].replace("Generalized-text", "Layout")
        for source in question.evidence_sources
    }
    if not sources:
        return "none"
    if len(sources) == 1:
        return next(iter(sources))
    return "text-multi" if sources <= {"Pure-text", "Layout", "Table"} else "mixed visual+text"


def summarize_groups(
    judged: Iterable[tuple[Trajectory, Verdict]],
    group: Callable[[Question], str] = evidence_group,
) -> list[tuple[str, CellSummary]]:
    """A row a group, largest first."""
    groups = collections.defaultdict(list)
    for trajectory, verdict in judged:
        groups[group(trajectory.question)].append(verdict)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(name, summarize(verdicts)) for name, verdicts in ordered]


# Panel title, and the two lists of metrics whose sums' ratio it shows; no list: divide by one.
_PANELS = (
    (r"$P_{\mathrm{mmc}}$ (lower is better)", ("cells/10",), ("cells/11", "cells/10")),
    ("Memory-only accuracy", ("cells/11", "cells/01"), ()),
    ("Answer accuracy", ("cells/11", "cells/10"), ()),
    ("Groups without spread", ("frac_reward_zero_std",), ()),
)
# Okabe and Ito's colours, told apart with colour-blind eyes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def _smoothed_ratio(over: Sequence[float], under: Sequence[float], window: int) -> list[float]:
    """Ratio of the sums over the last `window` steps; nan where there is nothing below."""
    ratios = []
    for end in range(1, len(over) + 1):
        start = max(0, end - window)
        below = math.fsum(under[start:end])
        ratios.append(math.fsum(over[start:end]) / below if below else math.nan)
    return ratios


def write_curves(
    path: str | pathlib.Path,
    runs: Sequence[tuple[str, Sequence[Mapping[str, float]]]],
    *,
    title: str = "",
    window: int = 10,
) -> None:
    """Plots the cells of training rollouts against the step, a line a run, as a PNG.

    Args:
      path: where to.
      runs: name and metrics of each, one record a step with `step`, the four shares `cells/11`
        to `cells/00` and `frac_reward_zero_std`. Runs of one name share a colour (seeds).
      title: of the whole figure.
      window: steps that a line sums over before it divides; the steps themselves are dots.

    Raises:
      ValueError: there is no run, or one without a step.
    """
    if not runs or any(not records for _, records in runs):
        raise ValueError(f"found runs {[(n, len(r)) for n, r in runs]}, expected steps in each")
    colours = dict(zip(dict.fromkeys(name for name, _ in runs), _COLOURS, strict=False))
    if len(colours) < len({name for name, _ in runs}):
        raise ValueError(f"more than {len(_COLOURS)} names of runs; plot fewer at a time")
    figure = matplotlib.figure.Figure(figsize=(10.5, 6.4), layout="constrained", dpi=130)
    panels = figure.subplots(2, 2, sharex=True)
    for axes, (name, over, under) in zip(panels.flat, _PANELS, strict=True):
        labelled = set()
        for run, records in runs:
            steps = [record["step"] for record in records]
            above = [math.fsum(record[metric] for metric in over) for record in records]
            below = [math.fsum(r[m] for m in under) if under else 1.0 for r in records]
            colour = colours[run]
            axes.plot(
                steps, _smoothed_ratio(above, below, 1), ".", color=colour, alpha=0.28, ms=4, mew=0
            )
            axes.plot(
                steps,
                _smoothed_ratio(above, below, window),
                color=colour,
                lw=2,
                label=None if run in labelled else run,
            )
            labelled.add(run)
        axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axes.grid(axis="y", color="#dddddd", lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#999999")
        axes.tick_params(color="#999999", labelcolor="#333333")
    for axes in panels[-1]:
        axes.set_xlabel("step")
    figure.legend(
        *panels.flat[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(colours),
        frameon=False,
    )
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    figure.savefig(path, format="png")
