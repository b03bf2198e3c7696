"""What a loader found wrong in a data set: counted and named, never fixed in silence."""

import collections
import dataclasses
import json
from collections.abc import Mapping

# Problems of a record's evidence pages; such a record has no trustworthy gold pages.
EVIDENCE_UNREADABLE = "evidence pages are not a list of page numbers"
EVIDENCE_NOT_A_PAGE = "evidence page below 1"
EVIDENCE_OUT_OF_RANGE = "evidence page beyond the last page"
EVIDENCE_MISSING = "answerable without evidence pages"
INVALID_EVIDENCE = (
    EVIDENCE_UNREADABLE,
    EVIDENCE_NOT_A_PAGE,
    EVIDENCE_OUT_OF_RANGE,
    EVIDENCE_MISSING,
)
# Oddities that leave the evidence usable.
EVIDENCE_REPEATED = "evidence page named twice"
EVIDENCE_UNSORTED = "evidence pages out of order"
EVIDENCE_UNEXPECTED = "unanswerable with evidence pages"
EVIDENCE_OUTSIDE_WINDOW = "evidence page outside the window of pages shown"
SOURCES_UNREADABLE = "evidence sources are not a list of names"
SOURCES_MISSING = "answerable without evidence sources"
SOURCES_UNEXPECTED = "unanswerable with evidence sources"
SOURCES_REPEATED = "evidence source named twice"
BAD_RECORD = "record left out"
MISSING_DOCUMENT = "the document's file is not there"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something odd about one record.

    Attributes:
      index: the record's 0-based position in the file.
      question: the question's id; empty where the record was left out.
      kind: one of the constants above.
      found: what the record has, as it has it.
    """

    index: int
    question: str
    kind: str
    found: str


@dataclasses.dataclass(frozen=True)
class Report:
    """A data set as it was loaded.

    Attributes:
      path: the file.
      digest: sha256 of its bytes, in hex.
      records: how many it holds, those left out included.
      answer_formats: how many questions have each answer format.
      document_types: what kind of document each id is; empty where the set does not say.
      windows: first and last 1-based page that the official evaluation shows, by question id;
        empty where the set has none.
      missing_documents: ids of documents whose file is not there.
      problems: in file order.
      groups: rows of the benchmark's own report that a question counts in, by question id, one
        as often as it counts there; empty where the loader has none.
    """

    path: str
    digest: str
    records: int
    answer_formats: Mapping[str, int]
    document_types: Mapping[str, str]
    windows: Mapping[str, tuple[int, int]]
    missing_documents: tuple[str, ...]
    problems: tuple[Problem, ...]
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of problem occurs."""
        return dict(collections.Counter(problem.kind for problem in self.problems))

    @property
    def invalid_evidence(self) -> frozenset[str]:
        """Ids of the questions whose gold pages cannot be shown as they are given."""
        return frozenset(p.question for p in self.problems if p.kind in INVALID_EVIDENCE)

    def __str__(self) -> str:
        lines = [f"{self.path} (sha256 {self.digest[:12]}): {self.records} records"]
        lines += [f"  {kind}: {count}" for kind, count in sorted(self.counts.items())]
        if self.missing_documents:
            lines.append(f"  documents whose file is not there: {len(self.missing_documents)}")
        return "\n".join(lines)


def check_evidence(
    pages: object, page_count: int | None, answerable: bool
) -> tuple[tuple[int, ...], list[tuple[str, str]]]:
    """The pages that exist, ascending and each once, and (kind, found) for all that is odd.

    Args:
      pages: what the record gives, parsed: a list of 1-based page numbers, one hopes.
      page_count: the document's, where it is known.
      answerable: whether the record has an answer, and so should have evidence.
    """
    if not isinstance(pages, list) or any(type(page) is not int for page in pages):
        return (), [(EVIDENCE_UNREADABLE, repr(pages))]
    kinds = []
    if answerable and not pages:
        kinds.append(EVIDENCE_MISSING)
    if not answerable and pages:
        kinds.append(EVIDENCE_UNEXPECTED)
    if any(page < 1 for page in pages):
        kinds.append(EVIDENCE_NOT_A_PAGE)
    if page_count is not None and any(page > page_count for page in pages):
        kinds.append(EVIDENCE_OUT_OF_RANGE)
    if len(set(pages)) < len(pages):
        kinds.append(EVIDENCE_REPEATED)
    if pages != sorted(pages):
        kinds.append(EVIDENCE_UNSORTED)
    there = {page for page in pages if page >= 1 and (page_count is None or page <= page_count)}
    return tuple(sorted(there)), [(kind, repr(pages)) for kind in kinds]


def check_sources(
    sources: object, answerable: bool
) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """The names in their order, each once, and (kind, found) for all that is odd."""
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        return (), [(SOURCES_UNREADABLE, repr(sources))]
    kinds = []
    if answerable and not sources:
        kinds.append(SOURCES_MISSING)
    if not answerable and sources:
        kinds.append(SOURCES_UNEXPECTED)
    if len(set(sources)) < len(sources):
        kinds.append(SOURCES_REPEATED)
    return tuple(dict.fromkeys(sources)), [(kind, repr(sources)) for kind in kinds]


def check_text(record: object) -> None:
    """`ValueError` where a string of `record` is not text: half a surrogate pair, say."""
    json.dumps(record, ensure_ascii=False).encode()


def check_document_name(name: str) -> None:
    """`ValueError` unless `name` is a plain file name: the data set must not point elsewhere."""
    if not name or name in (".", "..") or any(letter in name for letter in "/\\\0"):
        raise ValueError(f"expected the name of a file, found {name!r}")
