"""metrics.jsonl and other files of one JSON object a line, kept in step with checkpoints."""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any


def append_lines(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line a record and waits until they are on disk."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """All records; a torn last line, left by a kill, is passed over."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[-1]:
        lines = lines[:-1]
    return [json.loads(line) for line in lines if line]


def drop_from_step(path: pathlib.Path, step: int) -> None:
    """Removes records of `step` and later, which a resumed run makes again."""
    kept = [record for record in read_lines(path) if record["step"] < step]
    if path.exists():
        whole = path.with_suffix(".tmp")
        whole.unlink(missing_ok=True)
        append_lines(whole, kept)
        whole.replace(path)
