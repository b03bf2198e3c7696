"""The paper's tables from the records of evaluated runs, with the paper's numbers beside.

python -m awm_jax tables --full SFT=runs/sft/trajectories.jsonl \
    --full "+ Answer-GRPO=runs/answer/trajectories.jsonl" \
    --full "+ AWM-GRPO=runs/awm/trajectories.jsonl" --out runs/tables
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence

import ml_collections

from awm_jax.agent import records
from awm_jax.commands import display, provenance
from awm_jax.datasets import longdocurl, mmlongbench
from awm_jax.evaluation import audit, cells, longdocurl_report, paper
from awm_jax.evaluation.tables import Caption
from awm_jax.judging import extraction
from awm_jax.types import Trajectory, Verdict

Judged = list[tuple[Trajectory, Verdict]]
ANSWER_ONLY, AWM = "+ Answer-GRPO", "+ AWM-GRPO"
# Table 5's name -> Table 4's.
_AS_METHOD = {"SFT": "AWM-Agent (SFT)"}
_EPILOG = f"""\
A NAME is a row's label; the paper's own, "SFT", "{ANSWER_ONLY}" and "{AWM}", have its numbers
beside them. FILE holds the records of `evaluate` or of `train`'s evaluations.

  --full                 Table 5; Table 4; Table 7 where both trained variants are given
  --given                Table 6; Table 2 where a NAME is in --full as well
  --method --longdocurl  further rows of Table 4, and its column for LongDocURL
  --checkpoint           Figure 4, memory-only accuracy by training step
  --samples              MMLongBench-Doc's own report for each --full
  --longdocurl_questions LongDocURL's own report for each --longdocurl
  --audit_sheet          appendix B, the scores against people's marks

