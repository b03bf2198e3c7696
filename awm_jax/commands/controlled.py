"""The controlled memory comparison over the records of an EP-given run (the paper, section 2).

Three terminal memories, everything else the same: none, the agent's own, and one that a stronger
model writes from the gold pages. Tables 3, 8 and 9 come out, and a page that compares the last two.
"""

import json
import pathlib
import time
from collections.abc import Callable, Sequence

import ml_collections

from awm_jax.agent import records
from awm_jax.commands import build, display, evaluate, provenance, served
from awm_jax.evaluation import cells, controlled, paper, report, tables
from awm_jax.judging import reader
from awm_jax.types import Finding, Memory, Question

# Questions whose pages are held at one time.
_AT_ONCE = 32


def run(config: ml_collections.ConfigDict) -> None:
    """Writes the improved memories, answers from all three, judges, and makes the tables.

    Improved memories are kept in `improved_memories.jsonl`: a run that was killed goes on, and
    those that could not be had are asked for again.
    """
    if None in (config.trajectories, config.data.root, config.writer.checkpoint):
        raise ValueError(
            "expected --config.trajectories=FILE, the records of an EP-given run, "
            "--config.data.root=DIR and --config.writer.checkpoint=URL; found "
            f"{config.trajectories}, {config.data.root} and {config.writer.checkpoint}"
        )
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    began, facts = time.monotonic(), provenance.facts(config)
    original = [record.trajectory for record in records.read_records(config.trajectories)]
    if not original:
        raise ValueError(f"{config.trajectories}: found no rollouts")
    writer, writer_server = served.served_generate(
        config.writer.checkpoint, config.writer_server, thinking_off=False
    )
    generate, generator_name = evaluate.load_policy(config, served.Costs())
    judge, reader_name, scorer, differences = evaluate.load_judge(config)
    with build.open_library(config.data, index_at=run_dir / "index") as library:
        display.show_plan(
            "Controlled memory comparison",
            [
                ("original", f"{len(original):,} rollouts of {config.trajectories}"),
                ("improved by", str(writer_server)),
                ("answers by", generator_name),
                ("reader", reader_name),
                ("scorer", scorer),
                ("written to", str(run_dir)),
            ],
        )
        with display.phase("improved memories"):
            improved = _improved(
                list({t.question.id: t.question for t in original}.values()),
                lambda questions: controlled.improved_memories(
                    writer, questions, library.render, seed=(config.seed,)
                ),
                run_dir / "improved_memories.jsonl",
                settings={"writer": str(writer_server), "data": build.page_settings(config.data)},
            )
        with display.phase("answers and judgements"):
            compared = controlled.compare(
                list(zip(original, judge(original), strict=True)),
                [improved.get(trajectory.question.id) for trajectory in original],
                answer=lambda items: reader.read_memories(generate, items, seed=(config.seed, 1)),
                judge=judge,
                answer_anew=config.answer_anew,
            )
        runs = (compared.empty, compared.original, compared.improved)
        caption = tables.Caption(
            dataset=library.provenance[0],
            scorer=scorer,
            step_budget=None,
            seed=config.seed,
            questions=len(improved),
            details={
                "original memories": config.trajectories,
                "improved memories by": str(writer_server),
                "answers by": generator_name,
                "reader": reader_name,
                "scored differently by the strict rules": differences(
                    [pair for run in runs for pair in run]
                ),
                "commit": facts["commit"],
            },
        )
        paths = []
        for make in (paper.table3, paper.table8, paper.table9):
            paths += paper.write(run_dir, make(compared), caption)
        rows = [
            (name, cells.summarize(verdict for _, verdict in pairs))
            for name, pairs in zip(paper.CONDITIONS, runs, strict=True)
        ]
        paths.append(
            report.write_report(
                run_dir / "report.html",
                compared.improved,
                title="Controlled memory comparison",
                provenance={"data": caption.dataset, "scorer": scorer, **caption.details},
                render=library.render,
                rows=rows,
                before=(paper.CONDITIONS[1], compared.original),
            )
        )
    summary = json.loads(tables.to_json(rows, caption)) | {
        "seconds": time.monotonic() - began,
        "provenance": facts,
    }
    paths.append(run_dir / "summary.json")
    paths[-1].write_text(json.dumps(summary, indent=1), encoding="utf-8")
    display.show_table(tables.COLUMNS, [tables.cells_of_row(*row) for row in rows], str(caption))
    display.show_files(paths)


def _improved(
    questions: Sequence[Question],
    write: Callable[[Sequence[Question]], Sequence[Memory | None]],
    path: pathlib.Path,
    settings: dict,
) -> dict[str, Memory | None]:
    """A memory for each question's id; those in the file are not written again.

    Raises:
      ValueError: the file's were written under other settings.
    """
    settings = json.loads(json.dumps(settings))
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    # The last one is torn where a write was cut short.
    lines = [line for line in lines if line.endswith("}")]
    kept = [json.loads(line) for line in lines]
    if others := [line["settings"] for line in kept if line["settings"] != settings]:
        raise ValueError(
            f"{path}: found memories made under {others[0]}, expected {settings}; use another run "
            "directory"
        )
    memories: dict[str, Memory | None] = {
        line["question"]: Memory(tuple(Finding(**finding) for finding in line["findings"]))
        for line in kept
    }
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    missing = [question for question in questions if question.id not in memories]
    for start in range(0, len(missing), _AT_ONCE):
        part = missing[start : start + _AT_ONCE]
        for question, memory in zip(part, write(part), strict=True):
            memories[question.id] = memory
            if memory is None:
                continue
            findings = [{"source_page": f.source_page, "text": f.text} for f in memory.findings]
            line = {"question": question.id, "findings": findings, "settings": settings}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return {question.id: memories[question.id] for question in questions}
