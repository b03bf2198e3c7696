"""Asks every question, judges what comes back, and writes it down as it goes."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from awm_jax.agent.records import Costs, Record, append_records, keep_records, read_records
from awm_jax.agent.rollout import Task
from awm_jax.types import Question, Trajectory, Verdict


def evaluate(
    questions: Sequence[Question],
    *,
    roll_out: Callable[[Sequence[Task]], Sequence[Trajectory]],
    judge: Callable[[Sequence[Trajectory]], Sequence[Verdict]],
    seed: tuple[int, ...],
    samples: int,
    path: pathlib.Path,
    at_once: int = 512,
    redo_failed: bool = False,
    costs: Callable[[tuple[int, ...]], Costs | None] = lambda seed: None,
    settings: Mapping[str, Any] | None = None,
) -> list[tuple[Trajectory, Verdict]]:
    """The judged rollouts of all questions, question by question.

    What `path` holds already is not done again, so that a killed evaluation goes on.

    Args:
      questions: with ids that differ.
      roll_out: plays the agent, one trajectory a task.
      judge: one verdict a trajectory.
      seed: of the evaluation; each rollout adds the question's place and its own index.
      samples: rollouts a question.
      path: the records, one a line, in the order in which they were finished.
      at_once: rollouts between two appends to the file.
      redo_failed: what `path` holds without a judgement is taken out and done again, for
        servers that may be back: rollouts that are not valid as a whole, others judged anew.
      costs: a rollout's seed -> what it took, where that is known.
      settings: what the rollouts and verdicts depend on beside the seed, as JSON has it. Kept
        beside `path`, so that rollouts made under others are not taken for these.

    Raises:
      ValueError: `path` holds rollouts of another seed, of other questions or settings.
    """
    if settings is not None:
        _check_settings(path, settings)
    tasks = [
        (question, sample, (*seed, place, sample))
        for place, question in enumerate(questions)
        for sample in range(samples)
    ]
    wanted = {(question.id, sample): task_seed for question, sample, task_seed in tasks}
    found = read_records(path)
    for record in found:
        key = (record.trajectory.question.id, record.trajectory.rollout)
        if wanted.get(key) != record.seed:
            raise ValueError(
                f"{path}: found question {key[0]}, rollout {key[1]}, seed {record.seed}; expected "
                f"seed {wanted.get(key)}. It is of another run: use another run directory"
            )
    unjudged = []
    if redo_failed:
        failed = [record for record in found if not _is_judged(record)]
        unjudged = [record for record in failed if record.trajectory.valid]
        found = [record for record in found if _is_judged(record)]
        if failed:
            keep_records(path, _is_judged)
    done = {}

    def write(records: Sequence[Record]) -> None:
        append_records(path, records)
        note(records)

    def note(records: Sequence[Record]) -> None:
        for record in records:
            key = (record.trajectory.question.id, record.trajectory.rollout)
            done[key] = (record.trajectory, record.verdict)

    note(found)
    if unjudged:
        verdicts = judge([record.trajectory for record in unjudged])
        write(
            [
                dataclasses.replace(record, verdict=verdict)
                for record, verdict in zip(unjudged, verdicts, strict=True)
            ]
        )
    missing = [task for task in tasks if (task[0].id, task[1]) not in done]
    for start in range(0, len(missing), at_once):
        part = missing[start : start + at_once]
        trajectories = roll_out(part)
        verdicts = judge(trajectories)
        write(
            [
                Record(trajectory, task[2], verdict, costs(task[2]))
                for task, trajectory, verdict in zip(part, trajectories, verdicts, strict=True)
            ]
        )
    return [done[question.id, sample] for question, sample, _ in tasks]


def _check_settings(path: pathlib.Path, settings: Mapping[str, Any]) -> None:
    kept, settings = path.with_suffix(".settings.json"), json.loads(json.dumps(settings))
    if not kept.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return
    found = json.loads(kept.read_text(encoding="utf-8"))
    differing = [
        f"{name}: found {found.get(name)!r}, expected {settings.get(name)!r}"
        for name in sorted(found.keys() | settings.keys())
        if found.get(name) != settings.get(name)
    ]
    if differing:
        raise ValueError(
            f"{path} holds rollouts made under other settings; use another run directory:\n  "
            + "\n  ".join(differing)
        )


def _is_judged(record: Record) -> bool:
    return record.verdict is not None and not record.verdict.error
