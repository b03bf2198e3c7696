"""Steps of a data recipe on disk: each in a folder, done once, with a manifest of what made it.

`manifest.json` is written twice: before the work, with settings and the hashes of what goes in,
so that a step that was killed goes on under the same ones or not at all; and after it, with
counts and the hashes of what came out.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from awm_jax.types import Question

MANIFEST = "manifest.json"


def do_step(
    folder: str | pathlib.Path,
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, pathlib.Path],
    outputs: Sequence[str],
    make: Callable[[pathlib.Path], Mapping[str, Any]],
) -> tuple[dict[str, Any], bool]:
    """Does a step, goes on with one that was killed, or finds it done.

    Args:
      folder: of the step alone.
      settings: JSON values that decide what comes out.
      inputs: files that it reads, by a name for each.
      outputs: names of the files that it writes into the folder.
      make: does the work in the folder, where parts of it may be done already, and returns
        what it counted.

    Returns:
      The manifest, and whether there was anything left to do.

    Raises:
      ValueError: the folder was made from other settings or inputs, or a finished step's files
        are not those that it wrote.
    """
    folder = pathlib.Path(folder)
    path = folder / MANIFEST
    if absent := [str(file) for file in inputs.values() if not file.is_file()]:
        raise ValueError(f"{folder}: needs {absent}; do the steps before it first")
    begun = {
        # As it comes back from the file, lists for tuples.
        "settings": json.loads(json.dumps(settings)),
        "inputs": {name: file_digest(file) for name, file in inputs.items()},
    }
    found = read_manifest(folder)
    if found:
        different = [
            f"{part} {name}: found {found[part].get(name)!r}, now {begun[part].get(name)!r}"
            for part in ("settings", "inputs")
            for name in sorted(found[part].keys() | begun[part].keys())
            if found[part].get(name) != begun[part].get(name)
        ]
        if different:
            raise ValueError(
                f"{folder} was made otherwise. Remove it, with all steps after it, to make it "
                "again, or use another run directory.\n  " + "\n  ".join(different)
            )
    if "outputs" in found:
        changed = [
            name
            for name, digest in found["outputs"].items()
            if not (folder / name).is_file() or file_digest(folder / name) != digest
        ]
        if changed:
            raise ValueError(f"{folder}: {changed} are not as the step wrote them; remove it")
        return found, False
    folder.mkdir(parents=True, exist_ok=True)
    _write(path, begun)
    counts = dict(make(folder))
    done = begun | {
        "counts": counts,
        "outputs": {name: file_digest(folder / name) for name in outputs},
    }
    _write(path, done)
    return done, True


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
    """What the manifest says; empty where there is none."""
    path = pathlib.Path(folder) / MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def file_digest(path: pathlib.Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_questions(path: pathlib.Path, questions: Iterable[Question]) -> None:
    """One JSON object a line; a kill leaves no half of the file."""
    text = "".join(json.dumps(vars(question), ensure_ascii=False) + "\n" for question in questions)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def read_questions(path: str | pathlib.Path) -> list[Question]:
    """The questions that `write_questions` wrote.

    Raises:
      ValueError: there is no such file, or a line is no question.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{path}: no questions ({error.strerror})") from error
    questions = []
    for number, line in enumerate(lines, start=1):
        if line:
            try:
                fields = json.loads(line)
                for name in ("evidence_pages", "evidence_sources"):
                    fields[name] = tuple(fields[name])
                questions.append(Question(**fields))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: no question ({error})") from error
    return questions


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    new.replace(path)
