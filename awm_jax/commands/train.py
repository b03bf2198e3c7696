"""Trains a policy for each reward of a config and compares them on held-out documents."""

import functools
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import ml_collections

from awm_jax.agent import records, rollout
from awm_jax.commands import build, display, provenance
from awm_jax.evaluation import cells, report, tables
from awm_jax.evaluation.run import evaluate
from awm_jax.models.generate import program_count
from awm_jax.rl import losses
from awm_jax.rl.rewards import ANSWER_ONLY, CellRewards, check_order
from awm_jax.training import batch, checkpoint, grpo, lines, state
from awm_jax.types import Trajectory, Verdict

# Evaluation's seeds start with this, so that no held-out rollout shares one with training.
_EVALUATION = 1_000_003


def run(config: ml_collections.ConfigDict) -> None:
    """The main job: plan, one GRPO run a reward from the same warm start, Table 5."""
    rewards = {name: CellRewards(*values) for name, values in config.rewards.items()}
    for given in rewards.values():
        if given != ANSWER_ONLY:
            check_order(given)
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    facts = provenance.facts(config)
    (run_dir / "config.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    settings = rollout.RolloutSettings(**config.rollout)
    with (
        build.open_library(config.train_data, index_at=run_dir / "index" / "train") as training,
        build.open_library(config.eval_data, index_at=run_dir / "index" / "eval") as held_out,
    ):
        policy = build.load_policy(config.policy, config.sampler)
        reader = build.load_reader(config.reader, config.eval_data)
        display.show_plan("AWM-GRPO", _plan(config, training, held_out, policy, reader, facts))

        variants = {"SFT": policy.params}
        curves = []
        for name, cell_rewards in rewards.items():
            params, metrics = _train(
                config, run_dir / name, name, cell_rewards, training, policy, reader, settings
            )
            variants[name] = params
            curves.append((name, metrics))
        (run_dir / "evaluation").mkdir(exist_ok=True)
        judged = {
            name: _evaluate(config, run_dir, name, params, held_out, policy, reader, settings)
            for name, params in variants.items()
        }
        rows = [
            (name, cells.summarize(verdict for _, verdict in pairs))
            for name, pairs in judged.items()
        ]
    caption = tables.Caption(
        dataset=held_out.provenance[0],
        scorer=reader.scorer,
        step_budget=settings.max_steps,
        seed=config.seed,
        questions=len(held_out.questions),
        details={
            "updates": str(config.steps),
            "temperature": str(settings.temperature),
            "rollouts a question": str(config.eval_data.samples),
            "reader": config.reader.checkpoint,
            "commit": facts["commit"],
        },
    )
    paths = tables.write_tables(run_dir, "table", rows, caption)
    curves_path = run_dir / "curves.png"
    tables.write_curves(curves_path, curves)
    last = list(judged)[-1]
    page = report.write_report(
        run_dir / "report.html",
        judged[last],
        title=f"{last}, held-out documents",
        provenance={"caption": str(caption)},
        rows=rows,
        curves=curves_path.read_bytes(),
    )
    paths += [curves_path, page]
    summary = json.loads(tables.to_json(rows, caption)) | {
        "seconds": time.monotonic() - began,
        "provenance": facts,
    }
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    display.show_table(tables.COLUMNS, [tables.cells_of_row(*row) for row in rows], str(caption))
    display.show_files([*paths, run_dir / "summary.json"])


def _plan(config, training, held_out, policy, reader, facts) -> list[tuple[str, str]]:
    groups = config.groups
    return [
        ("policy", f"{config.policy.checkpoint}, {policy.size:,} parameters"),
        ("reader", f"{config.reader.checkpoint}, {reader.size:,} parameters, frozen"),
        ("training", "; ".join(training.provenance)),
        ("held out", "; ".join(held_out.provenance)),
        ("rewards", ", ".join(f"{name} {value}" for name, value in config.rewards.items())),
        (
            "updates",
            f"{config.steps} of {groups.questions_per_step} questions x {groups.group_size} "
            f"rollouts for each reward, seed {config.seed}",
        ),
        ("written to", config.run_dir),
        ("commit", facts["commit"]),
    ]


def _train(
    config, run_dir, name, cell_rewards, library, policy, reader, settings
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Trains from the warm start with one reward, or goes on from the newest checkpoint.

    Returns:
      All parameters after the last update, and the metrics of every step.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    metrics_path, rollouts_path = run_dir / "metrics.jsonl", run_dir / "trajectories.jsonl"
    optimizer = state.adamw(**config.optimizer)
    frozen, trained = build.split_frozen(policy.params)
    update = grpo.make_update(
        policy.model,
        frozen,
        optimizer,
        functools.partial(losses.clipped_policy_loss, **config.loss),
        banned=policy.banned,
        temperature=settings.temperature,
        chunk_size=config.log_prob_chunk,
    )
    shape = batch.PackShape(**config.packing)
    # What a resumed run has to share with the one that it goes on from.
    shared = {key: value for key, value in config.to_dict().items() if key != "run_dir"}
    shared = json.loads(json.dumps(shared | {"rewards": list(cell_rewards)}))
    shared.pop("steps")
    with checkpoint.open_checkpoints(run_dir / "checkpoints", keep=config.checkpoints_kept) as kept:
        current = state.initial_state(trained, optimizer)
        current = checkpoint.restore(kept, current, shared) or current
        done = int(current.step)
        lines.keep(metrics_path, lambda line: line["step"] < done)
        lines.keep(rollouts_path, lambda line: line["seed"][1] < done)
        with display.steps(f"{name} {tuple(cell_rewards)}", config.steps, done) as show:
            for metrics in lines.read(metrics_path):
                show(metrics)
            for step in range(done, config.steps):
                began = time.monotonic()
                questions = batch.questions_at_step(
                    library.questions,
                    seed=config.seed,
                    step=step,
                    count=config.groups.questions_per_step,
                )
                tasks = grpo.tasks_at_step(
                    questions, group_size=config.groups.group_size, seed=config.seed, step=step
                )
                trajectories = rollout.run_rollouts(
                    tasks,
                    policy.generate({**frozen, **current.params}, version=step),
                    search=library.search,
                    render=library.render,
                    settings=settings,
                )
                rolled_out = time.monotonic()
                verdicts = reader.judge(trajectories)
                judged = time.monotonic()
                outcome = grpo.outcome(
                    trajectories,
                    verdicts,
                    group_size=config.groups.group_size,
                    cells=cell_rewards,
                    epsilon=config.groups.epsilon,
                    ddof=config.groups.ddof,
                    scale_by_std=config.groups.scale_by_std,
                )
                sequences, left_out = grpo.trained_sequences(trajectories, outcome)
                batches = policy.pack(sequences, shape)
                current, of_update = grpo.update_state(update, current, batches, left_out)
                ended = time.monotonic()
                of_rollouts = grpo.step_metrics(trajectories, verdicts, outcome)
                sampled = of_rollouts["completions/mean_length"] * len(trajectories)
                metrics = {
                    "step": step,
                    **of_rollouts,
                    **of_update,
                    "seconds": ended - began,
                    "seconds/rollout": rolled_out - began,
                    "seconds/judge": judged - rolled_out,
                    "seconds/update": ended - judged,
                    "tokens_per_second": sampled / (rolled_out - began),
                    "compiled/sampler": program_count(),
                    **{f"compiled/{name}": n for name, n in update.compiled().items()},
                }
                records.append_records(
                    rollouts_path,
                    [
                        records.Record(trajectory, task[2], verdict)
                        for task, trajectory, verdict in zip(
                            tasks, trajectories, verdicts, strict=True
                        )
                    ],
                )
                lines.append(metrics_path, [metrics])
                checkpoint.save(kept, current, shared)
                show(metrics)
    return {**frozen, **current.params}, lines.read(metrics_path)


def _evaluate(
    config, run_dir, name, params, library, policy, reader, settings
) -> list[tuple[Trajectory, Verdict]]:
    """Rolls out every held-out question at the training temperature and judges."""
    with display.phase(f"evaluate {name}"):
        return evaluate(
            library.questions,
            roll_out=functools.partial(
                rollout.run_rollouts,
                generate=policy.generate(params, version=config.steps),
                search=library.search,
                render=library.render,
                settings=settings,
            ),
            judge=reader.judge,
            seed=(config.seed, _EVALUATION),
            samples=config.eval_data.samples,
            path=run_dir / "evaluation" / f"{name}-{config.steps}.jsonl",
        )
