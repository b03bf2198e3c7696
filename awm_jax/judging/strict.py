"""The strict mode of both rule scorers: the official rules as the papers state them.

What it mends, beside never reading an answer as Python code:

* Numbers are read as people write them: "1,234", "$5", "12 (approx.)", "5 kg", "3/4", "12.".
  Scale words multiply ("2.5 million"). Per cent signs, scales, currencies and units must agree
  where both answers have one; where only one has, the number may match with or without it.
* Int: 12.0 equals 12 and 12.7 does not. Float: 1 % relative and nothing else; no rounding, and a
  factor of 100 only between a per cent sign and none. A gold answer that is no number is
  compared as text.
* Text: currency and per cent signs at the ends and a full stop are ignored, as are spaces and
  hyphens inside digits. "team" keeps its letters.
* None: declining in other words ("Unanswerable", "cannot be determined") scores 1, all else 0.
* List: "apple, pear" is a list of two. Items pair one to one, best pairs first, in any order,
  numbers as numbers (whole ones exactly). MMLongBench-Doc: equal lengths, the worst pair's
  score. LongDocURL: the pairs' sum over gold's length, times sqrt(gold/prediction length) for
  a longer prediction. Two empty lists are equal.
"""

import dataclasses
import math
import re
from typing import Any

from rapidfuzz.distance import Levenshtein

from awm_jax.judging import literals

_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_NUMBER = re.compile(
    r"(?P<sign>[-+\u2212]?)\s*(?P<currency>[$£€]?)\s*"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d{1,2})?|\.\d+)\s*"
    r"(?P<percent>%|percent\b|per cent\b)?\s*"
    rf"(?P<scale>(?:{'|'.join(_SCALES)})\b)?\s*(?P<unit>[a-z]{{1,20}}(?: [a-z]{{1,20}})?)?"
)
_FRACTION = re.compile(r"(?P<over>[-+]?\d{1,15})\s*/\s*(?P<under>[1-9]\d{0,14})")
_DECLINES = re.compile(
    r"\b(?:not answerable|unanswerable|no answer"
    r"|(?:cannot|can ?not|can't|could not|impossible to) (?:be )?(?:answer|determine|find)"
    r"|not (?:be )?(?:answered|determined|mentioned|provided|specified|stated|given)"
    r"|(?:does|do|did) not (?:contain|mention|provide|specify|state|say|include|hold))"
)
_EXACT = re.compile(r"https?://|\.py$|ipynb$|^page\b|[ap]\.m\b|^[\d\s/-]+$|^\S+@\S+\.[a-z]{2,}$")
_SEPARATOR = re.compile(r"[;\n]|,(?!\d{3}\b)|\band\b")
_LONGEST_TEXT = 2_000
RELATIVE_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Number:
    """A number and the marks that stand by it; an empty mark was not there."""

    value: float
    percent: str = ""
    scale: str = ""
    currency: str = ""
    unit: str = ""

    @property
    def meanings(self) -> tuple[float, ...]:
        """What the number may stand for where the other side leaves the marks out."""
        scaled = self.value * _SCALES.get(self.scale, 1.0)
        return (self.value, scaled, self.value / 100 if self.percent else self.value)


def _text(value: object) -> str:
    text = str(value)[:_LONGEST_TEXT].lower()
    text = re.sub(r"\([^()]*\)", " ", text)
    text = re.sub(r"\s+", " ", text).strip(" '\"*`")
    return text.removesuffix(".").strip(" '\"*`")


def read_number(value: object) -> Number | None:
    """The number that `value` is or spells, nothing else beside it; None where there is none."""
    if isinstance(value, bool):
        return None
    text = _text(value)
    if fraction := _FRACTION.fullmatch(text):
        return Number(int(fraction["over"]) / int(fraction["under"]))
    if not (match := _NUMBER.fullmatch(text)):
        return None
    size = float(match["digits"].replace(",", ""))
    marks = {name: match[name] or "" for name in ("percent", "scale", "currency", "unit")}
    return Number(-size if match["sign"] in ("-", "\u2212") else size, **marks)


