"""What the tiny models are taught: the world's documents as token sequences with loss weights."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import pymupdf
import tokenizers
import vocabulary

from awm_jax.agent import prompts
from awm_jax.datasets import tiny_world
from awm_jax.documents import embed, pdf
from awm_jax.judging.reader import READER_SYSTEM
from awm_jax.types import Finding, Memory, Message, Page, Question, ToolCall

NOT_ANSWERABLE = "Not answerable"
TOP_K = 3
# Merged image tokens of a page, top to bottom and left to right.
TOKEN_ROWS, TOKEN_COLUMNS = 4, 3
PAGE_TOKENS = TOKEN_ROWS * TOKEN_COLUMNS
# What a merged token should know: up to two tokens of the word that begins in its cell, the
# label of its row.
PIXEL_SLOTS = 3
# Where a reader has nothing to know; see `marked`.
UNMARKED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Library:
    """All documents of a split, rendered and indexed.

    Attributes:
      questions: about all documents.
      pages: all pages, document after document.
      first: by document, the index in `pages` of its first page.
      facts: by document, its pages as the world has them.
      vectors: by document, the BM25 vectors of its pages.
      words: for each page `(word, row, column)` of the cell in which a word begins.
    """

    questions: tuple[Question, ...]
    pages: tuple[Page, ...]
    first: dict[str, int]
    facts: dict[str, tuple[tiny_world.RiverPage, ...]]
    vectors: dict[str, list]
    words: tuple[tuple[tuple[str, int, int], ...], ...]

    def search(self, document: str, query: str, top_k: int = TOP_K) -> list[int]:
        """1-based numbers of the pages that share a word with the query, best first."""
        terms = dict(zip(*embed.embed_query(query), strict=True))
        scores = [
            sum(terms.get(index, 0.0) * value for index, value in zip(*vector, strict=True))
            for vector in self.vectors[document]
        ]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        return [place + 1 for place in order[:top_k] if scores[place] > 0]

    def page(self, document: str, number: int) -> Page:
        return self.pages[self.first[document] + number - 1]

    def index(self, page: Page) -> int:
        return self.first[page.document] + page.number - 1


def open_library(
    root: pathlib.Path, split: str, *, seed: int, documents: int, questions_per_document: int
) -> Library:
    """Makes a split's files where they are missing and reads all of them."""
    tiny_world.make_world(root, split, seed=seed, documents=documents)
    questions, pages, first, facts, vectors, words = [], [], {}, {}, {}, []
    for index in range(documents):
        name = tiny_world.document_name(split, index)
        document = pdf.open_document(root / "documents" / name)
        first[name] = len(pages)
        facts[name] = tiny_world.document_pages(split, seed=seed, index=index)
        vectors[name] = embed.embed_pages(document.page_texts)
        questions += tiny_world.document_questions(
            split, seed=seed, index=index, count=questions_per_document
        )
        render = pdf.make_render({name: document}, dpi=tiny_world.DPI)
        with pymupdf.open(document.path) as file:
            for number, sheet in enumerate(file, start=1):
                pages.append(render(name, number))
                words.append(tuple(_cell(box) for box in sheet.get_text("words")))
    return Library(tuple(questions), tuple(pages), first, facts, vectors, tuple(words))


