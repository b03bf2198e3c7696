"""Memory-only answerability of anybody's trajectories: cells, P_mmc, table, page.

python -m awm_jax diagnose TRAJECTORIES.jsonl --reader rule
python -m awm_jax diagnose TRAJECTORIES.jsonl --reader http://localhost:8000/v1
python -m awm_jax diagnose BEFORE.jsonl AFTER.jsonl --reader DIR
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Sequence

import ml_collections

from awm_jax.commands import diagnosis_files as files
from awm_jax.commands import display, judges, provenance, served
from awm_jax.commands.diagnosis_display import (
    show_agreement,
    show_cells,
    show_comparison,
    show_examples,
    show_left_out,
    show_rows,
)
from awm_jax.evaluation import audit, cells, foreign, paper, statistics, tables
from awm_jax.judging import longdocurl, mmlongbench, reader

_EXAMPLE = (
    '{"question": "What was the rate in 2020?", "gold": "4.7%", "final_answer": "4.7 %", '
    '"memory": ["The 2020 rate is 4.7 %."]}'
)
_EPILOG = f"""\
A record is one line of JSON. The least it needs:

  {_EXAMPLE}

Memory is a text, a list of texts, or a list of findings such as {{"page": 3, "text": "..."}};
null is an empty one. Optional: id, document, evidence_pages, evidence_sources, answer_format
(Int, Float, Str, List, None), status, error, memory_answer. Chat logs work as well: "messages"
with calls such as update_memory and answer, prompt and completion, and this project's own
trajectories.jsonl.

