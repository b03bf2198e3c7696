"""Trains a policy for each reward of a config and compares them on held-out documents."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import optax

from awm_jax.agent import records, rollout
from awm_jax.commands import build, checks, display, metric_logs, provenance
from awm_jax.documents import embed
from awm_jax.evaluation import audit, cells, report, statistics, tables
from awm_jax.evaluation.run import evaluate
from awm_jax.judging import mmlongbench
from awm_jax.rl import losses
from awm_jax.rl.rewards import CellRewards
from awm_jax.training import batch, checkpoint, grpo, hosts, lines, pending, sharding, state
from awm_jax.types import Generate, Trajectory, Verdict

# Evaluation's seeds start with this, so that no held-out rollout shares one with training.
_EVALUATION = 1_000_003
# The paper's names of the two rewards, for tables and curves; others go by their config's.
_PAPER_NAMES = {"answer_grpo": "+ Answer-GRPO", "awm_grpo": "+ AWM-GRPO"}
_NOTHING = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """What all parts of the job share."""

    config: ml_collections.ConfigDict
    run_dir: pathlib.Path
    policy: build.Policy
    reader: build.Reader
    settings: rollout.RolloutSettings
    rate: optax.Schedule

    def roll_out(
        self, tasks: Sequence[grpo.Task], generate: Generate, library: build.Library
    ) -> list[Trajectory]:
        """The trajectories of all tasks, this process's own share made here.

        Those of other processes have their tokens, but no pixels.
        """
        own = tasks[hosts.share(tasks)]
        return _of_all(own, self.roll_out_own(own, generate, library))

    def roll_out_own(
        self, tasks: Sequence[grpo.Task], generate: Generate, library: build.Library
    ) -> list[Trajectory]:
        """The trajectories of tasks that are all of this process's share."""
        return rollout.run_rollouts(
            tasks,
            generate,
            search=library.search,
            render=library.render,
            settings=self.settings,
        )

    def judge(self, trajectories: Sequence[Trajectory]) -> list[Verdict]:
        """The verdicts on all trajectories, likewise."""
        own = self.reader.judge(trajectories[hosts.share(trajectories)])
        return [Verdict(**each) for each in hosts.gathered([vars(verdict) for verdict in own])]


def run(config: ml_collections.ConfigDict) -> None:
    """The main job: plan, one GRPO run a reward from the same warm start, Table 5.

    Several processes make it together (`config.hosts`); each is given the same command.
    """
    with hosts.together(**config.hosts):
        _run(config)


def _run(config: ml_collections.ConfigDict) -> None:
    rewards = {name: checks.cell_rewards(values) for name, values in config.rewards.items()}
    checks.check_groups(config.groups)
    checks.check_steps(config.steps)
    checks.check_updates(config)
    checks.check_loss(config.loss)
    checks.check_dtypes(config)
    metric_logs.check(config.log_to)
    rate = checks.learning_rate(config)
    checks.check_attention(config.attention, jax.default_backend(), config.policy.dtype)
    mesh = sharding.make_mesh(**config.mesh)
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    display.console.quiet = not hosts.first()
    began = time.monotonic()
    facts = provenance.facts(config)
    # An embedded index is open in one process at a time.
    indexes = run_dir / hosts.own_name("index")
    with contextlib.ExitStack() as stack:
        with hosts.first_alone("data"):
            training, held_out = (
                stack.enter_context(build.open_library(data, index_at=indexes / name))
                for name, data in (("train", config.train_data), ("eval", config.eval_data))
            )
        job = _Job(
            config,
            run_dir,
            build.load_policy(
                config.policy,
                config.sampler,
                mesh,
                rows=config.packing.rows,
                remat=config.remat,
                attention=config.attention,
                pages_at_once=config.pages_at_once,
            ),
            build.load_reader(config.reader, mesh),
            rollout.RolloutSettings(**config.rollout),
            rate,
        )
        display.show_plan("AWM-GRPO", _plan(job, training, held_out, facts))
        variants, curves = {"SFT": job.policy.params}, []
        for name, cell_rewards in rewards.items():
            variants[name], metrics = _train(job, name, cell_rewards, training)
            curves.append((_PAPER_NAMES.get(name, name), metrics))
        judged = {name: _evaluate(job, name, variants[name], held_out) for name in variants}
    if not hosts.first():
        return
    caption = tables.Caption(
        dataset=held_out.provenance[0],
        scorer=job.reader.scorer,
        step_budget=job.settings.max_steps,
        seed=config.seed,
        questions=len(held_out.questions),
        details={
            "updates": str(config.steps),
            "temperature": str(job.settings.temperature),
            "rollouts a question": str(config.eval_data.samples),
            "reader": config.reader.checkpoint,
            "embedder": embed.NAME,
            "scored differently by the strict rules": audit.mode_differences(
                [pair for pairs in judged.values() for pair in pairs], benchmark=mmlongbench
            ),
            "commit": facts["commit"],
        },
    )
    _report(run_dir, judged, caption, curves, facts, seconds=time.monotonic() - began)


