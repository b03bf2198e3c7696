"""Runs the agent over a benchmark and scores what comes out."""

import collections
import functools
import json
import pathlib
import time
from collections.abc import Callable

import ml_collections

from awm_jax.agent import rollout, settings
from awm_jax.agent.records import Costs
from awm_jax.commands import build, display, judges, provenance, served
from awm_jax.documents import embed
from awm_jax.evaluation import audit, cells, report, tables
from awm_jax.evaluation.run import evaluate
from awm_jax.judging import longdocurl, mmlongbench, reader, training_scorer
from awm_jax.models import hf
from awm_jax.models.processor import load_processor
from awm_jax.policy import make_generate
from awm_jax.types import Generate

# The tiny world's answers have the formats of MMLongBench-Doc.
_RULES = {
    "tiny_world": ("mmlongbench", mmlongbench),
    "mmlongbench": ("mmlongbench", mmlongbench),
    "longdocurl": ("longdocurl", longdocurl),
}


def run(config: ml_collections.ConfigDict) -> None:
    """Every question of the data set ends with a status; the table counts what was judged.

    What failed for a reason that the policy could not help is done again when the command is
    given again.
    """
    if config.data.root is None:
        raise ValueError("--config.data.root=DIR names the data set's folder; found none")
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    facts = provenance.facts(config)
    limits = rollout.RolloutSettings(**config.rollout)
    spent = served.Costs()
    embedder = served.served_embedder(config.embedder)
    embedded_by = embed.NAME if embedder is None else embedder.name
    index_at = run_dir / ("index" if embedder is None else "vectors")
    with build.open_library(config.data, index_at=index_at, embedder=embedder) as library:
        # Without gold pages there is nothing to give.
        given = config.setting == "evidence_given"
        questions = [q for q in library.questions if q.evidence_pages or not given]
        left_out = len(library.questions) - len(questions)
        generate, policy_name = load_policy(config, spent)
        judge, reader_name, scorer, differences = load_judge(config)
        display.show_plan(
            "Evaluation",
            [
                ("policy", policy_name),
                ("reader", reader_name),
                ("scorer", scorer),
                ("data", "\n".join(library.provenance)),
                ("setting", config.setting),
                ("rollouts", f"{config.data.samples} a question, seed {config.seed}"),
                ("written to", str(run_dir)),
                ("commit", facts["commit"]),
            ],
        )
        with display.phase("rollouts"):
            judged = evaluate(
                questions,
                roll_out=_roll_out(config, library, generate, settings=limits),
                judge=judge,
                seed=(config.seed,),
                samples=config.data.samples,
                path=run_dir / "trajectories.jsonl",
                at_once=config.rollouts_at_once,
                redo_failed=True,
                costs=functools.partial(_costs, spent),
                settings={
                    "policy": policy_name,
                    "reader": reader_name,
                    "scorer": scorer,
                    "setting": config.setting,
                    "embedder": embedded_by,
                    "rollout": config.rollout.to_dict(),
                    "data": build.page_settings(config.data),
                },
            )
        statuses = collections.Counter(trajectory.status for trajectory, _ in judged)
        caption = tables.Caption(
            dataset=library.provenance[0],
            scorer=scorer,
            step_budget=limits.max_steps,
            seed=config.seed,
            questions=len(questions),
            details={
                "policy": policy_name,
                "reader": reader_name,
                "embedder": embedded_by,
                "scored differently by the strict rules": differences(judged),
                "commit": facts["commit"],
            }
            | ({"without gold pages, left out": str(left_out)} if left_out else {}),
        )
        rows = [(config.setting, cells.summarize(verdict for _, verdict in judged))]
        paths = tables.write_tables(run_dir, "table", rows, caption)
        paths.append(
            report.write_report(
                run_dir / "report.html",
                judged,
                title="Evaluation",
                provenance={"data": caption.dataset, "scorer": scorer, **caption.details},
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


def _roll_out(
    config: ml_collections.ConfigDict, library: build.Library, generate: Generate, **options
) -> Callable:
    """Plays tasks in the config's setting (the paper, section 4.2)."""
    match config.setting:
        case "agent":
            play = functools.partial(rollout.run_rollouts, search=library.search)
        case "evidence_given":
            play = settings.evidence_given
        case "rag":
            play = functools.partial(settings.rag, search=library.search)
        case "direct":
            play = functools.partial(settings.direct, page_count=library.page_count)
        case other:
            raise ValueError(f"setting {other!r}: expected agent, evidence_given, rag or direct")
    play = functools.partial(play, render=library.render, **options)
    if not served.is_url(config.policy.checkpoint):
        return functools.partial(play, generate=generate)
    # Twice as many conversations as requests: while some see to their tools, others ask.
    at_once = 2 * config.policy_server.concurrency
    return rollout.each_alone(play, generate, at_once=at_once)


def load_policy(config: ml_collections.ConfigDict, spent: served.Costs) -> tuple[Generate, str]:
    """The policy, a server's where its checkpoint is a URL, and its name."""
    where = config.policy.checkpoint
    if served.is_url(where):
        generate, server = served.served_generate(
            where, config.policy_server, thinking_off=False, on_reply=spent
        )
        return generate, str(server)
    policy = build.load_policy(config.policy, config.sampler)
    return policy.generate(policy.params, version=0), f"{where}, {policy.size:,} parameters"


def load_judge(config: ml_collections.ConfigDict) -> tuple[Callable, str, str, Callable]:
    """The reader with the benchmark's rules, the reader's name, the scorer's, and what of judged
    rollouts the strict rules score differently, in words."""
    where = config.reader.checkpoint
    if served.is_url(where):
        generate, server = served.served_generate(where, config.reader_server, thinking_off=True)
        name = str(server)
    else:
        model = hf.load_model(where, dtype=config.reader.dtype)
        generate = make_generate(
            model,
            model.params,
            load_processor(hf.checkpoint_directory(where)),
            enable_thinking=False,
            **config.reader.sampler,
        )
        name = where
    name_of_rules, benchmark = _RULES[config.data.dataset]
    extract, extractor = judges.load_extractor(
        config.extractor,
        **config.extractor_server,
        dtype=config.reader.dtype,
        benchmark=name_of_rules,
        prompt=None,
        cache=pathlib.Path(config.run_dir) / "extractions.jsonl",
    )
    scorer = f"{name_of_rules} rules, official"
    if config.extractor != "none":
        scorer += f"; extractor: {extractor}"
    judge = functools.partial(
        training_scorer.judge,
        read=functools.partial(reader.read_memories, generate, seed=(0,)),
        score=functools.partial(
            training_scorer.extracted_scores, score=benchmark.score, extract=extract
        ),
        scorer=scorer,
    )
    differences = functools.partial(audit.mode_differences, benchmark=benchmark, extract=extract)
    return judge, name, scorer, differences


def _costs(spent: served.Costs, seed: tuple[int, ...]) -> Costs | None:
    """What the server counted; None where none was asked, and then the tokens are counted."""
    return Costs(*spent.by_seed[seed]) if seed in spent.by_seed else None
