"""A reader of rules, no model: for trying the diagnosis out, never for a number to be reported.

It takes the sentence of the memory that shares most words with the question and returns the part
of it that the question does not have. A language model reads far better; what this reader cannot
find says little about a memory. It is named as what it is wherever it made a number.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

from awm_jax.types import Memory

NAME = "rule-based demo reader (no model)"
NOT_ANSWERABLE = "Not answerable"
# Share of the question's content, rare words counting more, that a sentence must have.
_LEAST_OVERLAP = 0.3

_SMALL_WORDS = """
a an the of in on at to for from by with and or is are was were be been being do does did has have
had can could will would should what which who whom whose when where why how many much it its this
that these those there according as than page document report figure table percentage percent
number total amount list name
"""
_STOP_WORDS = frozenset(_SMALL_WORDS.split())
_WORD = re.compile(r"[^\W_]+(?:[.,:/'\u2019-][^\W_]+)*%?", re.UNICODE)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z\d\"'(])|\n+")
_PAGE = re.compile(r"^\s*[\[(]?p(?:age|\.)?\s*\d+[\])]?\s*[:.\u2013-]?\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[-\u2212]?[$£€]?\d[\d,]*(?:\.\d+)?\s?%?")
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|old|long|large|big|high|far)\b|\bpercent|\bwhen\b"
    r"|\bwh(?:at|ich)\b.{0,40}?\b(?:year|number|rate|ratio|share|amount|total|value|score|page)\b",
    re.IGNORECASE,
)
_ASKS_YES = re.compile(r"^\W*(?:is|are|was|were|does|do|did|has|have|can|could|will)\b", re.I)
_NEGATION = re.compile(r"\b(?:no|not|never|none|neither|without)\b|n['\u2019]t\b", re.IGNORECASE)


def _stem(word: str) -> str:
    word = word.lower().replace("\u2019s", "").replace("'s", "")
    for ending in ("ing", "ed", "es", "s"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            return word[: -len(ending)]
    return word


def _content(text: str) -> list[str]:
    return [_stem(word) for word in _WORD.findall(text) if word.lower() not in _STOP_WORDS]


def _rest(sentence: str, known: frozenset[str]) -> str:
    """The longest run of the sentence's words that the question does not have."""
    runs, start, end, found = [], None, 0, 0
    for match in _WORD.finditer(sentence):
        word = match.group()
        plain = word.lower() in _STOP_WORDS
        if _stem(word) in known:
            if start is not None:
                runs.append((found, sentence[start:end]))
            start, found = None, 0
        elif not plain:
            start = match.start() if start is None else start
            end, found = match.end(), found + 1
    if start is not None:
        runs.append((found, sentence[start:end]))
    # Of equally long ones the last: what is asked for tends to come after what is given.
    return max(enumerate(runs), key=lambda item: (item[1][0], item[0]))[1][1] if runs else ""


def _number(sentence: str, question: str, known: frozenset[str]) -> str:
    """The number that the question does not have and that stands nearest to a word it has."""
    asked = {number.strip(" ,") for number in _NUMBER.findall(question)}
    words = [
        match.span()
        for match in _WORD.finditer(sentence)
        if _stem(match.group()) in known and not match.group()[0].isdigit()
    ]
    numbers = {}
    for match in _NUMBER.finditer(sentence):
        gaps = [max(start - match.end(), match.start() - end) for start, end in words]
        numbers[match.group().strip(" ,")] = min(gaps, default=0)
    left = {number: gap for number, gap in numbers.items() if number not in asked}
    return min(left, key=left.get) if left else ""


def answer(question: str, memory: Memory) -> str:
    """What the rules find in the memory; `NOT_ANSWERABLE` where that is nothing."""
    sentences = [
        _PAGE.sub("", sentence).strip()
        for sentence in _SENTENCE.split("" if not memory.findings else memory.text)
    ]
    contents = [frozenset(_content(sentence)) for sentence in sentences]
    known = frozenset(_content(question))
    seen_in = Counter(word for content in contents for word in content)
    weight = {word: 1 + math.log(1 + len(sentences) / (1 + seen_in[word])) for word in known}
    best, best_overlap = "", 0.0
    for sentence, content in zip(sentences, contents, strict=True):
        overlap = math.fsum(weight[word] for word in content & known)
        # Of equally good sentences the last: later notes correct earlier ones.
        if overlap >= best_overlap and overlap > 0:
            best, best_overlap = sentence, overlap
    if not best or best_overlap < _LEAST_OVERLAP * math.fsum(weight.values()):
        return NOT_ANSWERABLE
    if _ASKS_YES.match(question):
        return "No" if _NEGATION.search(best) else "Yes"
    if _ASKS_NUMBER.search(question):
        return _number(best, question, known) or NOT_ANSWERABLE
    return _rest(best, known) or NOT_ANSWERABLE


def read_memories(items: Sequence[tuple[str, Memory]]) -> list[str]:
    """`answer` of each (question, memory), in order."""
    return [answer(question, memory) for question, memory in items]