def equal_numbers(gold: Number, prediction: Number, *, relative_tolerance: float) -> bool:
    """Whether both may mean the same, given the marks that they have."""
    for mark in ("currency", "unit"):
        one, other = getattr(gold, mark), getattr(prediction, mark)
        if one and other and one.rstrip("s") != other.rstrip("s"):
            return False

    def close(one: float, other: float) -> bool:
        return math.isclose(one, other, rel_tol=relative_tolerance)

    if bool(gold.percent) == bool(prediction.percent) and bool(gold.scale) == bool(
        prediction.scale
    ):
        scales = [_SCALES.get(number.scale, 1.0) for number in (gold, prediction)]
        return close(gold.value * scales[0], prediction.value * scales[1])
    return any(close(one, other) for one in gold.meanings for other in prediction.meanings)


def declines(text: str) -> bool:
    """Whether the text says, in one wording or another, that there is no answer."""
    return bool(_DECLINES.search(text.lower().replace("\u2019", "'")))


def text_score(gold: object, prediction: object) -> float:
    """ANLS above one half, or equality for links, files, pages, dates and the like."""
    gold, prediction = (_text(value).lstrip("$£€").rstrip("% ") for value in (gold, prediction))
    if _EXACT.search(gold):
        if re.fullmatch(r"[\d\s/-]+", gold):
            gold, prediction = (re.sub(r"[\s-]", "", text) for text in (gold, prediction))
        return float(gold == prediction)
    value = Levenshtein.normalized_similarity(gold, prediction)
    return value if value > 0.5 else 0.0


def number_score(gold: object, prediction: object, *, relative_tolerance: float) -> float:
    """1 for equal numbers, 0 for others; a gold answer that is no number is taken as text."""
    gold_number, number = read_number(gold), read_number(prediction)
    if gold_number is None:
        return float(_text(gold) == _text(prediction))
    return float(
        number is not None
        and equal_numbers(gold_number, number, relative_tolerance=relative_tolerance)
    )


def _item_score(gold: object, prediction: object) -> float:
    number = read_number(gold)
    if number is None or read_number(prediction) is None:
        return text_score(gold, prediction)
    whole = number.value.is_integer() and not number.percent
    tolerance = 1e-9 if whole else RELATIVE_TOLERANCE
    return number_score(gold, prediction, relative_tolerance=tolerance)


def _readings(value: object) -> list[list]:
    """The lists that a value may stand for."""
    if isinstance(value, str):
        text = value.strip()[: literals.LONGEST_SOURCE]
        try:
            value = literals.parse(text) if text.startswith(("[", "{", "(")) else text
        except literals.NotALiteralError:
            value = text.strip("[] ") if text.startswith("[") else text
    if isinstance(value, str):
        parts = [part.strip() for part in _SEPARATOR.split(value)]
        return [[value], [part for part in parts if part]]
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [["-".join(map(str, i.values())) if isinstance(i, dict) else i for i in items]]


def _pair_scores(gold: list, prediction: list) -> list[float]:
    """Scores of the pairs, one to one, best pairs first."""
    scored = [
        (-_item_score(g, p), row, column)
        for row, g in enumerate(gold)
        for column, p in enumerate(prediction)
    ]
    rows, columns, scores = set(), set(), []
    for negated, row, column in sorted(scored):
        if row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
            scores.append(-negated)
    return scores


def _list_score(gold: list, prediction: list, *, partial: bool) -> float:
    if not gold or not prediction:
        return float(gold == prediction)
    if partial:
        share = min(1.0, len(gold) / len(prediction)) ** 0.5
        return sum(_pair_scores(gold, prediction)) / len(gold) * share
    return min(_pair_scores(gold, prediction)) if len(gold) == len(prediction) else 0.0


def score(gold: Any, prediction: str, answer_format: str, *, partial_lists: bool = False) -> float:
    """The strict score in [0, 1].

    Args:
      gold: the answer as the data set has it.
      prediction: the extracted short answer.
      answer_format: either benchmark's name.
      partial_lists: LongDocURL's rule for lists in place of MMLongBench-Doc's.
    """
    match answer_format:
        case "Int" | "Integer":
            return number_score(gold, prediction, relative_tolerance=1e-9)
        case "Float":
            return number_score(gold, prediction, relative_tolerance=RELATIVE_TOLERANCE)
        case "Str" | "String":
            return text_score(gold, prediction)
        case "None":
            same = text_score(gold, prediction) == 1.0
            return float(same or (declines(str(gold)) and declines(str(prediction))))
    gold_items = _readings(gold)[0]
    return max(
        _list_score(gold_items, items, partial=partial_lists) for items in _readings(prediction)
    )
