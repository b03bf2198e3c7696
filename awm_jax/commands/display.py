"""What a run shows in the terminal: its plan, a line a step, and a bar where there is a tty."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import rich.console
import rich.progress
import rich.table
import rich.text

# Where there is no terminal to ask, lines are as long as the step table needs.
console = rich.console.Console(
    highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120
)

# Column title, metric, format.
STEP_COLUMNS = (
    ("step", "step", "{:>4.0f}"),
    ("reward", "reward", "{:+.3f}"),
    ("11", "cells/11", "{:.2f}"),
    ("10", "cells/10", "{:.2f}"),
    ("01", "cells/01", "{:.2f}"),
    ("00", "cells/00", "{:.2f}"),
    ("P_mmc", "p_mmc", "{:.2f}"),
    ("no spread", "frac_reward_zero_std", "{:.2f}"),
    ("entropy", "sampled_entropy", "{:.3f}"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("s", "seconds", "{:.1f}"),
)


def show_plan(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints what is going to happen, one line a part."""
    table = rich.table.Table(title=title, title_justify="left", box=None, show_header=False)
    for name, value in rows:
        table.add_row(rich.text.Text(name, style="bold"), rich.text.Text(value))
    console.print(table)


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Says what is being done and, at the end, how long it took."""
    start = time.monotonic()
    with console.status(what) if console.is_terminal else contextlib.nullcontext():
        yield
    console.print(rich.text.Text(f"{what}: {time.monotonic() - start:.1f} s"))


@contextlib.contextmanager
def steps(title: str, total: int, done: int) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Yields a function that prints one step's metrics as a line and moves the bar on."""
    console.print(rich.text.Text(title, style="bold"))
    console.print(rich.text.Text("  ".join(f"{title:>9}" for title, _, _ in STEP_COLUMNS)))
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(title, total=total, completed=done)

        def show(metrics: Mapping[str, float]) -> None:
            # A step whose groups all lack spread has no update to speak of.
            cells = (
                form.format(metrics[name]) if name in metrics else "-"
                for _, name, form in STEP_COLUMNS
            )
            console.print(rich.text.Text("  ".join(f"{cell:>9}" for cell in cells)))
            bar.advance(task)

        yield show


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    """Prints a finished table with what its numbers need beside them."""
    table = rich.table.Table(*columns, caption=caption, caption_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table, soft_wrap=False)


def show_files(paths: Sequence[pathlib.Path]) -> None:
    """Prints where the results lie."""
    for path in paths:
        console.print(rich.text.Text(f"wrote {path}"))