def _cell(box: Sequence) -> tuple[str, int, int]:
    """The word of a PDF word box, and the cell of the grid in which it begins."""
    left, top, _, bottom, word = box[:5]
    row = int((top + bottom) / 2 // tiny_world.LINE_HEIGHT)
    column = int(left // (tiny_world.PAGE_WIDTH / TOKEN_COLUMNS))
    return word, row, column


def pixel_labels(library: Library, encode: Callable[[str], list[int]], none: int) -> np.ndarray:
    """`[page, cell, slot]` int32: what each merged token of each page should know."""
    labels = np.full((len(library.pages), TOKEN_ROWS, TOKEN_COLUMNS, PIXEL_SLOTS), none, np.int32)
    for page, words in enumerate(library.words):
        for word, row, column in words:
            ids = encode(word)[:2]
            labels[page, row, column, : len(ids)] = ids
            if column == 0:
                labels[page, row, :, 2] = ids[0]
    return labels.reshape(len(library.pages), PAGE_TOKENS, PIXEL_SLOTS)


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One training sequence.

    Attributes:
      ids: `[time]` int32, images expanded.
      weight: `[time]` float32, how much the prediction of each id counts.
      pages: indices of the pages shown, in order.
      marks: `[time]` int32, what a reader should know at each id (see `marked`); None for
        nothing.
    """

    ids: np.ndarray
    weight: np.ndarray
    pages: tuple[int, ...] = ()
    marks: np.ndarray | None = None


class Writer:
    """Turns chats into examples; `render_chat` is the processor's."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, render_chat: Callable[..., str]):
        self.tokenizer = tokenizer
        self.render_chat = render_chat

    def encode(self, text: str) -> list[int]:
        text = text.replace(vocabulary.IMAGE, vocabulary.IMAGE * PAGE_TOKENS)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def example(
        self,
        prompt: str,
        parts: Sequence[tuple[str, float]],
        pages: Sequence[int] = (),
    ) -> Example:
        """A prompt and what follows it in parts, each with the weight of its tokens."""
        ids, weight = self.encode(prompt), []
        weight += [0.0] * len(ids)
        for text, part_weight in parts:
            part = self.encode(text)
            ids += part
            weight += [part_weight] * len(part)
        return Example(np.array(ids, np.int32), np.array(weight, np.float32), tuple(pages))


def agent_prompt(
    writer: Writer,
    library: Library,
    question: Question,
    memory: Memory,
    search: ToolCall | None = None,
    numbers: Sequence[int] = (),
) -> tuple[str, tuple[int, ...]]:
    """A context of the agent as text, and the pages it shows: as after `search`, if given."""
    text = prompts.question_text(question.text, memory)
    messages = [Message("system", (prompts.AGENT_SYSTEM,)), Message("user", (text,))]
    pages = [library.page(question.document, number) for number in numbers]
    if search is not None:
        shown = [part for page in pages for part in (f"Page {page.number}:", page)]
        messages += [Message("assistant", calls=(search,)), Message("tool", tuple(shown))]
    chat = writer.render_chat(messages, prompts.AGENT_TOOLS)
    return chat, tuple(library.index(page) for page in pages)


def direct_prompt(
    writer: Writer, library: Library, question: Question, numbers: Sequence[int]
) -> tuple[str, tuple[int, ...]]:
    """Pages and question without tools or memory."""
    pages = [library.page(question.document, number) for number in numbers]
    shown = [part for page in pages for part in (f"Page {page.number}:", page)]
    user = Message("user", (*shown, f"Question: {question.text}"))
    chat = writer.render_chat([Message("system", (prompts.DIRECT_SYSTEM,)), user])
    return chat, tuple(library.index(page) for page in pages)


def reader_prompt(writer: Writer, question: str, memory: Memory) -> str:
    """What the frozen reader is asked."""
    user = f"Question: {question}\nNotes:\n{memory.text}"
    messages = [Message("system", (READER_SYSTEM,)), Message("user", (user,))]
    return writer.render_chat(messages, enable_thinking=False)


def call_text(call: ToolCall) -> str:
    """A tool call as the policy writes it."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>'


def answer_parts(answer: str, weight: float) -> list[tuple[str, float]]:
    """The answer's call; the answer itself counts `weight` times."""
    before, after = call_text(ToolCall("answer", {"answer": "\0"})).split("\\u0000")
    return [(before, 1.0), (answer, weight), (after, 1.0), (vocabulary.END, 1.0)]


def teacher_contexts(
    writer: Writer,
    library: Library,
    question: Question,
    rng: np.random.Generator,
    *,
    generic_last: float,
    generic_earlier: float,
    answer_weight: float = 1.0,
) -> list[Example]:
    """A scripted trajectory as one example a context, as the agent would see it."""
    turns = tiny_world.teacher_turns(
        question, rng, generic_last=generic_last, generic_earlier=generic_earlier
    )
    examples, memory, search, numbers = [], Memory(), None, ()
    for calls in turns:
        prompt, pages = agent_prompt(writer, library, question, memory, search, numbers)
        *earlier, last = calls
        parts = [(call_text(call) + "\n", 1.0) for call in earlier]
        if last.name == "answer":
            parts += answer_parts(last.arguments["answer"], answer_weight)
        else:
            parts += [(call_text(last), 1.0), (vocabulary.END, 1.0)]
        examples.append(writer.example(prompt, parts, pages))
        for call in calls:
            if call.name == "update_memory":
                finding = Finding(call.arguments["source_page"], call.arguments["finding"])
                memory = Memory((*memory.findings, finding))
            elif call.name == "search_pages":
                search = call
                numbers = library.search(question.document, call.arguments["query"])
    return examples


def answer_alone(example: Example, writer: Writer) -> Example:
    """The same example where nothing counts but the answer that ends it."""
    opening, *_ = writer.encode(answer_parts("", 1.0)[0][0])
    start = int(np.flatnonzero(example.ids == opening)[-1]) + 1
    weight = np.zeros_like(example.weight)
    weight[start:] = 1.0
    return dataclasses.replace(example, weight=weight)


def transcription(
    writer: Writer,
    library: Library,
    rng: np.random.Generator,
    *,
    page_count: int,
    fact_count: int = 6,
) -> Example:
    """Pages and some of their facts in random order; only the values count.

    The order is random, so that a value has to be found by its river and attribute.
    """
    document = list(library.first)[rng.integers(len(library.first))]
    facts = library.facts[document]
    numbers = [int(place) + 1 for place in rng.permutation(len(facts))]
    numbers = [n for n in numbers if facts[n - 1].title in tiny_world.RIVERS][:page_count]
    pages = [library.page(document, number) for number in numbers]
    shown = [part for page in pages for part in (f"Page {page.number}:", page)]
    prompt = writer.render_chat([Message("tool", tuple(shown))])
    rows = [(facts[n - 1].title, *row) for n in numbers for row in facts[n - 1].rows]
    parts = []
    for place in rng.permutation(len(rows))[:fact_count]:
        river, attribute, value = rows[place]
        parts += [(f"{attribute} of {river} is ", 0.0), (value, 1.0), (", ", 0.0)]
    return writer.example(prompt, parts, [library.index(page) for page in pages])


def random_values(rng: np.random.Generator, count: int) -> list[str]:
    return [str(value) for value in rng.integers(10, 100, count)]


def random_asking(rng: np.random.Generator, two_hop: float) -> tuple[str, list[str]]:
    """An attribute and one or two rivers."""
    hops = 1 + int(rng.random() < two_hop)
    rivers = [str(river) for river in rng.permutation(tiny_world.RIVERS)[:hops]]
    return tiny_world.ATTRIBUTES[rng.integers(len(tiny_world.ATTRIBUTES))], rivers


def _finding(attribute: str, river: str, value: str) -> str:
    return tiny_world.FINDING.format(attribute=attribute, river=river, value=value)


def random_memory(
    rng: np.random.Generator, attribute: str, rivers: Sequence[str], values: Sequence[str]
) -> Memory:
    """Notes that hold the values, in random order, and now and then others among them."""
    lines = [_finding(attribute, *pair) for pair in zip(rivers, values, strict=True)]
    for _ in range(rng.choice(3, p=[0.5, 0.35, 0.15])):
        lines.append(distractor(rng, attribute, rivers))
    if rng.random() < 0.3:
        rng.shuffle(lines)
    return Memory(tuple(Finding(int(rng.integers(2, 13)), str(line)) for line in lines))


def distractor(
    rng: np.random.Generator,
    attribute: str,
    rivers: Sequence[str],
    *,
    generic: float = 0.4,
    other_river: float = 0.35,
) -> str:
    """A note that does not answer: generic, about another river or about another attribute."""
    kind = rng.random()
    if kind < generic:
        template = tiny_world.GENERIC_FINDINGS[rng.integers(len(tiny_world.GENERIC_FINDINGS))]
        river = rivers[rng.integers(len(rivers))]
        return template.format(attribute=attribute, river=river)
    other_rivers = [river for river in tiny_world.RIVERS if river not in rivers]
    other_attributes = [name for name in tiny_world.ATTRIBUTES if name != attribute]
    if kind < generic + other_river:
        river = other_rivers[rng.integers(len(other_rivers))]
    else:
        river = rivers[rng.integers(len(rivers))]
        attribute = other_attributes[rng.integers(len(other_attributes))]
    return _finding(attribute, river, random_values(rng, 1)[0])


def memory_answer(writer: Writer, library: Library, rng: np.random.Generator) -> Example:
    """A question that the memory in the prompt answers: the policy learns to copy."""
    attribute, rivers = random_asking(rng, two_hop=0.6)
    values = random_values(rng, len(rivers))
    memory = random_memory(rng, attribute, rivers, values)
    question = Question("", "", tiny_world.question_text(attribute, rivers), "", "")
    prompt, _ = agent_prompt(writer, library, question, memory)
    return writer.example(prompt, answer_parts(tiny_world.answer_text(values), 1.0))


def marked(writer: Writer, example: Example) -> Example:
    """The same example of reading, with marks on what its question asks for among its notes.

    At an attribute the mark is 1 if it is asked for, at a river 1 or 2, its place in the
    question, at the first digit of a value the mark of its river if its attribute is asked for
    too, and 0 if not. Without marks a reader looks at values and not at their keys for a long time.
    """

    def single(text: str) -> int:
        (token,) = writer.encode(text)
        return token

    rivers, attributes = (
        [single(name) for name in names] for names in (tiny_world.RIVERS, tiny_world.ATTRIBUTES)
    )
    notes, end, before_value = map(single, ("\nNotes:\n", vocabulary.END, " is "))
    start = int(np.flatnonzero(example.ids == notes)[0])
    stop = start + int(np.flatnonzero(example.ids[start:] == end)[0])
    question = example.ids[:start]
    (attribute,) = question[np.isin(question, attributes)]
    asked = list(question[np.isin(question, rivers)])
    marks = np.full(len(example.ids), UNMARKED, np.int32)
    attribute_mark = river_mark = 0
    for place in range(start, stop):
        token = example.ids[place]
        if token in attributes:
            marks[place] = attribute_mark = int(token == attribute)
        elif token in rivers:
            marks[place] = river_mark = asked.index(token) + 1 if token in asked else 0
        elif example.ids[place - 1] == before_value:
            marks[place] = attribute_mark * river_mark
    return dataclasses.replace(example, marks=marks)


def picking(writer: Writer, rng: np.random.Generator) -> Example:
    """A question and notes in random order that hold the answer among others that do not."""
    attribute, rivers = random_asking(rng, two_hop=0.4)
    values = random_values(rng, len(rivers))
    lines = [_finding(attribute, *pair) for pair in zip(rivers, values, strict=True)]
    for _ in range(rng.integers(1, 4)):
        lines.append(distractor(rng, attribute, rivers, generic=0.15, other_river=0.55))
    rng.shuffle(lines)
    return _reading(writer, rng, attribute, rivers, lines, tiny_world.answer_text(values))


def reader_example(writer: Writer, rng: np.random.Generator) -> Example:
    """A question and notes for the reader: half of them hold the answer.

    The others hold nothing, generic notes, notes about other rivers or attributes, or only one
    of two values.
    """
    attribute, rivers = random_asking(rng, two_hop=0.4)
    values = random_values(rng, len(rivers))
    lines = [_finding(attribute, *pair) for pair in zip(rivers, values, strict=True)]
    answer = tiny_world.answer_text(values)
    if rng.random() < 0.5:
        answer = NOT_ANSWERABLE
        lines.pop(rng.integers(len(lines)))
        if lines and rng.random() < 0.2:
            lines.pop()
        wrong = 1 if rng.random() < 0.75 else int(rng.integers(0, 3))
    else:
        wrong = int(rng.choice(3, p=[0.6, 0.25, 0.15]))
    if lines and rng.random() < 0.05:
        lines.append(lines[rng.integers(len(lines))])
    for _ in range(wrong):
        lines.insert(rng.integers(len(lines) + 1), distractor(rng, attribute, rivers))
    if rng.random() < 0.4:
        rng.shuffle(lines)
    return _reading(writer, rng, attribute, rivers, lines, answer)


def _reading(writer, rng, attribute, rivers, lines, answer) -> Example:
    findings = tuple(Finding(int(rng.integers(2, 13)), str(line)) for line in lines)
    prompt = reader_prompt(writer, tiny_world.question_text(attribute, rivers), Memory(findings))
    return writer.example(prompt, [(answer, 1.0), (vocabulary.END, 1.0)])


def reader_probes(writer: Writer, rng: np.random.Generator, count: int) -> dict[str, list[Example]]:
    """What the reader must get right, case by case, on pairs of values it has not seen."""
    probes: dict[str, list[Example]] = {}

    def add(name, attribute, rivers, lines, answer=NOT_ANSWERABLE):
        example = _reading(writer, rng, attribute, rivers, lines, answer)
        probes.setdefault(name, []).append(example)

    for _ in range(count):
        attribute, other = (str(a) for a in rng.permutation(tiny_world.ATTRIBUTES)[:2])
        rivers = [str(river) for river in rng.permutation(tiny_world.RIVERS)[:3]]
        one, two, three = random_values(rng, 3)
        template = tiny_world.GENERIC_FINDINGS[rng.integers(len(tiny_world.GENERIC_FINDINGS))]
        generic = template.format(attribute=attribute, river=rivers[0])
        first, second = _finding(attribute, rivers[0], one), _finding(attribute, rivers[1], two)
        of_other_river = _finding(attribute, rivers[2], three)
        of_other_attribute = _finding(other, rivers[0], three)
        ask_one, ask_two = (attribute, rivers[:1]), (attribute, rivers[:2])
        add("one", *ask_one, [first], one)
        add("one, others beside", *ask_one, [of_other_river, first, of_other_attribute], one)
        add("one, empty", *ask_one, [])
        add("one, generic", *ask_one, [generic])
        add("one, other river", *ask_one, [of_other_river])
        add("one, other attribute", *ask_one, [of_other_attribute])
        add("two", *ask_two, [first, second], tiny_world.answer_text([one, two]))
        add("two, swapped", *ask_two, [second, first], tiny_world.answer_text([one, two]))
        add("two, second missing", *ask_two, [first])
        add("two, generic second", *ask_two, [first, generic])
        add("two, generic first", *ask_two, [generic, second])
        add("two, other river second", *ask_two, [first, of_other_river])
    return probes


def direct_answer(
    writer: Writer,
    library: Library,
    question: Question,
) -> Example:
    """A one-hop question answered from three pages alone."""
    attribute, rivers = tiny_world.parse_question(question.text)
    query = tiny_world.QUERY.format(attribute=attribute, river=rivers[0])
    numbers = library.search(question.document, query)
    prompt, pages = direct_prompt(writer, library, question, numbers)
    answer = tiny_world.answer_text(tiny_world.gold_values(question))
    return writer.example(prompt, [(answer, 1.0), (vocabulary.END, 1.0)], pages)
