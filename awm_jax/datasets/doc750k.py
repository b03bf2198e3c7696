"""Doc-750K (Docopilot, Duan et al., 2025): JSON lines -> questions.

Written from the loader code of its repository; no row of the set was at hand. A line has
`conversations`, turns by "human" and "gpt" in turn, and `images`, paths relative to the set's
root, one for each `<image>` in the text. Each pair of turns is a question, and the images are the
pages of its document, in order. There are no evidence pages and no answer formats, so that only a
model can score an answer (`answer_format` is `FREE`, which no rule knows).

A document is what rows with the same images have in common. `link_pages` lays it out as
`documents.pdf` reads documents of page images.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from awm_jax.datasets.report import BAD_RECORD, MISSING_DOCUMENT, Problem, Report, check_text
from awm_jax.types import Question

FREE = "free"
# The files whose documents are page images; the others have text beside figures.
RENDERED = "**/*rendered*.jsonl"

_IMAGE = "<image>"
# A line that holds images and what numbers them, such as "Image-1: <image>".
_IMAGE_LINE = re.compile(r"^[^\n<]{0,40}(?:<image>\s*)+$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a file, checked: the document's page images and (question, answer) pairs."""

    images: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]

    @property
    def document(self) -> str:
        """The document's id: equal for equal images."""
        return hashlib.sha256("\0".join(self.images).encode()).hexdigest()[:16]


def load(
    root: str | pathlib.Path, *, files: str = RENDERED
) -> tuple[list[Question], dict[str, tuple[str, ...]], Report]:
    """The questions of the files, in order, their documents, and what is odd about them.

    A line that cannot be read is left out and reported; it never stops the rest.

    Args:
      root: the folder of the set, to which image paths are relative.
      files: which files below it, as a glob pattern.

    Returns:
      Questions; paths of page images by document id; the report, whose digest is that of all
      files and whose indices count lines over all files.

    Raises:
      ValueError: no file matches.
    """
    root = pathlib.Path(root)
    paths = sorted(root.glob(files))
    if not paths:
        raise ValueError(f"{root}: no file matches {files!r}; expected JSON lines of Doc-750K")
    questions, documents, problems = [], {}, []
    missing: list[str] = []
    digest, index = hashlib.sha256(), 0
    for path in paths:
        name = path.relative_to(root).with_suffix("").as_posix()
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                if not line.strip():
                    continue
                try:
                    row = read_row(json.loads(line))
                except (ValueError, RecursionError) as error:
                    problems.append(Problem(index, "", BAD_RECORD, f"{name}:{number}: {error}"))
                else:
                    document = row.document
                    if document not in documents:
                        documents[document] = row.images
                        absent = [image for image in row.images if not (root / image).is_file()]
                        if absent:
                            missing.append(document)
                            problems.append(Problem(index, "", MISSING_DOCUMENT, absent[0]))
                    questions += [
                        Question(f"{name}:{number}:{turn}", document, question, answer, FREE)
                        for turn, (question, answer) in enumerate(row.pairs)
                    ]
                index += 1
    report = Report(
        path=f"{root}/{files}",
        digest=digest.hexdigest(),
        records=index,
        answer_formats=dict(collections.Counter(q.answer_format for q in questions)),
        document_types={},
        windows={},
        missing_documents=tuple(missing),
        problems=tuple(problems),
    )
    return questions, documents, report


def read_row(record: Any) -> Row:
    """The row in a line's JSON value.

    Raises:
      ValueError: it is not one, its images and `<image>` marks are not equally many, or an
        image lies outside of the root.
    """
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    images = record.get("images", record.get("image"))
    images = [images] if isinstance(images, str) else images
    turns = record.get("conversations")
    if not _texts(images) or not images:
        raise ValueError("expected images, a list of paths")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("expected conversations, a list of objects")
    check_text(record)
    senders = [turn.get("from") for turn in turns]
    if not turns or senders != ["human", "gpt"] * (len(turns) // 2):
        raise ValueError(f"expected turns by human and gpt in turn, found {senders}")
    said = [turn.get("value") for turn in turns]
    if not _texts(said):
        raise ValueError("expected a text in each turn")
    marks = sum(text.count(_IMAGE) for text in said)
    if marks != len(images):
        raise ValueError(f"{marks} {_IMAGE} marks and {len(images)} images; expected as many")
    for image in images:
        path = pathlib.PurePosixPath(image)
        if path.is_absolute() or ".." in path.parts or not path.name or "\\" in image:
            raise ValueError(f"expected a path inside of the set, found {image!r}")
    pairs = tuple(
        (_IMAGE_LINE.sub("", question).replace(_IMAGE, "").strip(), answer.strip())
        for question, answer in zip(said[::2], said[1::2], strict=True)
    )
    if not all(question and answer for question, answer in pairs):
        raise ValueError("expected no empty question or answer")
    return Row(tuple(images), pairs)


def link_pages(
    root: str | pathlib.Path,
    folder: str | pathlib.Path,
    documents: Mapping[str, Sequence[str]],
    ids: Iterable[str],
) -> None:
    """Links the page images of the documents as `<folder>/<id>_0.png`, `_1.png` and so on.

    The links end in .png whatever the files hold: images are told by their content.

    Args:
      root: of the set.
      folder: made where absent.
      documents: paths of page images by document id, as `load` gives them.
      ids: which documents.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for id in dict.fromkeys(ids):
        for index, image in enumerate(documents[id]):
            link = folder / f"{id}_{index}.png"
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.abspath(pathlib.Path(root) / image))


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
