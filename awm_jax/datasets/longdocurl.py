"""LongDocURL (https://arxiv.org/abs/2412.18424): JSON lines -> questions.

Page numbers in the file are 1-based physical pages. The page images it comes with are named
from 0: evidence page 47 is `<doc_no>_46.png` (see `documents.pdf.page_image_path`). The official
evaluation shows a window of at most 30 pages, not the document; the report holds the windows.
"""

import collections
import hashlib
import json
import pathlib
from collections.abc import Mapping

from awm_jax.datasets.report import (
    BAD_RECORD,
    EVIDENCE_OUTSIDE_WINDOW,
    MISSING_DOCUMENT,
    Problem,
    Report,
    check_document_name,
    check_evidence,
    check_sources,
    check_text,
)
from awm_jax.types import Question

ANSWER_FORMATS = ("String", "Integer", "Float", "List", "None")
# The kinds of value that each of these keys may have.
_KEYS = {
    "question_id": str,
    "doc_no": str,
    "total_pages": int,
    "start_end_idx": list,
    "question": str,
    "answer": (int, float, str, list),
    "evidence_pages": list,
    "evidence_sources": list,
    "answer_format": str,
}
# Of the benchmark's own report (its utils/calculate_metrics_fine_grained.py).
_ELEMENTS = ("Text", "Layout", "Figure", "Table")
_PAGES = ("Single-page", "Multi-page")
_LOCATING = {
    "topic2title": "Cross-title",
    "summary2title": "Para-title",
    "summary2tab": "Cross-table",
    "extract_fig2tab": "Figure-table",
}
# In the order in which they are shown.
GROUPS = (
    *("Understanding", "Reasoning", "Locating"),
    *_ELEMENTS,
    *_PAGES,
    "Cross-element",
    *(
        f"{task}, {pages}, {element}"
        for task in ("Understanding", "Reasoning")
        for pages in _PAGES
        for element in _ELEMENTS
    ),
    *(f"Locating, {kind}" for kind in _LOCATING.values()),
)


def _groups(record: Mapping) -> tuple[str, ...]:
    """The `GROUPS` that the record counts in.

    As in the official script, pages and sources are counted as they stand in the file: a source
    that is named twice counts twice, and as cross-element. Where no page is named, that script
    adds the score to whichever group the record before had; here it counts in no such group.
    """
    task, kind = record.get("task_tag"), record.get("question_type")
    sources, count = record["evidence_sources"], len(record["evidence_pages"])
    pages = _PAGES[count > 1] if count else "no page"
    found = [task, *sources, pages, *["Cross-element"] * (len(sources) > 1)]
    found += [f"{task}, {pages}, {source}" for source in sources]
    if isinstance(kind, str):
        found.append(f"{task}, {_LOCATING.get(kind)}")
    return tuple(group for group in found if group in GROUPS)


def _record(line: bytes) -> dict:
    """The record in `line`; `ValueError` where it is not one."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    if missing := [key for key in _KEYS if key not in record]:
        raise ValueError(f"keys not there: {missing}")
    wrong = {
        key: type(record[key]).__name__
        for key, expected in _KEYS.items()
        if not isinstance(record[key], expected) or isinstance(record[key], bool)
    }
    if wrong:
        raise ValueError(f"values of an unexpected type: {wrong}")
    if record["answer_format"] not in ANSWER_FORMATS:
        raise ValueError(f"unknown answer format {record['answer_format']!r}")
    window = record["start_end_idx"]
    if len(window) != 2 or any(type(page) is not int for page in window):
        raise ValueError(f"expected [first page, last page] as start_end_idx, found {window}")
    check_text(record)
    check_document_name(record["doc_no"])
    return record


def _has_document(root: pathlib.Path, name: str) -> bool:
    return (root / "pages" / f"{name}_0.png").is_file() or (
        root / "documents" / f"{name}.pdf"
    ).is_file()


def load(
    root: str | pathlib.Path, *, page_counts: Mapping[str, int] | None = None
) -> tuple[list[Question], Report]:
    """The questions of the set at `root`, in file order, and what is odd about them.

    A line that cannot be read is left out and reported; it never stops the rest. Evidence
    pages that do not exist are dropped from the question and reported.

    Args:
      root: a folder with one JSON lines file, page images in pages/ or PDFs in documents/; or
        the JSON lines file alone; then no document is looked for.
      page_counts: pages of the documents, by id; else what the record says.

    Raises:
      ValueError: there is no such file, or more than one.
    """
    root = pathlib.Path(root)
    path = root
    if root.is_dir():
        files = sorted(root.glob("*.jsonl"))
        if len(files) != 1:
            raise ValueError(f"{root}: expected one .jsonl file, found {[f.name for f in files]}")
        path = files[0]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error

    questions, problems, windows, groups, seen = [], [], {}, {}, set()
    absent: dict[str, bool] = {}
    # Split at line feeds only: questions hold other line separators as they are.
    lines = [line for line in content.split(b"\n") if line.strip()]
    for index, line in enumerate(lines):
        try:
            record = _record(line)
            id, document = record["question_id"], record["doc_no"]
            if id in seen:
                raise ValueError(f"question id {id!r} was there before")
        except (ValueError, RecursionError) as error:
            problems.append(Problem(index, "", BAD_RECORD, str(error)))
            continue
        seen.add(id)
        if document not in absent:
            absent[document] = root.is_dir() and not _has_document(root, document)
        page_count = (page_counts or {}).get(document, record["total_pages"])
        answerable = record["answer_format"] != "None"
        pages, odd = check_evidence(record["evidence_pages"], page_count, answerable)
        sources, odd_sources = check_sources(record["evidence_sources"], answerable)
        first, last = windows[id] = tuple(record["start_end_idx"])
        groups[id] = _groups(record)
        if any(not first <= page <= last for page in pages):
            odd.append((EVIDENCE_OUTSIDE_WINDOW, f"{list(pages)} outside {[first, last]}"))
        odd += odd_sources + [(MISSING_DOCUMENT, document)] * absent[document]
        problems += [Problem(index, id, kind, found) for kind, found in odd]
        questions.append(
            Question(
                id=id,
                document=document,
                text=record["question"],
                answer=record["answer"],
                answer_format=record["answer_format"],
                evidence_pages=pages,
                evidence_sources=sources,
            )
        )
    report = Report(
        path=str(path),
        digest=hashlib.sha256(content).hexdigest(),
        records=len(lines),
        answer_formats=dict(collections.Counter(q.answer_format for q in questions)),
        document_types={},
        windows=windows,
        missing_documents=tuple(document for document, gone in absent.items() if gone),
        problems=tuple(problems),
        groups=groups,
    )
    return questions, report
