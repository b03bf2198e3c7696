"""What `diagnose` writes, and where it may."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence

from awm_jax.evaluation import cells, foreign, report, statistics, tables
from awm_jax.types import Trajectory, Verdict


@dataclasses.dataclass(frozen=True)
class Run:
    """One file, judged.

    Attributes:
      name: as it is shown.
      entries: the records that could be read.
      left_out: those that could not.
      verdicts: one an entry, in order.
    """

    name: str
    entries: tuple[foreign.Entry, ...]
    left_out: tuple[foreign.Unreadable, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> list[tuple[Trajectory, Verdict]]:
        return [(e.trajectory, v) for e, v in zip(self.entries, self.verdicts, strict=True)]


def own_folder(paths: Sequence[pathlib.Path]) -> pathlib.Path:
    """The default folder of these files, named by their stems and marked as theirs.

    Raises:
      ValueError: it holds the results of other files whose names have the same stems.
    """
    out = pathlib.Path("runs") / "diagnose" / "-vs-".join(path.stem for path in paths)
    mark, inputs = out / "inputs.json", [str(path.resolve()) for path in paths]
    if mark.exists() and (found := json.loads(mark.read_text(encoding="utf-8"))) != inputs:
        raise ValueError(
            f"{out}: found the results of {', '.join(found)}, expected those of "
            f"{', '.join(inputs)}; name another folder with --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(inputs), encoding="utf-8")
    return out


def check_out(out: pathlib.Path, inputs: Iterable[pathlib.Path]) -> None:
    """Refuses a folder that is an input or holds one: results have names such as judged.jsonl.

    Raises:
      ValueError: it is, or one of its files is an input, by another name or a link as well.
    """
    there = [out, *out.iterdir()] if out.is_dir() else []
    inside = {
        str(path)
        for path in inputs
        if path.exists()
        for found in there
        if found.exists() and found.samefile(path)
    }
    if inside:
        raise ValueError(
            f"{out} is or holds the input {', '.join(sorted(inside))}, which a result could "
            "overwrite; name another folder with --out"
        )


def write_page(
    path: pathlib.Path,
    runs: Sequence[Run],
    rows: tables.Rows,
    caption: tables.Caption,
    *,
    title: str,
    changes: statistics.Comparison | None,
    document_folder: pathlib.Path | None,
) -> pathlib.Path:
    """The page of the last run, compared with the first where there are two; returns `path`.

    Args:
      path: where to.
      runs: one, or two.
      rows: of the table.
      caption: likewise.
      title: of the page; empty for the names of the runs.
      changes: from the first run to the second.
      document_folder: with the PDF files to show, None to show no pages.
    """
    left_out = [
        f"{run.name}, line {item.line}: {item.found}" for run in runs for item in run.left_out
    ]
    render = None
    if document_folder:
        # Imported where it is used: most runs have no documents beside them.
        from awm_jax.documents import pdf, workers

        names = {entry.trajectory.question.document for run in runs for entry in run.entries}
        documents, _ = pdf.open_documents(document_folder, sorted(names - {""}), run=workers.run)
        render = pdf.make_render(documents, dpi=96, max_pixels=1_000_000, run=workers.run)
    return report.write_report(
        path,
        runs[-1].judged,
        title=title or " \u2192 ".join(run.name for run in runs),
        provenance={"data": caption.dataset, "scorer": caption.scorer, **caption.details},
        rows=rows,
        render=render,
        left_out=left_out,
        before=(runs[0].name, runs[0].judged) if len(runs) == 2 else None,
        changes=changes,
    )


def write_records(out: pathlib.Path, run: Run, suffix: str) -> list[pathlib.Path]:
    """Every judgement, and every record that could not be read, one JSON object a line."""
    judged = out / f"judged{suffix}.jsonl"
    with open(judged, "w", encoding="utf-8") as file:
        for entry, verdict in zip(run.entries, run.verdicts, strict=True):
            trajectory = entry.trajectory
            line = {
                "line": entry.line,
                "id": trajectory.question.id,
                "rollout": trajectory.rollout,
                "cell": None if verdict.error else cells.CELLS[cells.cell(verdict)],
                "gold": trajectory.question.answer,
                "answer_format": trajectory.question.answer_format,
                "final_answer": trajectory.final_answer,
                **dataclasses.asdict(verdict),
            }
            file.write(json.dumps(line) + "\n")
    unreadable = out / f"unreadable{suffix}.jsonl"
    if not run.left_out:
        # Of an earlier run into the same folder.
        unreadable.unlink(missing_ok=True)
        return [judged]
    with open(unreadable, "w", encoding="utf-8") as file:
        for item in run.left_out:
            file.write(json.dumps(dataclasses.asdict(item)) + "\n")
    return [judged, unreadable]
