"""Finished rollouts on disk: append-only JSON lines, one a rollout.

A line holds everything but pixels and, unless asked for, tokens: what was said, done and shown,
the memory after each step, how it ended and how it was judged. A run that was killed in the
middle of a line loses that line alone.
"""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from awm_jax.types import (
    Finding,
    Memory,
    Page,
    Question,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

# Goes up when a line changes so that older lines can no longer be read the same way.
SCHEMA = 1

_NO_IMAGE = np.zeros((0, 0, 3), np.uint8)


@dataclasses.dataclass(frozen=True)
class Costs:
    """What the policy's messages of one rollout took.

    Attributes:
      prompt_tokens: read, those of earlier turns each time anew.
      completion_tokens: written.
      seconds: the sum over the messages; None where they were not timed one by one.
    """

    prompt_tokens: int
    completion_tokens: int
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Record:
    """A rollout with its seed and, where they are known, its verdict and its costs."""

    trajectory: Trajectory
    seed: tuple[int, ...] = ()
    verdict: Verdict | None = None
    costs: Costs | None = None


def token_costs(trajectory: Trajectory) -> Costs | None:
    """Costs counted from the samples' tokens; None where they hold none."""
    samples = [turn.sample for turn in trajectory.turns]
    read = sum(len(sample.prompt_ids) for sample in samples)
    written = sum(len(sample.token_ids) for sample in samples)
    return Costs(read, written) if read else None


def to_json(record: Record, *, with_tokens: bool = False) -> dict[str, Any]:
    """`record` as JSON values, which `trajectory.schema.json` describes.

    Args:
      record: without costs, those of its tokens are noted.
      with_tokens: adds ids and log-probs, exactly as sampled.
    """
    trajectory = record.trajectory
    costs = record.costs or token_costs(trajectory)
    return {
        "schema": SCHEMA,
        "question": dataclasses.asdict(trajectory.question),
        "rollout": trajectory.rollout,
        "seed": list(record.seed),
        "status": trajectory.status,
        "error": trajectory.error,
        "final_answer": trajectory.final_answer,
        "memory": _memory_json(trajectory.memory),
        "turns": [_turn_json(turn, with_tokens) for turn in trajectory.turns],
        "verdict": None if record.verdict is None else dataclasses.asdict(record.verdict),
        "costs": None if costs is None else dataclasses.asdict(costs),
    }


def from_json(line: dict[str, Any]) -> Record:
    """The record that `to_json` wrote: pages have no pixels, samples no tokens if none were kept.

    Raises:
      ValueError: another schema, or a part is missing.
    """
    if not isinstance(line, dict):
        raise ValueError(f"a {type(line).__name__}, expected an object")
    if line.get("schema") != SCHEMA:
        raise ValueError(f"a record of schema {line.get('schema')!r}, expected {SCHEMA}")
    try:
        question = dict(line["question"])
        for name in ("evidence_pages", "evidence_sources"):
            question[name] = tuple(question[name])
        trajectory = Trajectory(
            question=Question(**question),
            rollout=line["rollout"],
            turns=tuple(_turn(turn, question["document"]) for turn in line["turns"]),
            final_answer=line["final_answer"],
            memory=_memory(line["memory"]),
            status=line["status"],
            error=line["error"],
        )
        verdict = None if line["verdict"] is None else Verdict(**line["verdict"])
        # Lines of the first version have no costs.
        costs = None if line.get("costs") is None else Costs(**line["costs"])
        return Record(trajectory, tuple(line["seed"]), verdict, costs)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no record of a rollout: {type(error).__name__}: {error}") from error


def append_records(
    path: str | pathlib.Path, records: Iterable[Record], *, with_tokens: bool = False
) -> None:
    """Appends a line for each record and waits until the disk has them.

    A last line that a killed run left torn is cut off first. One process writes at a time.
    """
    lines = [json.dumps(to_json(record, with_tokens=with_tokens)) + "\n" for record in records]
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        _end_last_line(file, path)
        file.write("".join(lines).encode())
        file.flush()
        os.fsync(file.fileno())


def read_records(path: str | pathlib.Path) -> list[Record]:
    """All records of a file, in order; none where there is no file.

    A torn last line is left out with a warning; the file stays as it is, since its writer may
    still be at work.

    Raises:
      ValueError: another line cannot be read.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    if _is_whole(rest):
        lines.append(rest)
    elif rest:
        _warn_torn(path, len(rest))
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(from_json(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return records


def keep_records(path: str | pathlib.Path, wanted: Callable[[Record], bool]) -> None:
    """Takes the records out that are not wanted; the others stay byte for byte.

    The file is exchanged as a whole: a kill leaves the old one or the new one.

    Raises:
      ValueError: a line cannot be read.
    """
    path = pathlib.Path(path)
    # A torn last line is not among the records and goes with the first that is taken out.
    records = read_records(path)
    lines = path.read_bytes().split(b"\n")[: len(records)] if path.exists() else []
    kept = [line for line, record in zip(lines, records, strict=True) if wanted(record)]
    if len(kept) == len(lines):
        return
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _end_last_line(file: BinaryIO, path: pathlib.Path) -> None:
    """Gives the last line its line end, or cuts it off where it is torn."""
    position = end = file.seek(0, os.SEEK_END)
    rest = b""
    while position > 0 and b"\n" not in rest:
        position = max(position - (1 << 16), 0)
        file.seek(position)
        rest = file.read(end - position)
    rest = rest.rpartition(b"\n")[2]
    if _is_whole(rest):
        file.write(b"\n")
    elif rest:
        _warn_torn(path, len(rest))
        file.truncate(end - len(rest))


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _warn_torn(path: pathlib.Path, size: int) -> None:
    logging.getLogger(__name__).warning("%s: left out a torn last line of %d bytes", path, size)


def _memory_json(memory: Memory) -> list[dict[str, Any]]:
    return [dataclasses.asdict(finding) for finding in memory.findings]


def _memory(findings: Iterable[Mapping[str, Any]]) -> Memory:
    return Memory(tuple(Finding(**finding) for finding in findings))


def _turn_json(turn: Turn, with_tokens: bool) -> dict[str, Any]:
    sample = turn.sample
    line = {
        "context": turn.context,
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "policy_version": sample.policy_version,
        "token_count": len(sample.token_ids),
        "calls": [dataclasses.asdict(call) for call in turn.calls],
        "observation": [_part_json(part) for part in turn.observation],
        "violations": list(turn.violations),
        "memory": _memory_json(turn.memory),
    }
    if with_tokens:
        line["tokens"] = {
            "prompt_ids": sample.prompt_ids.tolist(),
            "token_ids": sample.token_ids.tolist(),
            "log_probs": sample.log_probs.tolist(),
            "pages": [_part_json(page) for page in sample.pages],
        }
    return line


def _turn(line: Mapping[str, Any], document: str) -> Turn:
    tokens = line.get("tokens", {"prompt_ids": [], "token_ids": [], "log_probs": [], "pages": []})
    sample = Sample(
        prompt_ids=np.array(tokens["prompt_ids"], np.int32),
        token_ids=np.array(tokens["token_ids"], np.int32),
        log_probs=np.array(tokens["log_probs"], np.float32),
        text=line["text"],
        finish_reason=line["finish_reason"],
        pages=tuple(_part(page, document) for page in tokens["pages"]),
        policy_version=line["policy_version"],
    )
    return Turn(
        context=line["context"],
        sample=sample,
        calls=tuple(ToolCall(**call) for call in line["calls"]),
        observation=tuple(_part(part, document) for part in line["observation"]),
        violations=tuple(line["violations"]),
        memory=_memory(line["memory"]),
    )


def _part_json(part: str | Page) -> str | dict[str, Any]:
    return part if isinstance(part, str) else {"page": part.number, "digest": part.digest}


def _part(part: str | Mapping[str, Any], document: str) -> str | Page:
    if isinstance(part, str):
        return part
    return Page(document, part["page"], _NO_IMAGE, part["digest"])