With two files the runs are compared question by question, with a paired bootstrap.
"""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m awm_jax diagnose",
        description="Can a reader answer from the question and an agent's final memory alone? "
        "Prints the four outcome cells and P_mmc, the share of right answers whose memory does "
        "not hold the answer; writes a table, a page, and every judgement.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("trajectories", nargs="+", type=pathlib.Path, help="one file, or two to compare")
    add(
        "--reader",
        required=True,
        metavar="URL|DIR|rule|recorded",
        help="who answers from the memory: a server with the OpenAI API, a Qwen3 checkpoint, the "
        "rule-based demo reader (no model), or the memory answers that the records hold",
    )
    add("--reader_model", default="", help="as the server calls it; by default its only model")
    add("--reader_key", metavar="VARIABLE", help="environment variable with the server's key")
    add(
        "--second_reader",
        default="",
        metavar="URL|DIR|rule|recorded",
        help="reads the memories as well, for how far the numbers hang on the reader (kappa)",
    )
    add("--second_reader_model", default="")
    add("--second_reader_key", metavar="VARIABLE")
    add(
        "--hosted",
        action="store_true",
        help="the servers are hosted services: they are not told to leave thinking off, and an "
        "extractor gets the benchmark's own sequence of messages",
    )
    add(
        "--extractor",
        default="rule",
        metavar="URL|DIR|rule|none",
        help="who takes the short answer out of a reply (default: %(default)s)",
    )
    add("--extractor_model", default="", help="as the server calls it, such as gpt-4o")
    add("--extractor_key", metavar="VARIABLE", default=None)
    add(
        "--extraction_prompt",
        type=pathlib.Path,
        help="the instructions to send instead of ours, such as the benchmark's own file",
    )
    add("--benchmark", choices=("mmlongbench", "longdocurl"), default="mmlongbench")
    add("--mode", choices=mmlongbench.MODES, default="official", help="(default: %(default)s)")
    add("--dtype", default="bfloat16", help="of models from a DIR (default: %(default)s)")
    add(
        "--documents",
        type=pathlib.Path,
        help="folder with the PDF files that the records name as document: the page shows them",
    )
    add("--out", type=pathlib.Path, help="folder for the results (default: runs/diagnose/NAME)")
    add("--title", default="", help="of the page")
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status: 1 where no record could be judged."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except (ValueError, OSError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    if len(arguments.trajectories) > 2:
        raise ValueError(f"found {len(arguments.trajectories)} files, expected one, or two")
    began = time.monotonic()
    names = [path.stem for path in arguments.trajectories]
    if len(set(names)) < len(names):
        names = [str(path) for path in arguments.trajectories]
    benchmark = longdocurl if arguments.benchmark == "longdocurl" else mmlongbench
    loaded = [
        foreign.load(path, answer_formats=benchmark.ANSWER_FORMATS)
        for path in arguments.trajectories
    ]
    out = arguments.out or files.own_folder(arguments.trajectories)
    files.check_out(out, _inputs(arguments))
    for (entries, left_out), path in zip(loaded, arguments.trajectories, strict=True):
        if not entries:
            show_left_out(str(path), left_out)
            return 1
    _check_in_common(arguments.trajectories, [entries for entries, _ in loaded])
    of_models = {"hosted": arguments.hosted, "dtype": arguments.dtype}
    read, reader_name = judges.load_reader(
        arguments.reader, arguments.reader_model, arguments.reader_key, **of_models
    )
    extract, extractor_name = judges.load_extractor(
        arguments.extractor,
        arguments.extractor_model,
        arguments.extractor_key,
        **of_models,
        benchmark=arguments.benchmark,
        prompt=arguments.extraction_prompt,
        cache=out / "extractions.jsonl",
    )
    score = functools.partial(benchmark.score, mode=arguments.mode)
    scorer = (
        f"{arguments.benchmark} rules, {arguments.mode}; extractor: {extractor_name}; "
        f"reader: {reader_name}"
    )
    runs = []
    for name, (entries, left_out) in zip(names, loaded, strict=True):
        with display.phase(f"judge {len(entries):,} records of {name}"):
            verdicts = judges.judge(entries, read, extract, score, scorer)
        runs.append(files.Run(name, tuple(entries), tuple(left_out), tuple(verdicts)))
    second = None
    if arguments.second_reader:
        read_again, second_name = judges.load_reader(
            arguments.second_reader,
            arguments.second_reader_model,
            arguments.second_reader_key,
            **of_models,
        )
        with display.phase(f"read the memories of {runs[-1].name} by {second_name}"):
            verdicts = judges.judge(
                runs[-1].entries, read_again, extract, score, f"second reader: {second_name}"
            )
        again = dataclasses.replace(runs[-1], verdicts=tuple(verdicts))
        second = statistics.reader_agreement(runs[-1].judged, again.judged)
    differing = audit.mode_differences(
        [pair for run in runs for pair in run.judged], extract=extract, benchmark=benchmark
    )
    facts = provenance.facts(
        ml_collections.ConfigDict(
            {name: str(value) for name, value in vars(arguments).items() if value is not None}
        )
    )
    caption = tables.Caption(
        dataset=", ".join(map(str, arguments.trajectories)),
        scorer=scorer,
        step_budget=None,
        seed=None,
        questions=len({_question(entry) for run in runs for entry in run.entries}),
        details={
            "sha256": ", ".join(_digest(path) for path in arguments.trajectories),
            "reader's prompt": hashlib.sha256(reader.READER_SYSTEM.encode()).hexdigest()[:12],
            "scored differently by the other mode": differing,
            "commit": facts["commit"],
        },
    )
    rows = [(run.name, cells.summarize(run.verdicts)) for run in runs]
    paths = tables.write_tables(out, "table", rows, caption)
    changes = None
    if len(runs) == 2 and all(summary.total for _, summary in rows):
        changes = statistics.paired_bootstrap(runs[0].judged, runs[1].judged, seed=0)
    artifacts = [(run.name, audit.artifact_audit(run.judged)) for run in runs]
    paths += paper.write(out, paper.artifact_table(artifacts), caption)
    paths.append(out / "audit_sheet.csv")
    paths[-1].write_text(audit.audit_sheet(runs[-1].judged, seed=0), "utf-8", "replace")
    paths.append(
        files.write_page(
            out / "report.html",
            runs,
            rows,
            caption,
            title=arguments.title,
            changes=changes,
            document_folder=arguments.documents,
        )
    )
    for run, suffix in zip(runs, ["-1", "-2"] if len(runs) == 2 else [""], strict=True):
        paths += files.write_records(out, run, suffix)
    summary = json.loads(tables.to_json(rows, caption)) | {
        "left_out": {run.name: len(run.left_out) for run in runs},
        "changes": None if changes is None else statistics.to_json(changes),
        "second_reader": second
        and {
            "reader": second_name,
            "run": runs[-1].name,
            "kappa": None if math.isnan(second.kappa) else second.kappa,
            "p_mmc": [None if math.isnan(value) else value for value in second.p_mmc],
            "agreement": second.agreement,
            "memories": second.total,
        },
        "seconds": time.monotonic() - began,
        "provenance": facts,
    }
    paths.append(out / "summary.json")
    paths[-1].write_text(json.dumps(summary, indent=1, ensure_ascii=False), encoding="utf-8")
    for run, (_, summary_of_run) in zip(runs, rows, strict=True):
        show_cells(run.name, summary_of_run, reader=reader_name, extractor=extractor_name)
    if changes is not None:
        moves = statistics.moves(runs[0].judged, runs[1].judged)
        show_comparison(runs[0].name, runs[1].name, changes, moves)
    if second is not None:
        show_agreement(runs[-1].name, second, reader_name, second_name)
    show_examples(runs[-1].judged)
    show_rows(rows, caption)
    for run, path in zip(runs, arguments.trajectories, strict=True):
        show_left_out(str(path), run.left_out)
    display.show_files(paths)
    return 0 if all(summary_of_run.total for _, summary_of_run in rows) else 1


def _inputs(arguments: argparse.Namespace) -> list[pathlib.Path]:
    """Every file and folder that the command reads."""
    models = (arguments.reader, arguments.second_reader, arguments.extractor)
    return [
        *arguments.trajectories,
        *filter(None, (arguments.extraction_prompt, arguments.documents)),
        *(pathlib.Path(where) for where in models if where and not served.is_url(where)),
    ]


def _question(entry: foreign.Entry) -> tuple[str, str]:
    return entry.trajectory.question.document, entry.trajectory.question.id


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _check_in_common(
    paths: Sequence[pathlib.Path], runs: Sequence[Sequence[foreign.Entry]]
) -> None:
    """Before anything is asked: two runs without a common question cannot be compared."""
    if len(runs) == 2 and not set(map(_question, runs[0])) & set(map(_question, runs[1])):
        raise ValueError(
            f"{paths[0]} and {paths[1]} have no question in common; they are told by document "
            f"and id, such as {_question(runs[0][0])} and {_question(runs[1][0])}"
        )
