"""Fine-tunes a policy on recorded trajectories and exports it."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
import rich.text

from awm_jax.agent import records, rollout
from awm_jax.commands import build, checks, display, provenance
from awm_jax.documents import pdf, workers
from awm_jax.training import batch, checkpoint, grpo, hosts, lines, sft, sharding, state
from awm_jax.types import ANSWERED, Render, Trajectory

# Column title, metric, format.
_COLUMNS = (
    ("step", "step", "{:>5.0f}"),
    ("loss", "loss", "{:.4f}"),
    ("held out", "held_out_loss", "{:.4f}"),
    ("trained", "trained_tokens", "{:,.0f}"),
    ("filled", "filled", "{:.2f}"),
    ("grad norm", "grad_norm", "{:.3f}"),
    ("rate", "learning_rate", "{:.1e}"),
    ("s", "seconds", "{:.1f}"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """What all parts of the job share."""

    config: ml_collections.ConfigDict
    policy: build.Policy
    render: Render
    settings: rollout.RolloutSettings
    taught: Sequence[Trajectory]
    held_out: Sequence[Trajectory]

    @property
    def updates(self) -> int:
        """All epochs, laid end to end; the last update takes what it lacks from a next one."""
        return -(-self.config.epochs * len(self.taught) // self.config.trajectories_per_update)

    @property
    def shape(self) -> batch.PackShape:
        return batch.PackShape(**self.config.packing)

    def sequences(self, trajectory: Trajectory, index: int) -> list[batch.TrainingSequence]:
        return sft.lesson(
            trajectory,
            index,
            processor=self.policy.processor,
            render=self.render,
            settings=self.settings,
        )

    def batches(self, trajectories: Sequence[Trajectory]) -> Iterator[batch.PolicyBatch]:
        """Micro-batches; the loss is a sum over tokens, so each sequence goes where it fits.

        Each process makes those of its share; the batches are of all of them.
        """
        own = hosts.share(trajectories)
        sequences = [
            sequence
            for index, trajectory in list(enumerate(trajectories))[own]
            for sequence in self.sequences(trajectory, index)
        ]
        sequences.sort(key=lambda sequence: -len(sequence.token_ids))
        return self.policy.pack([([sequence], 1.0) for sequence in sequences], self.shape)


def run(config: ml_collections.ConfigDict) -> None:
    """Checks every trajectory, trains, and writes the policy in Hugging Face's form.

    Several processes do it together (`config.hosts`); each is given the same command.
    """
    with hosts.together(**config.hosts):
        _run(config)


def _run(config: ml_collections.ConfigDict) -> None:
    checks.check_attention(config.attention, jax.default_backend(), config.policy.dtype)
    display.console.quiet = not hosts.first()
    run_dir = pathlib.Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    facts = provenance.facts(config)
    recorded, digests = read_trajectories(config.trajectories)
    job, documents = _job(config, [t for t in recorded if t.status == ANSWERED])
    with display.phase("trajectories played again"):
        job, sizes = _checked(job)
    sizes["unanswered_left_out"] = sum(t.status != ANSWERED for t in recorded)
    display.show_plan(
        "SFT",
        [
            ("policy", f"{config.policy.checkpoint}, {job.policy.size:,} parameters"),
            ("trajectories", "\n".join(f"{name} sha256 {d[:12]}" for name, d in digests.items())),
            ("documents", f"{len(documents)} in {config.data.root}"),
            ("lessons", ", ".join(f"{name} {count:,}" for name, count in sizes.items())),
            ("updates", f"{job.updates} of {config.trajectories_per_update} trajectories"),
            ("devices", f"{dict(job.policy.mesh.shape)}, {jax.process_count()} processes"),
            ("written to", config.run_dir),
            ("commit", facts["commit"]),
        ],
    )
    exported = run_dir / "policy"
    params, metrics = _train(job, run_dir, digests)
    if not hosts.of_first(exported.exists()):
        build.export(
            job.policy, params, exported, assets=config.policy.checkpoint, dtype=config.export
        )
    if not hosts.first():
        return
    summary = {
        "lessons": sizes,
        "trajectories_sha256": digests,
        "updates": job.updates,
        "first_loss": metrics[0]["loss"],
        "last_loss": metrics[-1]["loss"],
        "held_out_loss": [m["held_out_loss"] for m in metrics if "held_out_loss" in m],
        "seconds": time.monotonic() - began,
        "provenance": facts,
    }
    path = run_dir / "summary.json"
    path.write_text(json.dumps(summary, indent=1), encoding="utf-8")
    display.show_files([exported, run_dir / "metrics.jsonl", path])


def read_trajectories(paths: Sequence[str]) -> tuple[list[Trajectory], dict[str, str]]:
    """All trajectories of the files, in order, and the files' sha256 by name.

    Raises:
      ValueError: a file is missing, or holds none; all such files are named.
    """
    found = {path: records.read_records(path) for path in paths}
    if empty := [path for path, read in found.items() if not read]:
        raise ValueError(f"no trajectories in {empty}; expected files of records, one a line")
    if not found:
        raise ValueError("--config.trajectories names no file")
    digests = {path: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() for path in found}
    return [record.trajectory for read in found.values() for record in read], digests


def _job(config, trajectories: Sequence[Trajectory]) -> tuple[_Job, Mapping[str, Any]]:
    documents, failures = pdf.open_documents(
        pathlib.Path(config.data.root) / "documents",
        (trajectory.question.document for trajectory in trajectories),
        run=workers.run,
    )
    if failures:
        raise ValueError("documents cannot be opened:\n  " + "\n  ".join(failures.values()))
    # A share that depends on nothing but the order of the file.
    if not 0 <= config.held_out < len(trajectories):
        raise ValueError(
            f"held_out {config.held_out}: expected fewer than the {len(trajectories)} answered "
            "trajectories"
        )
    cut = len(trajectories) - config.held_out
    job = _Job(
        config,
        build.load_policy(
            config.policy,
            ml_collections.ConfigDict(),
            sharding.make_mesh(**config.mesh),
            rows=config.packing.rows,
            remat=config.remat,
            attention=config.attention,
        ),
        build.make_render(config.data, documents),
        rollout.RolloutSettings(**config.rollout),
        trajectories[:cut],
        trajectories[cut:],
    )
    return job, documents


def _checked(job: _Job) -> tuple[_Job, dict[str, int]]:
    """Plays every trajectory again before the first update, so that none fails in the middle.

    Raises:
      ValueError: some cannot be taught; all are named. Those that do not fit are left out where
        `leave_out_oversized` says so.
    """
    wrong, oversized, lengths, trained = [], [], [], 0

    def teachable(trajectory: Trajectory) -> bool:
        nonlocal trained
        try:
            sequences = job.sequences(trajectory, 0)
        except ValueError as error:
            wrong.append(str(error))
            return False
        too_much = sft.oversized(
            sequences, job.shape, image_token_id=job.policy.processor.image_token_id
        )
        if too_much:
            oversized.append(f"question {trajectory.question.id}: {', '.join(too_much)}")
            return False
        lengths.extend(len(sequence.token_ids) for sequence in sequences)
        trained += sum(int(sequence.trained.sum()) for sequence in sequences)
        return True

    taught = list(filter(teachable, job.taught))
    held_out = list(filter(teachable, job.held_out))
    if oversized and not job.config.leave_out_oversized:
        wrong += [f"does not fit into a micro-batch: {what}" for what in oversized]
    if wrong or not taught:
        raise ValueError(
            f"{len(wrong)} trajectories cannot be taught, {len(oversized)} do not fit, "
            f"{len(taught)} are left:\n" + "\n".join(wrong)
        )
    sizes = {
        "trajectories": len(taught),
        "held_out": len(held_out),
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "trained_tokens": trained,
        "longest": max(lengths),
        "oversized_left_out": len(oversized),
    }
    return dataclasses.replace(job, taught=taught, held_out=held_out), sizes


def _train(
    job: _Job, run_dir: pathlib.Path, digests: Mapping[str, str]
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Trains, or goes on from the newest checkpoint: all parameters, every update's metrics."""
    config = job.config
    rate = sft.schedule(updates=job.updates, **config.schedule)
    optimizer = sft.optimizer(rate, **config.optimizer)
    frozen, trained = build.split_frozen(job.policy.params)
    update = grpo.make_update(
        job.policy.model,
        frozen,
        optimizer,
        sft.cross_entropy,
        # Exported weights must hold for servers that ban nothing.
        banned=np.zeros(job.policy.model.config.text.vocab_size, bool),
        temperature=1.0,
        chunk_size=config.log_prob_chunk,
        mesh=job.policy.mesh,
        dtype=job.policy.dtype,
    )
    path = run_dir / "metrics.jsonl"
    settings = _shared(config, digests)
    with checkpoint.open_checkpoints(run_dir / "checkpoints", keep=config.checkpoints_kept) as kept:
        current = state.initial_state(trained, optimizer, dtype=config.master_dtype)
        current = checkpoint.restore(kept, current, settings) or current
        done = int(current.step)
        # What was written after the checkpoint is made again.
        if hosts.first():
            lines.keep(path, lambda line: line["step"] < done)
        _show_line(title for title, _, _ in _COLUMNS)
        for metrics in lines.read(path):
            _show(metrics)
        for step in range(done, job.updates):
            current, metrics = _step(job, step, current, update)
            metrics["learning_rate"] = float(rate(step))
            if hosts.first():
                lines.append(path, [metrics])
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == job.updates:
                checkpoint.save(kept, current, settings)
            _show(metrics)
    return {**frozen, **current.params}, lines.read(path)


