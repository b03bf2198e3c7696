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
from collections.abc import Callable, Sequence
from types import ModuleType

import ml_collections

from awm_jax import servers
from awm_jax.commands import display, provenance, served
from awm_jax.commands.diagnosis_display import (
    show_agreement,
    show_cells,
    show_comparison,
    show_examples,
    show_left_out,
    show_rows,
)
from awm_jax.evaluation import audit, cells, foreign, paper, report, statistics, tables
from awm_jax.judging import (
    extraction,
    longdocurl,
    mmlongbench,
    model_extraction,
    reader,
    rule_reader,
    training_scorer,
)
from awm_jax.policy_served import make_served_generate
from awm_jax.types import Generate, Memory, Question, Trajectory, Verdict

RECORDED = "recorded"
# (question, reply) of each -> short answers, None where it failed.
Extract = Callable[[Sequence[tuple[Question, str]]], Sequence[str | None]]
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


@dataclasses.dataclass(frozen=True)
class _Run:
    """One file, judged."""

    name: str
    entries: tuple[foreign.Entry, ...]
    left_out: tuple[foreign.Unreadable, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> list[tuple[Trajectory, Verdict]]:
        return [(e.trajectory, v) for e, v in zip(self.entries, self.verdicts, strict=True)]


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
    except (ValueError, servers.ServerError) as error:
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
    out = arguments.out or _own_folder(arguments.trajectories)
    _check_out(out, [*arguments.trajectories, arguments.extraction_prompt])
    for (entries, left_out), path in zip(loaded, arguments.trajectories, strict=True):
        if not entries:
            show_left_out(str(path), left_out)
            return 1
    _check_in_common(arguments.trajectories, [entries for entries, _ in loaded])
    read, reader_name = _reader(arguments)
    extract, extractor_name = _extractor(arguments, out)
    score = functools.partial(_score, benchmark, arguments.mode)
    scorer = (
        f"{arguments.benchmark} rules, {arguments.mode}; extractor: {extractor_name}; "
        f"reader: {reader_name}"
    )
    runs = []
    for name, (entries, left_out) in zip(names, loaded, strict=True):
        with display.phase(f"judge {len(entries):,} records of {name}"):
            verdicts = _judge(entries, read, extract, score, scorer)
        runs.append(_Run(name, tuple(entries), tuple(left_out), tuple(verdicts)))
    second = _second_reading(arguments, runs[-1], extract, score)
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
    paths.append(_write_page(out, arguments, runs, rows, caption, changes))
    for run, suffix in zip(runs, ["-1", "-2"] if len(runs) == 2 else [""], strict=True):
        paths += _write_records(out, run, suffix)
    summary = json.loads(tables.to_json(rows, caption)) | {
        "left_out": {run.name: len(run.left_out) for run in runs},
        "changes": None if changes is None else statistics.to_json(changes),
        "second_reader": second
        and {
            "reader": arguments.second_reader,
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
        show_agreement(runs[-1].name, second, reader_name, arguments.second_reader)
    show_examples(runs[-1].judged)
    show_rows(rows, caption)
    for run, path in zip(runs, arguments.trajectories, strict=True):
        show_left_out(str(path), run.left_out)
    display.show_files(paths)
    return 0 if all(summary_of_run.total for _, summary_of_run in rows) else 1


def _reader(arguments: argparse.Namespace) -> tuple[training_scorer.Read | None, str]:
    """Who reads the memories, and its name; None where the records hold the answers."""
    return _named_reader(arguments.reader, arguments.reader_model, arguments.reader_key, arguments)


def _named_reader(
    where: str, model: str, key: str | None, arguments: argparse.Namespace
) -> tuple[training_scorer.Read | None, str]:
    if where == "rule":
        return rule_reader.read_memories, rule_reader.NAME
    if where == RECORDED:
        return None, "as recorded in the file"
    if served.is_url(where):
        server = served.find_server(where, model, key)
        extra = None if arguments.hosted else served.THINKING_OFF
        generate, name = make_served_generate(server, max_tokens=256, extra=extra), str(server)
    else:
        expected = f"--reader {where}: expected a URL, rule, {RECORDED}"
        generate, name = _local(where, arguments.dtype, expected), where
    return functools.partial(reader.read_memories, generate, seed=(0,)), name


def _second_reading(
    arguments: argparse.Namespace, run: _Run, extract: Extract, score: Callable
) -> statistics.Agreement | None:
    """The second reader's agreement with the first on a run, None where there is no second one."""
    if not arguments.second_reader:
        return None
    read, name = _named_reader(
        arguments.second_reader,
        arguments.second_reader_model,
        arguments.second_reader_key,
        arguments,
    )
    with display.phase(f"read {len(run.entries):,} memories of {run.name} by {name}"):
        verdicts = _judge(run.entries, read, extract, score, f"second reader: {name}")
    again = [(e.trajectory, v) for e, v in zip(run.entries, verdicts, strict=True)]
    return statistics.reader_agreement(run.judged, again)


def _question(entry: foreign.Entry) -> tuple[str, str]:
    return entry.trajectory.question.document, entry.trajectory.question.id


def _own_folder(paths: Sequence[pathlib.Path]) -> pathlib.Path:
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


def _check_out(out: pathlib.Path, inputs: Sequence[pathlib.Path | None]) -> None:
    """Refuses a folder that holds an input: results have names such as judged.jsonl."""
    inside = [str(path) for path in inputs if path and path.resolve().parent == out.resolve()]
    if inside:
        raise ValueError(
            f"--out {out} holds the input {', '.join(inside)}, which a result could overwrite; "
            "name another folder"
        )


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


def _extractor(arguments: argparse.Namespace, out: pathlib.Path) -> tuple[Extract, str]:
    """Who makes answers short, and its name."""
    where = arguments.extractor
    if where == "rule":
        return extraction.extract_all, extraction.NAME
    if where == "none":
        return lambda items: [answer for _, answer in items], "none, answers taken as they are"
    path = arguments.extraction_prompt
    instructions = model_extraction.Instructions(
        arguments.benchmark,
        path.read_text(encoding="utf-8") if path else "",
        # Local chat templates take a last assistant message for one to go on with.
        one_turn=not arguments.hosted,
    )
    if served.is_url(where):
        server = served.find_server(where, arguments.extractor_model, arguments.extractor_key)
        cache = model_extraction.Cache(out / "extractions.jsonl")
        extract = functools.partial(model_extraction.extract_served, server, cache=cache)
        name = str(server)
    else:
        generate = _local(
            where, arguments.dtype, f"--extractor {where}: expected a URL, rule, none"
        )
        extract, name = functools.partial(model_extraction.extract_local, generate), where
    return functools.partial(extract, instructions=instructions), f"{name}, {instructions.name}"


def _local(where: str, dtype: str, expected: str) -> Generate:
    """The model in a checkpoint's folder, thinking off."""
    if not pathlib.Path(where).is_dir():
        raise ValueError(f"{expected} or the folder of a Qwen3 checkpoint")
    # Imported where it is used: servers and rules need no JAX.
    from awm_jax.models import hf
    from awm_jax.models.processor import load_processor
    from awm_jax.policy import make_generate

    model = hf.load_model(where, dtype=dtype)
    return make_generate(
        model,
        model.params,
        load_processor(hf.checkpoint_directory(where)),
        enable_thinking=False,
        max_new_tokens=256,
        prompt_buckets=(256, 512, 1024, 2048, 4096, 8192),
        batch_buckets=(1, 4, 16),
    )


def _score(benchmark: ModuleType, mode: str, gold, answer: str, answer_format: str) -> float:
    return benchmark.score(gold, answer, answer_format, mode=mode)


def _judge(
    entries: Sequence[foreign.Entry],
    read: training_scorer.Read | None,
    extract: Extract,
    score: Callable,
    scorer: str,
) -> list[Verdict]:
    """One verdict a record, in order."""
    recorded = iter([_recorded(entry) for entry in entries if entry.trajectory.valid])

    def as_recorded(items: Sequence[tuple[str, Memory]]) -> list[str | None]:
        return [next(recorded) for _ in items]

    return training_scorer.judge(
        [entry.trajectory for entry in entries],
        read=read or as_recorded,
        score=functools.partial(training_scorer.extracted_scores, extract=extract, score=score),
        scorer=scorer,
    )


def _recorded(entry: foreign.Entry) -> str | None:
    """The memory-only answer that the record holds; None, which is no judgement, without one."""
    if entry.verdict is not None and not entry.verdict.error:
        return entry.verdict.memory_answer
    return entry.memory_answer


def _write_page(out, arguments, runs: Sequence[_Run], rows, caption, changes) -> pathlib.Path:
    left_out = [
        f"{run.name}, line {item.line}: {item.found}" for run in runs for item in run.left_out
    ]
    render = None
    if arguments.documents:
        # Imported where it is used: most runs have no documents beside them.
        from awm_jax.documents import pdf, workers

        names = {entry.trajectory.question.document for run in runs for entry in run.entries}
        documents, _ = pdf.open_documents(
            arguments.documents, sorted(names - {""}), run=workers.run
        )
        render = pdf.make_render(documents, dpi=96, max_pixels=1_000_000, run=workers.run)
    return report.write_report(
        out / "report.html",
        runs[-1].judged,
        title=arguments.title or " \u2192 ".join(run.name for run in runs),
        provenance={"data": caption.dataset, "scorer": caption.scorer, **caption.details},
        rows=rows,
        render=render,
        left_out=left_out,
        before=(runs[0].name, runs[0].judged) if len(runs) == 2 else None,
        changes=changes,
    )


def _write_records(out: pathlib.Path, run: _Run, suffix: str) -> list[pathlib.Path]:
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
