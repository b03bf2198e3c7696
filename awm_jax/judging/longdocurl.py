"""LongDocURL's rule scorer (https://arxiv.org/abs/2412.18424, utils/utils_score_v3.py).

`mode="official"` gives the numbers of the official evaluation, its oddities included: it reads
the answer between the <concise_answer> tags as Python first, so that "2020-10-12" becomes 1998
and "max" a function. Where that evaluation dies, the score is 0 and `score_detail` says why.
Names that only mean something inside the official script ("json", "case") are read as text.
`mode="strict"` mends the oddities; which ones is listed in `awm_jax.judging.strict`. Nothing is
evaluated as code.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from awm_jax.judging import literals, mmlongbench, strict

ANSWER_FORMATS = ("Integer", "Float", "String", "List", "None")
NOT_EXTRACTED = "Fail to extract"
QUESTIONS = 2325

# Taken off in this order, each where it then ends the text.
_UNITS = ("kg", "mm", "m", "meters", "acres", "minutes", "mile", "miles")
_UNITS += ("million", "thousand", "billion")


def clean(value: object) -> str:
    """What is compared: lower-case text without commas, units, parentheses and quotes."""
    text = str(value).lower().strip().replace(",", "")
    for unit in _UNITS:
        if text.endswith(unit):
            # `rstrip` takes off letters, not the word ("team" becomes "tea"); so it is upstream.
            text = text.rstrip(unit).strip()
    return mmlongbench.trim(text, currencies=("$", "£"))


def parse(prediction: str) -> object:
    """What Python makes of the extracted answer, or the text itself where it makes nothing."""
    try:
        return literals.parse(prediction)
    except literals.NotALiteralError:
        return prediction


def _int_score(gold: object, prediction: object) -> float:
    gold, prediction = clean(gold), clean(prediction)
    with contextlib.suppress(ValueError):
        gold = int(gold)
    try:
        prediction = int(prediction)
    except ValueError:
        prediction = ""
    return float(gold == prediction)


def _float_score(gold: object, prediction: object) -> float:
    try:
        return float(mmlongbench.equal_numbers(clean(gold), clean(prediction)))
    except ValueError:
        return 0.0


def _as_list(value: object) -> list:
    if isinstance(value, str) and value.startswith("["):
        value = parse(value)
    items = value if isinstance(value, list) else [value]
    if isinstance(items[0], dict):
        return ["-".join(map(str, item.values())) for item in items]
    return items


def _list_score(gold: object, prediction: object) -> float:
    gold = [clean(item) for item in _as_list(gold)]
    prediction = [clean(item) for item in _as_list(prediction)]
    if mmlongbench.is_number(gold[0]) or mmlongbench.must_match_exactly(gold[0]):
        return float("-".join(gold) == "-".join(prediction))
    # Each gold item takes its best match, whether or not another one took it before.
    best = [max(mmlongbench.similarity(g, p) for p in prediction) for g in gold]
    return sum(best) / len(gold) * min(1.0, len(gold) / len(prediction)) ** 0.5


def score_detail(
    gold: Any, prediction: str, answer_format: str, *, mode: str = "official"
) -> tuple[float, str]:
    """The score in [0, 1] and, where the official script would have died, the reason for 0.

    Args:
      gold: the answer as the file has it: a string, a number or a list.
      prediction: what stands inside <concise_answer>, before any parsing.
      answer_format: the gold answer's, one of `ANSWER_FORMATS`.
      mode: "official" or "strict".

    Raises:
      ValueError: unknown answer format or mode.
    """
    if answer_format not in ANSWER_FORMATS:
        raise ValueError(f"answer format {answer_format!r}, expected one of {ANSWER_FORMATS}")
    if mode not in mmlongbench.MODES:
        raise ValueError(f"scoring mode {mode!r}, expected one of {mmlongbench.MODES}")
    if mode == "strict":
        return strict.score(gold, prediction, answer_format, partial_lists=True), ""
    parsed = parse(prediction)
    if parsed == NOT_EXTRACTED:
        return 0.0, ""
    try:
        match answer_format:
            case "Integer":
                return _int_score(gold, parsed), ""
            case "Float":
                return _float_score(gold, parsed), ""
            case "String" | "None":
                return mmlongbench.text_score(clean(gold), clean(parsed)), ""
        return _list_score(gold, parsed), ""
    except (IndexError, AttributeError) as error:
        return 0.0, f"the official script dies: {type(error).__name__}: {error}"


def score(gold: Any, prediction: str, answer_format: str, *, mode: str = "official") -> float:
    """The score in [0, 1]; arguments and errors as in `score_detail`."""
    return score_detail(gold, prediction, answer_format, mode=mode)[0]


def rectified_accuracy(scores: Sequence[float]) -> float:
    """The official "rectified" mean: a question without a record counts as 0."""
    return sum(scores) / QUESTIONS
