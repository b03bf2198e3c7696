"""What `diagnose` shows in the terminal: cells, P_mmc with its interval, examples, bad lines."""

import math
import re
from collections.abc import Sequence

import rich.box
import rich.console
import rich.panel
import rich.rule
import rich.table
import rich.text

from awm_jax.commands.display import console
from awm_jax.evaluation.cells import CELLS, CellSummary
from awm_jax.evaluation.foreign import Unreadable
from awm_jax.evaluation.statistics import Agreement, Change, Comparison
from awm_jax.evaluation.tables import COLUMNS, Caption, Rows, cells_of_row, percent
from awm_jax.types import Trajectory, Verdict

_COLOURS = {
    (True, True): "green",
    (True, False): "dark_orange",
    (False, True): "dodger_blue1",
    (False, False): "bright_black",
}
_WIDTH = 100
_BAR = 60
_MOST_LINES = 8
NO_NUMBER = "\u2013"
# Control characters but tab and line feed, directions of writing, halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _width() -> int:
    return min(_WIDTH, console.width)


def _print(*what: rich.console.RenderableType) -> None:
    for renderable in what:
        console.print(renderable, soft_wrap=False, width=_width())


def show_cells(title: str, summary: CellSummary, *, reader: str, extractor: str) -> None:
    """The four cells as a square, and P_mmc as a point on a bar with its interval."""
    counts = {
        (True, True): summary.supported_correct,
        (True, False): summary.missing_correct,
        (False, True): summary.answering_error,
        (False, False): summary.unresolved_error,
    }
    square = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_header=True, pad_edge=False)
    square.add_column("")
    square.add_column("memory answerable", justify="left", min_width=30)
    square.add_column("memory not answerable", justify="left", min_width=30)
    for answer, name in ((True, "answer right"), (False, "answer wrong")):
        row = [rich.text.Text(name, style="bold")]
        for memory in (True, False):
            count, colour = counts[answer, memory], _COLOURS[answer, memory]
            share = percent(count / summary.total) if summary.total else "\u2013"
            text = rich.text.Text.assemble(
                (f"{count:,}", f"bold {colour}"),
                (f"  {share} %\n", "dim"),
                (CELLS[answer, memory], colour),
            )
            row.append(text)
        square.add_row(*row)
        if answer:
            square.add_row("", "", "")
    low, high = summary.p_mmc_interval
    line = rich.text.Text.assemble(
        ("P_mmc ", "bold"),
        (f"{percent(summary.p_mmc)} %", "bold dark_orange"),
        (f"   95 % interval [{percent(low)}, {percent(high)}]", ""),
        (
            f"   {summary.missing_correct:,} of {summary.correct:,} right answers not in memory",
            "dim",
        ),
    )
    accuracy = rich.text.Text.assemble(
        ("final answers ", "dim"),
        (f"{percent(summary.final_acc)} %", "bold"),
        ("   memory only ", "dim"),
        (f"{percent(summary.mem_acc)} %", "bold"),
        ("   (mean scores)", "dim"),
    )
    made_by = rich.text.Text(f"reader: {reader}\nextractor: {extractor}", style="dim")
    parts: list = [square, line, _bar(summary.p_mmc, low, high), accuracy]
    if summary.invalid:
        parts.append(
            rich.text.Text(
                f"{summary.invalid:,} without a judgement, in none of the numbers", style="red"
            )
        )
    parts += [rich.text.Text(""), made_by]
    _print(
        rich.panel.Panel(
            rich.console.Group(*parts),
            title=rich.text.Text(f" {title} \u00b7 {summary.total:,} rollouts "),
            title_align="left",
            border_style="bright_black",
            padding=(0, 2),
        ),
        rich.text.Text(""),
    )


def _bar(value: float, low: float, high: float) -> rich.text.Text:
    """A line from 0 to 100 % with the interval drawn thick and the value as a point."""
    if math.isnan(value):
        return rich.text.Text("")
    places = [round(share * (_BAR - 1)) for share in (low, value, high)]
    bar = rich.text.Text("0 ", style="dim")
    for place in range(_BAR):
        if place == places[1]:
            bar.append("\u25cf", "bold dark_orange")
        elif places[0] <= place <= places[2]:
            bar.append("\u2501", "dark_orange")
        else:
            bar.append("\u2500", "bright_black")
    return bar.append(" 100 %", "dim")


def show_examples(judged: Sequence[tuple[Trajectory, Verdict]], most: int = 3) -> None:
    """Some right answers whose memory cannot answer: what the number is made of."""
    missing = [
        (trajectory, verdict)
        for trajectory, verdict in judged
        if not verdict.error and verdict.answer_correct and not verdict.memory_answerable
    ]
    if not missing:
        return
    shown = f"{min(most, len(missing))} of {len(missing):,}"
    heading = rich.text.Text(f"right answers that the memory does not hold, {shown}")
    _print(rich.rule.Rule(heading, align="left", style="bright_black"))
    for trajectory, verdict in missing[:most]:
        grid = rich.table.Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text, style in (
            ("question", trajectory.question.text, "bold"),
            ("memory", trajectory.memory.text, ""),
            ("final answer", trajectory.final_answer, "green"),
            ("memory only", verdict.memory_answer or "(none)", "dark_orange"),
        ):
            grid.add_row(name, rich.text.Text(_shorten(text), style=style))
        _print(grid, rich.text.Text(""))


