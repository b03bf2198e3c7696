"""A world small enough to learn on two CPU cores: seed -> real PDF files and questions.

A document surveys some rivers. Each has a page with its name and three rows of `attribute
value`; a cover and a page of notes stand among them. One-hop questions ask for one value,
two-hop questions for the same attribute of two rivers, which stand on two pages. All pages share
the attributes, so a search has to name the river.

Text is set so that a model that merges 32 x 32 pixels into one token can read it: a page has 96 x
128 points, and each line of text falls into one row of merged tokens when it is rendered at 72 dpi.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
from collections.abc import Sequence

import numpy as np
import pymupdf

from awm_jax.types import Question, ToolCall

# Part of what a split is made from: change it whenever other files would come out.
VERSION = 1

# Documents of different splits come from different seeds. Nothing is tuned on "test".
SPLITS = ("warmup", "train", "dev", "test")

RIVERS = (
    "Avon", "Brent", "Cam", "Dart", "Exe", "Fal", "Gade", "Hull", "Itchen", "Kent", "Lune", "Mole",
    "Nene", "Orwell", "Pang", "Ribble", "Severn", "Tamar", "Ure", "Wye", "Yare", "Tees", "Stour",
    "Loddon",
)  # fmt: skip
ATTRIBUTES = ("width", "depth", "speed", "level", "slope", "flow")
ROWS_PER_PAGE = 3
RIVERS_PER_DOCUMENT = 10
QUESTIONS_PER_DOCUMENT = 4
TWO_HOP_SHARE = 0.28

DPI = 72
PAGE_WIDTH, PAGE_HEIGHT = 96, 128
LINE_HEIGHT = 32
_FONT_SIZE = 19
_LEFT, _VALUE_LEFT, _BASELINE = 3, 66, 23

_ONE_HOP = re.compile(r"What is the (\w+) of (\w+)\?")
_TWO_HOP = re.compile(r"What are the (\w+)s of (\w+) and (\w+)\?")

# What a note says that names no value. Each is true of the page and of no use without it.
GENERIC_FINDINGS = (
    "shows a table of values",
    "lists values of {river}",
    "a page of {river}",
    "{attribute} of {river} is given here",
)
FINDING = "{attribute} of {river} is {value}"
QUERY = "{attribute} of {river}"


@dataclasses.dataclass(frozen=True)
class RiverPage:
    """What one page says: a river and its rows, top to bottom; no rows on pages that fill."""

    title: str
    rows: tuple[tuple[str, str], ...]


def document_pages(split: str, *, seed: int, index: int) -> tuple[RiverPage, ...]:
    """The pages of document `index` of a split: a function of its arguments alone."""
    rng = _rng(split, seed, index)
    pages = []
    for river in rng.permutation(RIVERS)[:RIVERS_PER_DOCUMENT]:
        attributes = rng.permutation(ATTRIBUTES)[:ROWS_PER_PAGE]
        rows = tuple((str(name), str(rng.integers(10, 100))) for name in attributes)
        pages.append(RiverPage(str(river), rows))
    pages.insert(int(rng.integers(len(pages) + 1)), RiverPage("Notes", ()))
    return (RiverPage("Rivers", (("issue", str(rng.integers(10, 100))),)), *pages)


def document_questions(
    split: str, *, seed: int, index: int, count: int = QUESTIONS_PER_DOCUMENT
) -> list[Question]:
    """Different questions about document `index`; evidence pages stand in the order of the hops."""
    pages = document_pages(split, seed=seed, index=index)
    rng = _rng(split, seed, index, 1)
    places = {}
    for number, page in enumerate(pages, start=1):
        if page.title in RIVERS:
            for attribute, value in page.rows:
                places.setdefault(attribute, []).append((page.title, value, number))
    name = document_name(split, index)
    questions: dict[str, Question] = {}
    while len(questions) < count:
        hops = 1 + int(rng.random() < TWO_HOP_SHARE)
        attribute = ATTRIBUTES[rng.integers(len(ATTRIBUTES))]
        found = places.get(attribute, ())
        if len(found) < hops:
            continue
        chosen = [found[place] for place in rng.permutation(len(found))[:hops]]
        rivers, values, numbers = zip(*chosen, strict=True)
        text = question_text(attribute, rivers)
        if text in questions:
            continue
        questions[text] = Question(
            id=f"{pathlib.Path(name).stem}-{len(questions)}",
            document=name,
            text=text,
            answer=values[0] if hops == 1 else str(list(values)),
            answer_format="Int" if hops == 1 else "List",
            evidence_pages=numbers,
            evidence_sources=("Table",),
        )
    return list(questions.values())


def question_text(attribute: str, rivers: Sequence[str]) -> str:
    """The question for one attribute of one or two rivers."""
    if len(rivers) == 1:
        return f"What is the {attribute} of {rivers[0]}?"
    return f"What are the {attribute}s of {rivers[0]} and {rivers[1]}?"


def parse_question(text: str) -> tuple[str, tuple[str, ...]]:
    """The attribute and the rivers that a question of this world asks for."""
    if match := _ONE_HOP.fullmatch(text) or _TWO_HOP.fullmatch(text):
        attribute, *rivers = match.groups()
        return attribute, tuple(rivers)
    raise ValueError(f"not a question of the tiny world: {text!r}")


def gold_values(question: Question) -> tuple[str, ...]:
    """The values that answer the question, in the order of its rivers."""
    return tuple(re.findall(r"\d+", str(question.answer)))


def answer_text(values: Sequence[str]) -> str:
    """How the policy and the reader write an answer."""
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def teacher_turns(
    question: Question,
    rng: np.random.Generator,
    *,
    generic_last: float,
    generic_earlier: float,
) -> list[tuple[ToolCall, ...]]:
    """The assistant messages of a scripted teacher whose final answer is always right.

    It searches for one river after the other, notes what each page shows, and answers together
    with the last note. A note is generic, and of no use to whoever cannot see the page, with
    probability `generic_last` when the answer follows, else with `generic_earlier`.

    Returns:
      The calls of each message, the number of hops and one more.
    """
    attribute, rivers = parse_question(question.text)
    values = gold_values(question)
    turns = [(_search(attribute, rivers[0]),)]
    for hop, (river, value, page) in enumerate(
        zip(rivers, values, question.evidence_pages, strict=True)
    ):
        last = hop == len(rivers) - 1
        generic = rng.random() < (generic_last if last else generic_earlier)
        template = GENERIC_FINDINGS[rng.integers(len(GENERIC_FINDINGS))] if generic else FINDING
        finding = template.format(attribute=attribute, river=river, value=value)
        note = ToolCall("update_memory", {"source_page": page, "finding": finding})
        then = (
            ToolCall("answer", {"answer": answer_text(values)})
            if last
            else _search(attribute, rivers[hop + 1])
        )
        turns.append((note, then))
    return turns


def _search(attribute: str, river: str) -> ToolCall:
    return ToolCall("search_pages", {"query": QUERY.format(attribute=attribute, river=river)})


def document_name(split: str, index: int) -> str:
    return f"{split}-{index:04d}.pdf"


def write_pdf(path: pathlib.Path, pages: Sequence[RiverPage], rng: np.random.Generator) -> None:
    """Sets `pages`, each line moved by some points at random, and writes a PDF file."""
    pdf = pymupdf.open()
    for page in pages:
        sheet = pdf.new_page(width=PAGE_WIDTH, height=PAGE_HEIGHT)
        lines = [((_LEFT, page.title, "hebo"),)]
        lines += [
            ((_LEFT, name, "cobo"), (_VALUE_LEFT, value, "cobo")) for name, value in page.rows
        ]
        for row, words in enumerate(lines):
            right, down = rng.integers(0, 4), rng.integers(-2, 3)
            for left, text, font in words:
                point = (left + right, row * LINE_HEIGHT + _BASELINE + down)
                sheet.insert_text(point, text, fontname=font, fontsize=_FONT_SIZE)
    # Without a new id and a date, equal pages give equal bytes.
    pdf.set_metadata({})
    pdf.save(path, no_new_id=True, deflate=True, garbage=3)
    pdf.close()


def make_world(
    root: str | pathlib.Path, split: str, *, seed: int, documents: int
) -> list[Question]:
    """Writes `root/documents/*.pdf`, `root/questions.json` and `root/manifest.json`.

    Nothing is written when the manifest already says the same and the files are there.

    Args:
      root: a folder for this split alone; whatever its `documents` held is replaced.
      split: one of `SPLITS`.
      seed: of the whole world.
      documents: how many.

    Returns:
      The questions, as `load` gives them.
    """
    root = pathlib.Path(root)
    plan = {"version": VERSION, "split": split, "seed": seed, "documents": documents}
    names = [document_name(split, index) for index in range(documents)]
    if _is_made(root, plan, names):
        return load(root)
    (root / "manifest.json").unlink(missing_ok=True)
    folder = root / "documents"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    questions = []
    for index, name in enumerate(names):
        pages = document_pages(split, seed=seed, index=index)
        write_pdf(folder / name, pages, _rng(split, seed, index, 2))
        questions += document_questions(split, seed=seed, index=index)
    text = json.dumps([dataclasses.asdict(question) for question in questions], indent=1)
    (root / "questions.json").write_text(text, encoding="utf-8")
    # Last, so that a run that was killed before this line starts again.
    manifest = {**plan, "questions_sha256": hashlib.sha256(text.encode()).hexdigest()}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return load(root)


def load(root: str | pathlib.Path) -> list[Question]:
    """The questions that `make_world` wrote to `root`.

    Raises:
      ValueError: there are none, or they are not those that the manifest names.
    """
    root = pathlib.Path(root)
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
        text = (root / "questions.json").read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{root}: no tiny world here ({error}); make_world writes one") from error
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != manifest["questions_sha256"]:
        raise ValueError(
            f"{root / 'questions.json'}: expected sha256 {manifest['questions_sha256']}, "
            f"found {found}; remove the folder and make the world again"
        )
    return [
        Question(
            **record
            | {
                "evidence_pages": tuple(record["evidence_pages"]),
                "evidence_sources": tuple(record["evidence_sources"]),
            }
        )
        for record in json.loads(text)
    ]


def _is_made(root: pathlib.Path, plan: dict, names: Sequence[str]) -> bool:
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
        text = (root / "questions.json").read_bytes()
    except (OSError, ValueError):
        return False
    same_plan = all(manifest.get(key) == value for key, value in plan.items())
    same_text = manifest.get("questions_sha256") == hashlib.sha256(text).hexdigest()
    return same_plan and same_text and all((root / "documents" / name).is_file() for name in names)


def _rng(split: str, seed: int, *stream: int) -> np.random.Generator:
    if split not in SPLITS:
        raise ValueError(f"expected a split of {SPLITS}, found {split!r}")
    return np.random.default_rng((seed, SPLITS.index(split), *stream))
