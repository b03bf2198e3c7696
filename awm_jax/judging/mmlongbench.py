"""MMLongBench-Doc's rule scorer (https://arxiv.org/abs/2407.01523, eval/eval_score.py).

`mode="official"` gives the official script's numbers, its oddities included; where that script
dies, the score is 0 and `score_detail` says why. `mode="strict"` mends the oddities; which ones
is listed in `awm_jax.judging.strict`. Nothing is evaluated as code.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein

from awm_jax.judging import literals, strict

ANSWER_FORMATS = ("Int", "Float", "Str", "List", "None")
MODES = ("official", "strict")

_EXACT = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b\d+(-\d+|\s\d+)?\b",  # telephone
        r"\b\d{4}[-\s]\d{2}[-\s]\d{2}\b",  # day
        r"\b\d{4}[-\s]\d{2}\b",  # month
        r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}",  # mail
    )
)


def similarity(gold: str, prediction: str, threshold: float = 0.5) -> float:
    """One minus the normalised Levenshtein distance (ANLS); 0 where not above `threshold`."""
    # The official script takes lengths after upper-casing, where some letters become two.
    length = max(len(gold.upper()), len(prediction.upper()))
    value = 1.0 - (Levenshtein.distance(gold, prediction) / length if length else 0.0)
    return value if value > threshold else 0.0


def without_parentheses(text: str) -> str:
    r"""Removes `\s*\([^)]*\)` as `re.sub` does, in time linear in the text."""
    parts, start = [], 0
    while (opening := text.find("(", start)) >= 0 and (closing := text.find(")", opening)) >= 0:
        parts.append(text[start:opening].rstrip())
        start = closing + 1
    return "".join([*parts, text[start:]])


def trim(text: str, *, currencies: Sequence[str] = ("$",)) -> str:
    """Lower case text without parentheses, outer quotes, currency signs and per cent sign."""
    text = without_parentheses(text).strip()
    text = re.sub(r"^['\"]|['\"]$", "", text).strip()
    for currency in currencies:
        text = text.lstrip(currency).strip()
    return text.rstrip("%").strip()


def clean(value: object) -> str:
    """What is compared: the value as trimmed lower-case text.

    The official script also means to strip "mile", "miles" and "million" and discards the
    result, so they stay.
    """
    return trim(str(value).lower().strip())


def must_match_exactly(gold: str) -> bool:
    """True for a clean gold text whose near misses are wrong: links, files, numbers, dates."""
    return (
        "https://" in gold
        or gold.endswith((".py", "ipynb"))
        or gold.startswith("page")
        or "a.m." in gold
        or "p.m." in gold
        or any(pattern.fullmatch(gold) for pattern in _EXACT)
    )


def text_score(gold: str, prediction: str) -> float:
    """Score of one clean text against another."""
    if must_match_exactly(gold):
        return float(gold == prediction)
    return similarity(gold, prediction)


def is_number(text: str) -> bool:
    """Whether Python reads the text as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decimals(number: float) -> int:
    text = str(number)
    return len(text.rsplit(".", 1)[1]) if "." in text else 3


def equal_numbers(gold: object, prediction: object) -> bool:
    """Equal within 1 % or after rounding, where gold may be 100 times more or less (per cent).

    Raises:
      ValueError: gold is no number.
    """
    gold = float(str(gold).strip().rstrip("%").strip())
    try:
        prediction = float(str(prediction).strip().rstrip("%").strip())
    except ValueError:
        return False
    for scaled in (gold / 100, gold, gold * 100):
        if math.isclose(scaled, prediction, rel_tol=0.01):
            return True
        decimals = max(min(_decimals(prediction), _decimals(scaled)), 2)
        if round(prediction, decimals) == round(scaled, decimals):
            return True
    return False


def as_list(value: object) -> list:
    """A text that opens a bracket as the list that it spells, any other value as one item.

    Raises:
      literals.NotALiteralError: the brackets hold something that is no literal.
    """
    if isinstance(value, str) and value.startswith("["):
        value = literals.parse(value)
    return value if isinstance(value, list) else [value]


def _int_score(gold: object, prediction: object) -> float:
    try:
        gold, prediction = int(gold), int(float(prediction))
    except (ValueError, TypeError, OverflowError):
        # Gold stays a text even where it is an integer and only the prediction is none.
        prediction = ""
    return float(gold == prediction)


def _float_score(gold: object, prediction: object) -> float:
    try:
        gold = float(clean(gold))
        prediction = float(clean(prediction))
    except ValueError:
        prediction = ""
    return float(equal_numbers(gold, prediction))


def _list_score(gold: object, prediction: object) -> float:
    gold, prediction = as_list(gold), as_list(prediction)
    if len(gold) != len(prediction):
        return 0.0
    gold, prediction = sorted(map(clean, gold)), sorted(map(clean, prediction))
    if is_number(gold[0]) or must_match_exactly(gold[0]):
        return float("-".join(gold) == "-".join(prediction))
    return min(map(similarity, gold, prediction))


def score_detail(
    gold: Any, prediction: str, answer_format: str, *, mode: str = "official"
) -> tuple[float, str]:
    """The score in [0, 1] and, where the official script would have died, the reason for 0.

    Args:
      gold: the answer as samples.json has it: a string; a number or list is taken as well.
      prediction: the extracted short answer, before any parsing.
      answer_format: the gold answer's, one of `ANSWER_FORMATS`.
      mode: "official" or "strict".

    Raises:
      ValueError: unknown answer format or mode.
    """
    if answer_format not in ANSWER_FORMATS:
        raise ValueError(f"answer format {answer_format!r}, expected one of {ANSWER_FORMATS}")
    if mode not in MODES:
        raise ValueError(f"scoring mode {mode!r}, expected one of {MODES}")
    if mode == "strict":
        return strict.score(gold, prediction, answer_format), ""
    try:
        match answer_format:
            case "Int":
                return _int_score(gold, prediction), ""
            case "Float":
                return _float_score(gold, prediction), ""
            case "Str" | "None":
                return text_score(clean(gold), clean(prediction)), ""
        return _list_score(gold, prediction), ""
    except literals.NotALiteralError as error:
        return 0.0, f"the official script dies or runs code on this list: {error}"
    except (ValueError, IndexError, OverflowError) as error:
        return 0.0, f"the official script dies: {type(error).__name__}: {error}"


def score(gold: Any, prediction: str, answer_format: str, *, mode: str = "official") -> float:
    """The score in [0, 1]; arguments and errors as in `score_detail`."""
    return score_detail(gold, prediction, answer_format, mode=mode)[0]