def show_comparison(
    first: str, second: str, comparison: Comparison, moved: Sequence[tuple[str, str, int]]
) -> None:
    """Differences with their intervals, and the largest moves between cells.

    Args:
      first: name of the first run.
      second: of the second.
      comparison: the two on what both have.
      moved: names of the cell before and after, and how many rollouts moved so.
    """
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for column in ("(%)", first, second, "difference", "95 % interval", "p"):
        table.add_column(rich.text.Text(column), justify="left" if column == "(%)" else "right")
    for name, change, better in (
        ("final answers", comparison.final_acc, 1),
        ("memory only", comparison.mem_acc, 1),
        ("P_mmc", comparison.p_mmc, -1),
    ):
        table.add_row(name, *_change_cells(change, better))
    about = (
        f"{comparison.pairs:,} rollouts of {comparison.questions:,} questions in both runs; "
        f"{comparison.resamples:,} paired resamples of questions, seed {comparison.seed}"
    )
    if comparison.unpaired:
        about += f"; {comparison.unpaired:,} rollouts in one run only"
    if comparison.without_judgement:
        about += f"; {comparison.without_judgement:,} pairs without a judgement"
    parts = [table, rich.text.Text(about, style="dim")]
    if moved:
        parts.append(rich.text.Text("\nmoved between cells", style="bold"))
        parts += [
            rich.text.Text(f"{count:>6,}  {before} \u2192 {after}")
            for before, after, count in moved[:_MOST_LINES]
        ]
    _print(
        rich.panel.Panel(
            rich.console.Group(*parts),
            title=rich.text.Text(f" {first} \u2192 {second} "),
            title_align="left",
            border_style="bright_black",
            padding=(0, 2),
        ),
        rich.text.Text(""),
    )


def _change_cells(change: Change, better: int) -> list[rich.text.Text]:
    if math.isnan(change.low):
        dash = rich.text.Text("\u2013")
        return [rich.text.Text(percent(change.first)), rich.text.Text(percent(change.second))] + [
            dash
        ] * 3
    sure = change.low > 0 or change.high < 0
    style = ("green" if change.difference * better > 0 else "red") if sure else ""
    return [
        rich.text.Text(percent(change.first)),
        rich.text.Text(percent(change.second)),
        rich.text.Text(f"{100 * change.difference:+.1f}", style=f"bold {style}".strip()),
        rich.text.Text(f"[{100 * change.low:+.1f}, {100 * change.high:+.1f}]"),
        rich.text.Text("<0.001" if change.p_value < 0.001 else f"{change.p_value:.3f}"),
    ]


def show_agreement(title: str, agreement: Agreement, first: str, second: str) -> None:
    """How far two readers agree on which memories can be answered from."""
    kappa = NO_NUMBER if math.isnan(agreement.kappa) else f"{agreement.kappa:.2f}"
    lines = rich.text.Text.assemble(
        ("kappa ", "bold"),
        (kappa, "bold"),
        f"   they agree on {agreement.both + agreement.neither:,} of {agreement.total:,} memories",
        ("\nP_mmc ", "bold"),
        (" and ".join(f"{percent(value)} %" for value in agreement.p_mmc), "bold dark_orange"),
        (
            f"\nonly the first finds {agreement.only_first:,} answerable, only the second "
            f"{agreement.only_second:,}",
            "",
        ),
        (f"\n\nfirst: {first}\nsecond: {second}", "dim"),
    )
    _print(
        rich.panel.Panel(
            lines,
            title=rich.text.Text(f" {title}, read by two "),
            title_align="left",
            border_style="bright_black",
            padding=(1, 2),
        ),
        rich.text.Text(""),
    )


def show_left_out(path: str, left_out: Sequence[Unreadable]) -> None:
    """The records that could not be read, by line, and what was found in each."""
    if not left_out:
        return
    some = "record" if len(left_out) == 1 else "records"
    grid = rich.table.Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for item in left_out[:_MOST_LINES]:
        grid.add_row(f"line {item.line}", rich.text.Text(_shorten(item.found, 600)))
    if len(left_out) > _MOST_LINES:
        grid.add_row("", f"and {len(left_out) - _MOST_LINES:,} more, all in unreadable.jsonl")
    _print(
        rich.panel.Panel(
            grid,
            title=rich.text.Text(f" {path}: {len(left_out):,} {some} left out "),
            title_align="left",
            border_style="red",
            padding=(0, 2),
        )
    )


def show_rows(rows: Rows, caption: Caption) -> None:
    """The rows of the paper's Table 5, with what their numbers need beside them."""
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        caption=rich.text.Text(str(caption), style="dim"),
        caption_justify="left",
    )
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(rich.text.Text, cells_of_row(*row)))
    _print(table, rich.text.Text(""))


def _shorten(text: str, most: int = 300) -> str:
    """Text for the terminal: cut, and without what a terminal would obey or cannot encode."""
    text = _UNPRINTABLE.sub("\ufffd", text.strip())
    return text if len(text) <= most else f"{text[:most]}\u2026"