def _step(
    job: _Job, step: int, current: state.TrainState, update: grpo.Update
) -> tuple[state.TrainState, dict[str, Any]]:
    """One update; after the last one of an epoch the held-out loss is measured."""
    start = time.monotonic()
    count = job.config.trajectories_per_update
    epoch, following = (place * count // len(job.taught) for place in (step, step + 1))
    chosen = batch.questions_at_step(job.taught, seed=job.config.seed, step=step, count=count)
    batches = list(job.batches(chosen))
    current, of_update = grpo.update_state(update, current, batches, 0)
    tokens = sum(int((one.segment_ids > 0).sum()) for one in batches)
    metrics = {
        "step": step,
        "epoch": epoch,
        **of_update,
        "trained_tokens": sum(int(one.mask.sum()) for one in batches),
        "tokens": tokens,
        "micro_batches": len(batches),
        "filled": tokens / sum(one.segment_ids.size for one in batches),
        **{f"compiled/{half}": programs for half, programs in update.compiled().items()},
    }
    if job.held_out and (following > epoch or step + 1 == job.updates):
        # The program that the updates use gives the loss; its gradient is not looked at.
        losses = [
            update.accumulate(current.params, None, one).loss for one in job.batches(job.held_out)
        ]
        total, weight = (sum(float(part) for part in parts) for parts in zip(*losses, strict=True))
        metrics["held_out_loss"] = total / weight
    return current, metrics | {"seconds": time.monotonic() - start}


def _shared(config: ml_collections.ConfigDict, digests: Mapping[str, str]) -> dict[str, Any]:
    """The settings that a resumed run must have in common with the one that it goes on from."""
    settings = {**config.to_dict(), "trajectories": sorted(digests.values())}
    what_else = ("run_dir", "checkpoint_every", "checkpoints_kept", "export")
    for free in (*what_else, "mesh", "hosts", "remat", "attention"):
        del settings[free]
    # As it comes back from the checkpoint, lists for tuples.
    return json.loads(json.dumps(settings))


def _show(metrics: Mapping[str, float]) -> None:
    _show_line(form.format(metrics[name]) if name in metrics else "-" for _, name, form in _COLUMNS)


def _show_line(cells: Iterable[str]) -> None:
    display.console.print(rich.text.Text("  ".join(f"{cell:>9}" for cell in cells)))