Tables 3, 8 and 9 are made by `controlled`.
"""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m awm_jax tables",
        description="Writes the paper's tables as Markdown, CSV and JSON.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, what in (
        ("full", "a run in the full multi-turn setting"),
        ("given", "a run with the gold pages given"),
        ("method", "a run on MMLongBench-Doc for Table 4 alone"),
        ("longdocurl", "a run on LongDocURL"),
    ):
        found.add_argument(f"--{name}", action="append", default=[], metavar="NAME=FILE", help=what)
    found.add_argument(
        "--checkpoint", action="append", default=[], metavar="STEP=FILE", help="of one training"
    )
    found.add_argument("--samples", type=pathlib.Path, help="MMLongBench-Doc's samples.json")
    found.add_argument(
        "--longdocurl_questions", type=pathlib.Path, help="LongDocURL's LongDocURL_public.jsonl"
    )
    found.add_argument(
        "--audit_sheet", type=pathlib.Path, help="an audit_sheet.csv of `diagnose`, filled in"
    )
    found.add_argument("--out", type=pathlib.Path, required=True, help="folder for the tables")
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except (ValueError, OSError) as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    given = {
        name: _read(name, getattr(arguments, name))
        for name in ("full", "given", "method", "longdocurl", "checkpoint")
    }
    if not any(given.values()) and not arguments.audit_sheet:
        raise ValueError("no records: name at least one of --full, --given and --checkpoint")
    summaries = {
        option: {label: cells.summarize(v for _, v in judged) for label, judged in runs.items()}
        for option, runs in given.items()
    }
    full, with_pages = summaries["full"], summaries["given"]
    found = []
    if full:
        found.append(paper.table5(list(full.items())))
    if with_pages:
        found.append(paper.table6(list(with_pages.items())))
    if both := [label for label in full if label in with_pages]:
        diagnosed = [("Full multi-turn", full[both[0]]), ("EP-given", with_pages[both[0]])]
        found.append(paper.table2(diagnosed))
    measured: dict[str, dict[str, cells.CellSummary]] = {}
    for option, benchmark in (
        ("full", "mmlongbench"),
        ("method", "mmlongbench"),
        ("longdocurl", "longdocurl"),
    ):
        for label, summary in summaries[option].items():
            measured.setdefault(_AS_METHOD.get(label, label), {})[benchmark] = summary
    if measured:
        found.append(paper.table4(measured))
    if {ANSWER_ONLY, AWM} <= given["full"].keys():
        found.append(paper.table7(given["full"][ANSWER_ONLY], given["full"][AWM]))
    steps = [(_step(label), summary) for label, summary in summaries["checkpoint"].items()]
    if steps:
        found.append(paper.figure4(steps))
    paths = []
    for table in found:
        paths += paper.write(arguments.out, table, _caption(arguments, given, both))
    if arguments.samples:
        _, report = mmlongbench.load(arguments.samples)
        for label, judged in given["full"].items():
            table = paper.official_report(_scored(judged), report.document_types)
            folder = arguments.out / "official_report" / label.strip("+ ")
            paths += paper.write(folder, table, _caption(arguments, {"full": {label: judged}}, []))
    if arguments.longdocurl_questions:
        _, report = longdocurl.load(arguments.longdocurl_questions)
        for label, judged in given["longdocurl"].items():
            scores = [(t.question.id, v.answer_score) for t, v in judged if not v.error]
            table = longdocurl_report.official_report(scores, report.groups)
            folder = arguments.out / "longdocurl_report" / label.strip("+ ")
            caption = _caption(arguments, {"longdocurl": {label: judged}}, [])
            paths += paper.write(folder, table, caption)
    if arguments.audit_sheet:
        # Spreadsheets put a byte order mark before the first column's name.
        agreement = audit.human_agreement(arguments.audit_sheet.read_text("utf-8-sig"))
        caption = Caption(
            dataset=str(arguments.audit_sheet),
            scorer="that of the sheet's scores",
            step_budget=None,
            seed=None,
            questions=agreement.marked + agreement.unmarked,
        )
        paths += paper.write(arguments.out, paper.agreement_table(agreement), caption)
    if steps:
        paths.append(arguments.out / "figure4.png")
        paper.plot_figure4(paths[-1], [("memory-only", steps)])
    display.show_files(paths)
    return 0


def _read(option: str, named: Sequence[str]) -> dict[str, Judged]:
    """The judged rollouts of each NAME=FILE.

    Raises:
      ValueError: one is not of this form, is given twice, or has no rollout with a verdict.
    """
    found: dict[str, Judged] = {}
    for text in named:
        # A label may hold "=", a path hardly.
        label, equals, path = text.rpartition("=")
        if not equals or not label or label in found:
            raise ValueError(f"--{option} {text!r}: expected NAME=FILE, and each NAME once")
        if not pathlib.Path(path).is_file():
            raise ValueError(f"--{option} {text!r}: no such file: {path}")
        found[label] = [
            (record.trajectory, record.verdict)
            for record in records.read_records(path)
            if record.verdict is not None
        ]
        if not found[label]:
            raise ValueError(f"--{option} {text!r}: found no rollout with a verdict")
    return found


def _step(label: str) -> int:
    if not label.isdecimal():
        raise ValueError(f"--checkpoint {label}=...: expected the training step, such as 40")
    return int(label)


def _scored(judged: Judged) -> list[tuple]:
    """(question, the answer as it was scored, score) of each rollout with a judgement."""
    items = [(t.question, t.final_answer, v) for t, v in judged if not v.error]
    return [
        (
            question,
            extraction.extract(answer, question.answer_format)
            if extraction.NAME in verdict.scorer
            else answer,
            verdict.answer_score,
        )
        for question, answer, verdict in items
    ]


def _caption(
    arguments: argparse.Namespace, given: Mapping[str, Mapping[str, Judged]], both: Sequence[str]
) -> Caption:
    judged = [pair for runs in given.values() for pairs in runs.values() for pair in pairs]
    facts = provenance.facts(ml_collections.ConfigDict({"out": str(arguments.out)}))
    files = [
        f"{option} {text}"
        for option in ("full", "given", "method", "longdocurl", "checkpoint")
        for text in getattr(arguments, option)
    ]
    return Caption(
        dataset="; ".join(files),
        scorer=", ".join(sorted({verdict.scorer for _, verdict in judged})),
        step_budget=None,
        seed=None,
        questions=len({(t.question.document, t.question.id) for t, _ in judged}),
        details={"commit": facts["commit"]} | ({"Table 2": both[0]} if both else {}),
    )