def _plan(job, training, held_out, facts) -> list[tuple[str, str]]:
    config, groups = job.config, job.config.groups
    return [
        ("policy", f"{config.policy.checkpoint}, {job.policy.size:,} parameters"),
        ("reader", f"{config.reader.checkpoint}, {job.reader.size:,} parameters, frozen"),
        ("training", "; ".join(training.provenance)),
        ("held out", "; ".join(held_out.provenance)),
        *((f"reward {name}", str(values)) for name, values in config.rewards.items()),
        (
            "updates",
            f"{config.steps} of {groups.questions_per_step} questions x {groups.group_size} "
            f"rollouts for each reward, seed {config.seed}",
        ),
        ("devices", f"{dict(job.policy.mesh.shape)}, {jax.process_count()} processes"),
        ("written to", config.run_dir),
        ("commit", facts["commit"]),
    ]


def _train(
    job: _Job, name: str, cell_rewards: CellRewards, library: build.Library
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Trains from the warm start with one reward, or goes on from the newest checkpoint.

    Returns:
      All parameters after the last update, which are exported as `policy-STEP` in Hugging
      Face's form, and the metrics of every step.
    """
    config = job.config
    folder = job.run_dir / name
    folder.mkdir(exist_ok=True)
    metrics_path, rollouts_path = folder / "metrics.jsonl", folder / "trajectories.jsonl"
    optimizer = state.adamw(**config.optimizer, updates=checks.update_count(config))
    frozen, trained, join = build.trained_part(job.policy, **config.lora, seed=config.seed)
    whole = functools.partial(join, frozen)
    update = grpo.make_update(
        job.policy.model,
        frozen,
        optimizer,
        functools.partial(losses.clipped_policy_loss, **config.loss),
        banned=job.policy.banned,
        temperature=job.settings.temperature,
        chunk_size=config.log_prob_chunk,
        mesh=job.policy.mesh,
        dtype=job.policy.dtype,
        join=join,
    )
    measured: dict[int, float | None] = {}
    with checkpoint.open_checkpoints(
        folder / "checkpoints",
        keep=config.checkpoints_kept,
        keep_best=config.best_checkpoints_kept,
        measured=measured.get,
    ) as kept:
        current = state.initial_state(trained, optimizer, dtype=config.master_dtype)
        current = checkpoint.restore(kept, current, _shared(config, cell_rewards)) or current
        done = int(current.step)
        if done > config.steps:
            raise ValueError(
                f"{folder}: {done} updates are done; found config.steps={config.steps}"
            )
        # What was written after the checkpoint is made again.
        if hosts.first():
            lines.keep(metrics_path, lambda line: line["step"] < done)
            lines.keep(rollouts_path, lambda line: line["seed"][1] < done)
        logs = config.log_to if hosts.first() else ()
        with (
            display.steps(f"{name} {tuple(cell_rewards)}", config.steps, done) as show,
            metric_logs.open_logs(logs, folder, done=done, config=config.to_dict()) as log,
        ):
            skipped = []
            for metrics in lines.read(metrics_path):
                measured[metrics["step"]] = _measure(config, metrics)
                skipped.append(metrics["skipped_updates"])
                show(metrics)
            for step in range(done, config.steps):
                with _profiled(folder) if step == config.profile_step else _NOTHING:
                    current, metrics, rollouts = _step(
                        job, step, current, whole, update, cell_rewards, library, folder
                    )
                # The step's rollouts were made by the policy of the checkpoint of that step.
                measured[step] = _measure(config, metrics)
                if hosts.first():
                    records.append_records(rollouts_path, rollouts)
                    lines.append(metrics_path, [metrics])
                checkpoint.save(kept, current, _shared(config, cell_rewards))
                # The checkpoint before that one is whole by now.
                pending.forget(folder / hosts.own_name("pending"), before=step)
                show(metrics)
                log(metrics)
                skipped.append(metrics["skipped_updates"])
                checks.check_skipped(skipped, config.grpo.stop_after_skipped, folder)
    if hosts.first():
        for outlived in folder.glob("pending*"):
            shutil.rmtree(outlived, ignore_errors=True)
    params = whole(current.params)
    exported = folder / f"policy-{int(current.step)}"
    if not hosts.of_first(exported.exists()):
        build.export(
            job.policy, params, exported, assets=config.policy.checkpoint, dtype=config.export
        )
    return params, lines.read(metrics_path)


@contextlib.contextmanager
def _profiled(folder: pathlib.Path) -> Iterator[None]:
    """A trace of what is done, for TensorBoard's or Perfetto's viewer."""
    path = folder / hosts.own_name("profile")
    with jax.profiler.trace(str(path)):
        yield
    display.show_files([path])


def _measure(config: ml_collections.ConfigDict, metrics: Mapping[str, Any]) -> float | None:
    """What the best checkpoints are chosen by, where any are kept."""
    if not config.best_checkpoints_kept:
        return None
    if config.best_metric not in metrics:
        raise ValueError(f"best_metric {config.best_metric!r}: expected one of {sorted(metrics)}")
    return metrics[config.best_metric]


def _step(
    job: _Job, step, current: state.TrainState, whole, update, cell_rewards, library, folder
) -> tuple[state.TrainState, dict[str, Any], list[records.Record]]:
    """Rolls out, judges and updates once."""
    groups, seed = job.config.groups, job.config.seed
    times, pages_before = [time.monotonic()], job.policy.features.counts.copy()
    questions = batch.questions_at_step(
        library.questions, seed=seed, step=step, count=groups.questions_per_step
    )
    tasks = grpo.tasks_at_step(questions, group_size=groups.group_size, seed=seed, step=step)
    trajectories, of_sampler = _play(job, tasks, whole(current.params), step, library, folder)
    times.append(time.monotonic())
    verdicts = job.judge(trajectories)
    times.append(time.monotonic())
    outcome = grpo.outcome(
        trajectories,
        verdicts,
        group_size=groups.group_size,
        cells=cell_rewards,
        epsilon=groups.epsilon,
        ddof=groups.ddof,
        scale_by_std=groups.scale_by_std,
    )
    rollouts = [
        records.Record(trajectory, task[2], verdict)
        for task, trajectory, verdict in zip(tasks, trajectories, verdicts, strict=True)
    ]
    current, of_update = _updates(job, step, current, update, rollouts, outcome, folder)
    times.append(time.monotonic())
    of_rollouts = grpo.step_metrics(trajectories, verdicts, outcome)
    sampled = of_rollouts["completions/mean_length"] * len(trajectories)
    of_pages = {name: n - pages_before[name] for name, n in job.policy.features.counts.items()}
    caches = {name: n for name, n in of_sampler.items() if name.startswith("cache/")}
    # Of the rollouts and the update together.
    caches |= {f"cache/{name}": count for name, count in of_pages.items()}
    metrics = {
        "step": step,
        "epoch": (step + 1) * groups.questions_per_step / len(library.questions),
        **of_rollouts,
        **of_update,
        "seconds": times[3] - times[0],
        "step_time": times[3] - times[0],
        "seconds/rollout": times[1] - times[0],
        "seconds/judge": times[2] - times[1],
        "seconds/update": times[3] - times[2],
        "tokens_per_second": sampled / (times[1] - times[0]),
        **of_sampler,
        **hosts.total(caches),
        **{f"compiled/{half}": count for half, count in update.compiled().items()},
    }
    return current, metrics, rollouts


def _updates(
    job: _Job,
    step: int,
    current: state.TrainState,
    update: grpo.Update,
    rollouts: Sequence[records.Record],
    outcome: grpo.Outcome,
    folder: pathlib.Path,
) -> tuple[state.TrainState, dict[str, float]]:
    """The step's updates, one for each mini-batch of each epoch, and the means of their metrics.

    One whose loss or gradient is not finite is skipped: what it was given goes to disk, with
    tokens; the parameters are those of the checkpoint of this step, where it was the first.
    """
    config, found, skipped = job.config, [], 0
    parts = grpo.minibatches(
        config.groups.questions_per_step,
        epochs=config.grpo.epochs,
        minibatches=config.grpo.minibatches,
        seed=(config.seed, step),
    )
    trajectories = [record.trajectory for record in rollouts]
    own = hosts.share(trajectories)
    for number, groups in enumerate(parts):
        sequences, left_out = grpo.trained_sequences(trajectories, outcome, own, groups)
        if config.groups.leave_out_equal:
            left_out = 0
        batches = job.policy.pack(sequences, batch.PackShape(**config.packing))
        try:
            current, metrics = grpo.update_state(update, current, batches, left_out)
        except grpo.NotFinite:
            skipped, metrics = skipped + 1, {}
            path = folder / hosts.own_name(f"skipped-{step}-{number}.jsonl")
            path.unlink(missing_ok=True)
            group_size = config.groups.group_size
            places = [i for i in range(len(rollouts))[own] if i // group_size in groups]
            records.append_records(path, [rollouts[i] for i in places], with_tokens=True)
        else:
            # The step counts steps.
            current = current._replace(step=current.step - 1)
        found.append(metrics)
    names = dict.fromkeys(name for metrics in found for name in metrics)
    means = {}
    for name in names:
        values = [metrics[name] for metrics in found if name in metrics]
        means[name] = sum(values) / len(values)
    if means:
        means |= {
            "clip_ratio/low_mean": means["clip_low_share"],
            "clip_ratio/high_mean": means["clip_high_share"],
            "clip_ratio/region_mean": means["clip_low_share"] + means["clip_high_share"],
        }
    means["learning_rate"] = float(job.rate(step * len(parts)))
    means["skipped_updates"] = skipped
    return current._replace(step=current.step + 1), means


def _of_all(tasks: Sequence[grpo.Task], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories of all processes; those of other tasks than these went through JSON."""
    if jax.process_count() == 1:
        return list(trajectories)
    own = [records.Record(each, task[2]) for task, each in zip(tasks, trajectories, strict=True)]
    mine = {record.seed: record.trajectory for record in own}
    lines_of_all = hosts.gathered([records.to_json(record, with_tokens=True) for record in own])
    found = (records.from_json(line) for line in lines_of_all)
    return [mine.get(record.seed, record.trajectory) for record in found]


def _shared(config: ml_collections.ConfigDict, cell_rewards: CellRewards) -> dict[str, Any]:
    """The settings that a resumed run must have in common with the one that it goes on from."""
    settings = {**config.to_dict(), "rewards": cell_rewards}
    what_else = ("run_dir", "eval_data", "export", "log_to", "profile_step")
    kept = ("checkpoints_kept", "best_checkpoints_kept", "best_metric")
    for free in (*what_else, *kept, "mesh", "hosts", "remat", "attention"):
        del settings[free]
    # A rate that is constant does not depend on how long the run is.
    if config.optimizer.decay == "constant":
        del settings["steps"]
    # As it comes back from the checkpoint, lists for tuples.
    return json.loads(json.dumps(settings))


def _play(
    job: _Job, tasks: Sequence[grpo.Task], params, step: int, library: build.Library, folder
) -> tuple[list[Trajectory], dict[str, int]]:
    """The step's rollouts, those on disk included, and the counts of the sampler."""
    generate = job.policy.generate(params, version=step)
    # Merged adapters are a copy of their own.
    del params
    own = tasks[hosts.share(tasks)]

    def roll_out(part: Sequence[grpo.Task]) -> list[Trajectory]:
        trajectories = job.roll_out_own(part, generate, library)
        # No part sees what another left; and the reader and the update need the room.
        generate.release()
        return trajectories

    trajectories = pending.play(
        own,
        roll_out,
        path=pending.path_of(folder / hosts.own_name("pending"), step),
        part=job.config.groups.rollouts_at_once,
        version=step,
        render=library.render,
    )
    return _of_all(own, trajectories), generate.metrics


def _evaluate(
    job: _Job, name: str, params, library: build.Library
) -> list[tuple[Trajectory, Verdict]]:
    """Rolls out every held-out question at the training temperature and judges."""
    steps = 0 if params is job.policy.params else job.config.steps
    path = job.run_dir / f"evaluation-{name}-{steps}.jsonl"
    with display.phase(f"evaluate {name}"), hosts.written_by_first(path) as path:
        return evaluate(
            library.questions,
            roll_out=lambda tasks: job.roll_out(
                tasks, job.policy.generate(params, version=steps), library
            ),
            judge=job.judge,
            seed=(job.config.seed, _EVALUATION),
            samples=job.config.eval_data.samples,
            path=path,
            settings={
                section: job.config[section].to_dict()
                for section in ("policy", "reader", "rollout", "sampler")
            }
            | {"data": build.page_settings(job.config.eval_data)},
        )


def _report(run_dir, judged, caption, curves, facts, *, seconds: float) -> None:
    """Writes and shows Table 5, the curves, the page and the summary."""
    rows = [
        (_PAPER_NAMES.get(name, name), cells.summarize(verdict for _, verdict in pairs))
        for name, pairs in judged.items()
    ]
    paths = tables.write_tables(run_dir, "table", rows, caption)
    curves_path = run_dir / "curves.png"
    tables.write_curves(curves_path, curves, window=5)
    *_, before, last = judged
    paired, _ = statistics.pair(judged[before], judged[last])
    # A bootstrap of nothing is an error; a run whose judge failed still gets its tables.
    comparable = any(not (pair[1].error or pair[3].error) for pair in paired)
    page = report.write_report(
        run_dir / "report.html",
        judged[last],
        title=f"{rows[-1][0]}, held-out documents",
        before=(rows[-2][0], judged[before]),
        changes=statistics.paired_bootstrap(judged[before], judged[last], seed=0)
        if comparable
        else None,
        provenance={"data": caption.dataset, "scorer": caption.scorer, **caption.details},
        rows=rows,
        curves=curves_path.read_bytes(),
    )
    summary = json.loads(tables.to_json(rows, caption)) | {"seconds": seconds, "provenance": facts}
    summary_path = run_dir / "summary.json"
    summary_path.write_text(json.dumps(summary, indent=1), encoding="utf-8")
    display.show_table(tables.COLUMNS, [tables.cells_of_row(*row) for row in rows], str(caption))
    display.show_files([*paths, curves_path, page, summary_path])
