"""Asks every question, judges what comes back, and writes it down as it goes."""

import pathlib
from collections.abc import Callable, Sequence

from awm_jax.agent.records import Record, append_records, read_records
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

    Raises:
      ValueError: `path` holds rollouts of another seed or of other questions.
    """
    tasks = [
        (question, sample, (*seed, place, sample))
        for place, question in enumerate(questions)
        for sample in range(samples)
    ]
    wanted = {(question.id, sample): task_seed for question, sample, task_seed in tasks}
    done = {}
    for record in read_records(path):
        key = (record.trajectory.question.id, record.trajectory.rollout)
        if wanted.get(key) != record.seed:
            raise ValueError(
                f"{path}: found question {key[0]}, rollout {key[1]}, seed {record.seed}; expected "
                f"seed {wanted.get(key)}. It is of another run: use another run directory"
            )
        done[key] = (record.trajectory, record.verdict)
    missing = [task for task in tasks if (task[0].id, task[1]) not in done]
    for start in range(0, len(missing), at_once):
        part = missing[start : start + at_once]
        trajectories = roll_out(part)
        verdicts = judge(trajectories)
        append_records(
            path,
            [
                Record(trajectory, task[2], verdict)
                for task, trajectory, verdict in zip(part, trajectories, verdicts, strict=True)
            ],
        )
        for (question, sample, _), trajectory, verdict in zip(
            part, trajectories, verdicts, strict=True
        ):
            done[question.id, sample] = (trajectory, verdict)
    return [done[question.id, sample] for question, sample, _ in tasks]
