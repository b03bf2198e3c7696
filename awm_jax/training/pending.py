"""The rollouts of the step under way: on disk as they end, taken up again after a kill.

Rollouts are played in parts. A part starts with an empty cache and its tasks are always the same,
so that one that is played again gives the same tokens and log-probabilities, bit for bit;
rollouts that were played beside others than before would run in programs of other shapes. The
pages' features must not depend on their neighbours either: `pages_at_once` 1 of the config.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from awm_jax.agent.records import Record, append_records, keep_records, read_records
from awm_jax.agent.rollout import Task
from awm_jax.types import Page, Render, Sample, Trajectory


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    """Where the finished rollouts of a step lie in a folder of one process."""
    return folder / f"{step}.jsonl"


def forget(folder: pathlib.Path, *, before: int) -> None:
    """Removes the files of the steps below `before`, whose outcome a checkpoint holds."""
    for path in folder.glob("*.jsonl"):
        if int(path.stem) < before:
            path.unlink(missing_ok=True)


def play(
    tasks: Sequence[Task],
    roll_out: Callable[[Sequence[Task]], Sequence[Trajectory]],
    *,
    path: pathlib.Path,
    part: int,
    version: int,
    render: Render,
) -> list[Trajectory]:
    """One trajectory a task, in order; those that `path` holds whole parts of are not played.

    Args:
      tasks: of one step, with seeds that differ.
      roll_out: plays tasks; what it gives must not depend on what it played before.
      path: the step's file. A part is appended when it has ended, with tokens, log-probabilities
        and the version of the policy.
      part: so many tasks are played and kept together; a kill loses those of one part at most.
      version: of the policy that samples. Rollouts of another are played anew.
      render: shows the pages of rollouts that are taken up.

    Raises:
      ValueError: a page looks otherwise than when the rollout was played.
    """
    parts = [tasks[start : start + part] for start in range(0, len(tasks), part)]
    wanted = {task[2]: index for index, tasks in enumerate(parts) for task in tasks}

    def is_of_step(record: Record) -> bool:
        versions = {turn.sample.policy_version for turn in record.trajectory.turns}
        return record.seed in wanted and versions <= {version}

    found = {record.seed for record in read_records(path) if is_of_step(record)}
    whole = [index for index, tasks in enumerate(parts) if found >= {task[2] for task in tasks}]
    keep_records(path, lambda record: is_of_step(record) and wanted[record.seed] in whole)
    played = {record.seed: _with_pixels(record.trajectory, render) for record in read_records(path)}
    for index, tasks_of_part in enumerate(parts):
        if index in whole:
            continue
        trajectories = roll_out(tasks_of_part)
        records = [
            Record(trajectory, task[2])
            for task, trajectory in zip(tasks_of_part, trajectories, strict=True)
        ]
        append_records(path, records, with_tokens=True)
        played |= {record.seed: record.trajectory for record in records}
    return [played[task[2]] for task in tasks]


def _with_pixels(trajectory: Trajectory, render: Render) -> Trajectory:
    """The trajectory with the images of its samples' pages, which a record leaves out."""

    def shown(page: Page) -> Page:
        found = render(page.document, page.number)
        if found.digest != page.digest:
            raise ValueError(
                f"page {page.number} of {page.document} looks otherwise than when question "
                f"{trajectory.question.id} was rolled out: found {found.digest}, expected "
                f"{page.digest}. Was the file or the rendering changed?"
            )
        return found

    def with_pixels(sample: Sample) -> Sample:
        return dataclasses.replace(sample, pages=tuple(shown(page) for page in sample.pages))

    turns = [
        dataclasses.replace(turn, sample=with_pixels(turn.sample)) for turn in trajectory.turns
    ]
    return dataclasses.replace(trajectory, turns=tuple(turns))
