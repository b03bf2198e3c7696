"""MMLongBench-Doc (https://arxiv.org/abs/2407.01523): samples.json -> questions.

The file is a list of objects with seven keys whose values are all strings; evidence pages and
sources are Python literals inside them. The published file has 1,082 records (the set's README
says 1,091, the count of its first version). There is no question id, and one pair of document
and question occurs twice, so an id is the position and a hash.
"""

import ast
import collections
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence

from awm_jax.datasets.report import (
    BAD_RECORD,
    MISSING_DOCUMENT,
    Problem,
    Report,
    check_document_name,
    check_evidence,
    check_sources,
    check_text,
)
from awm_jax.types import Question

NOT_ANSWERABLE = "Not answerable"
ANSWER_FORMATS = ("Str", "Int", "Float", "List", "None")
_KEYS = (
    "doc_id",
    "doc_type",
    "question",
    "answer",
    "evidence_pages",
    "evidence_sources",
    "answer_format",
)
_LONGEST_LITERAL = 10_000


def _literal(text: str) -> object:
    """The Python literal in `text`, or `text` where it holds none. Nothing is evaluated."""
    if len(text) > _LONGEST_LITERAL:
        return text
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _check_record(record: object) -> None:
    """`ValueError` unless `record` is an object with the seven strings."""
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    if missing := [key for key in _KEYS if key not in record]:
        raise ValueError(f"keys not there: {missing}")
    if others := [key for key in _KEYS if not isinstance(record[key], str)]:
        raise ValueError(f"expected strings, found others at {others}")
    if record["answer_format"] not in ANSWER_FORMATS:
        raise ValueError(f"unknown answer format {record['answer_format']!r}")
    check_text(record)
    check_document_name(record["doc_id"])


def load(
    root: str | pathlib.Path, *, page_counts: Mapping[str, int] | None = None
) -> tuple[list[Question], Report]:
    """The questions of the set at `root`, in file order, and what is odd about them.

    A record that cannot be read is left out and reported; it never stops the rest. Evidence
    pages that do not exist are dropped from the question and reported.

    Args:
      root: a folder with samples.json and documents/, or the JSON file alone; then no document
        is looked for.
      page_counts: pages of the documents, by id, as far as known. Evidence of other documents
        is only checked to be 1 or more.

    Raises:
      ValueError: there is no such file, or it is not a JSON list.
    """
    root = pathlib.Path(root)
    path = root / "samples.json" if root.is_dir() else root
    try:
        content = path.read_bytes()
        records = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected MMLongBench-Doc's samples.json ({error})") from error
    if not isinstance(records, list):
        raise ValueError(f"{path}: expected a list of records, found {type(records).__name__}")

    questions, problems, document_types = [], [], {}
    absent: dict[str, bool] = {}
    for index, record in enumerate(records):
        try:
            _check_record(record)
        except ValueError as error:
            problems.append(Problem(index, "", BAD_RECORD, str(error)))
            continue
        document = record["doc_id"]
        if document not in absent:
            absent[document] = root.is_dir() and not (root / "documents" / document).is_file()
        pair = f"{document}\0{record['question']}".encode()
        id = f"{index:04d}-{hashlib.sha256(pair).hexdigest()[:8]}"
        answerable = record["answer_format"] != "None"
        pages, odd_pages = check_evidence(
            _literal(record["evidence_pages"]), (page_counts or {}).get(document), answerable
        )
        sources, odd_sources = check_sources(_literal(record["evidence_sources"]), answerable)
        odd = odd_pages + odd_sources + [(MISSING_DOCUMENT, document)] * absent[document]
        problems += [Problem(index, id, kind, found) for kind, found in odd]
        document_types[document] = record["doc_type"]
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
        records=len(records),
        answer_formats=dict(collections.Counter(q.answer_format for q in questions)),
        document_types=document_types,
        windows={},
        missing_documents=tuple(document for document, gone in absent.items() if gone),
        problems=tuple(problems),
    )
    return questions, report


# Seed of the published lists of question ids.
SUBSET_SEED = 0
# Records of the published file whose evidence pages cannot be physical pages of the document,
# by position: printed page numbers in a document of 40 pages, and "14, 18" run together. A loader
# without page counts cannot see it.
KNOWN_BAD_PAGES = frozenset({704, 784, 787, 788, 790})


def evidence_given(
    questions: Sequence[Question], report: Report, *, most_pages: int | None = 2
) -> list[Question]:
    """The questions of our EP-given list: answerable, with gold pages that can be shown.

    The paper reports 733 such questions (its Table 6) and neither their ids nor a rule. In the
    published file 728 answerable questions have one or two valid evidence pages, which is the
    rule here; the list is ours and is to be named so.

    Args:
      questions: of `load`.
      report: of `load`; questions with invalid evidence are left out, as are `KNOWN_BAD_PAGES`.
      most_pages: gold pages that a question may have, None for any number.
    """
    bad = {f"{position:04d}-" for position in KNOWN_BAD_PAGES}
    return [
        question
        for question in questions
        if question.answer_format != "None"
        and question.id not in report.invalid_evidence
        and question.id[:5] not in bad
        and question.evidence_pages
        and (most_pages is None or len(question.evidence_pages) <= most_pages)
    ]


def fixed_subset(
    questions: Sequence[Question], report: Report, *, size: int = 500, seed: int = SUBSET_SEED
) -> list[Question]:
    """Our fixed answerable subset, in file order, for the diagnoses of Tables 2, 3, 8 and 9.

    Drawn from the answerable questions whose gold pages can all be shown, the `size` with the
    smallest sha256 of seed and id: whoever has the file gets the same questions, whatever their
    order. The paper's own 500 have no published ids.

    Raises:
      ValueError: there are fewer than `size`.
    """
    pool = evidence_given(questions, report, most_pages=None)
    if len(pool) < size:
        raise ValueError(f"found {len(pool)} answerable questions with gold pages, expected {size}")

    def drawn(question: Question) -> str:
        return hashlib.sha256(f"{seed}\0{question.id}".encode()).hexdigest()

    chosen = {question.id for question in sorted(pool, key=drawn)[:size]}
    return [question for question in pool if question.id in chosen]
