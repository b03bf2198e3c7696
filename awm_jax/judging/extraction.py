"""Takes the short answer out of a reply, by rules.

The official pipelines ask GPT-4o for this. These are rules, not that model: tables that were
scored through them have to say so (`NAME`). They cover what models write most: a label, a
boxed or bold answer, "The answer is ...", a list of points, a refusal, a sentence round one
number.
"""

import re
from collections.abc import Sequence

from awm_jax.judging import strict
from awm_jax.types import Question

NAME = "rule-based extraction"
NOT_ANSWERABLE = "Not answerable"
NOT_READ = "Fail to answer"

_LONGEST_REPLY = 20_000
# Tried in this order; the last match in the reply counts.
_LABELS = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<concise_answer>(.*?)</concise_answer>",
        r"extracted answer:[* ]*(.*?)\s*(?:answer format:|$)",
        r"\\boxed\{([^{}]*)\}",
        r"(?:^|\n)[#* ]*(?:final |short )?answer[* ]*:[* ]*([^\n]+)",
        r"\bthe (?:final |short |correct )?answer is:?\s+([^\n]+?)(?:\.\s|\.?$|\n)",
    )
)
_POINT = re.compile(r"^\s*(?:[-*\u2022]|\d{1,2}[.)])\s+(.+?)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"[-\u2212]?[$£€]?\d+(?:,\d{3})*(?:\.\d+)?\s?%?")
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six")
_NUMBER_WORDS += ("seven", "eight", "nine", "ten", "eleven", "twelve")
_CANNOT_SEE = re.compile(
    r"(?:unable to|cannot|can't|could not) (?:read|see|view|access|open)\b"
    r"|too (?:small|blurry|low)"
)


def _plain(text: str) -> str:
    """Without Markdown's emphasis, code ticks and a full stop at the end."""
    text = re.sub(r"\*\*|__|`", "", text).strip().strip('"').strip()
    return text[:-1] if text.endswith(".") and not text.endswith(("a.m.", "p.m.")) else text


def _labelled(reply: str) -> str | None:
    for label in _LABELS:
        if found := [text for text in label.findall(reply) if text.strip()]:
            return found[-1].strip()
    return None


def _as_list(text: str) -> str:
    if (start := text.find("[")) >= 0 and (end := text.rfind("]")) > start:
        return text[start : end + 1]
    points = [_plain(point) for point in _POINT.findall(text)]
    if not points:
        points = [_plain(part) for part in re.split(r",(?!\d{3}\b)|;|\band\b", text)]
    return repr([point for point in points if point])


def _as_number(text: str) -> str:
    found = {match.strip() for match in _NUMBER.findall(text)}
    if not found:
        words = {word for word in re.findall(r"[a-z]+", text.lower()) if word in _NUMBER_WORDS}
        return str(_NUMBER_WORDS.index(words.pop())) if len(words) == 1 else text
    # Several different numbers: which one is meant, no rule can tell.
    return re.sub(r"[,$£€]", "", found.pop()).replace("\u2212", "-") if len(found) == 1 else text


def extract(reply: str, answer_format: str = "Str") -> str:
    """The short answer in a reply, in the form that the rule scorers read.

    Args:
      reply: what the model wrote; thinking between <think> tags is dropped.
      answer_format: either benchmark's name; a list is given as a Python literal, a number as
        digits. The official extraction guesses the format from the question instead.
    """
    reply = re.sub(r"<think>.*?</think>", "", reply[:_LONGEST_REPLY], flags=re.DOTALL).strip()
    labelled = _labelled(reply)
    text = _plain(reply if labelled is None else labelled)
    if strict.declines(text):
        return NOT_ANSWERABLE
    if labelled is None and _CANNOT_SEE.search(text.lower()):
        return NOT_READ
    match answer_format:
        case "List":
            return _as_list(text)
        case "Int" | "Integer" | "Float":
            return _as_number(text)
    return text


def extract_all(items: Sequence[tuple[Question, str]]) -> list[str]:
    """`extract` of each (question, reply), in order; a rule never fails."""
    return [extract(reply, question.answer_format) for question, reply in items]
