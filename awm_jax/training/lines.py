"""Files of one JSON object a line, kept in step with a run's checkpoints."""

import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Line = Mapping[str, Any]


def append(path: pathlib.Path, new: Iterable[Line]) -> None:
    """Appends one line an object and waits until they are on disk."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """All objects; none where there is no file. A last line that a kill left torn is left out."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]


def keep(path: pathlib.Path, wanted: Callable[[Line], bool]) -> None:
    """Rewrites the file with the wanted objects alone; a kill leaves the old file or the new."""
    if not path.exists():
        return
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    append(new, filter(wanted, read(path)))
    new.replace(path)
