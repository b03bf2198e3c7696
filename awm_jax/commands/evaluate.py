"""Runs the agent over a benchmark and scores what comes out."""

import collections
import functools
import json
import pathlib
import time

import ml_collections

from awm_jax.agent import rollout
from awm_jax.commands import build, display, provenance
from awm_jax.evaluation import cells, report, tables
from awm_jax.evaluation.run import evaluate


def run(config: ml_collections.ConfigDict) -> None:
    """Every question of the data set ends with a status; the table counts what was judged."""
    if config.data.root is None:
        raise ValueError("--config.data.root=DIR names the data set's folder; found none")
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    facts = provenance.facts(config)
    settings = rollout.RolloutSettings(**config.rollout)
    with build.open_library(config.data, index_at=run_dir / "index") as library:
        policy = build.load_policy(config.policy, config.sampler)
        reader = build.load_reader(config.reader)
        display.show_plan(
            "Evaluation",
            [
                ("policy", f"{config.policy.checkpoint}, {policy.size:,} parameters"),
                ("reader", f"{config.reader.checkpoint}, {reader.size:,} parameters"),
                ("data", "\n".join(library.provenance)),
                ("rollouts", f"{config.data.samples} a question, seed {config.seed}"),
                ("written to", str(run_dir)),
                ("commit", facts["commit"]),
            ],
        )
        with display.phase("rollouts"):
            judged = evaluate(
                library.questions,
                roll_out=functools.partial(
                    rollout.run_rollouts,
                    generate=policy.generate(policy.params, version=0),
                    search=library.search,
                    render=library.render,
                    settings=settings,
                ),
                judge=reader.judge,
                seed=(config.seed,),
                samples=config.data.samples,
                path=run_dir / "trajectories.jsonl",
            )
        statuses = collections.Counter(trajectory.status for trajectory, _ in judged)
        caption = tables.Caption(
            dataset=library.provenance[0],
            scorer=reader.scorer,
            step_budget=settings.max_steps,
            seed=config.seed,
            questions=len(library.questions),
            details={"policy": config.policy.checkpoint, "commit": facts["commit"]},
        )
        rows = [("agent", cells.summarize(verdict for _, verdict in judged))]
        paths = tables.write_tables(run_dir, "table", rows, caption)
        paths.append(
            report.write_report(
                run_dir / "report.html",
                judged,
                title="Evaluation",
                provenance={"data": library.provenance[0], **caption.details},
                render=library.render,
                rows=rows,
            )
        )
    summary = json.loads(tables.to_json(rows, caption)) | {
        "statuses": dict(statuses),
        "seconds": time.monotonic() - began,
        "provenance": facts,
    }
    paths.append(run_dir / "summary.json")
    paths[-1].write_text(json.dumps(summary, indent=1), encoding="utf-8")
    ended = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
    display.show_table(tables.COLUMNS, [tables.cells_of_row(*row) for row in rows], str(caption))
    display.show_plan("", [("ended", ended)])
    display.show_files(paths)
