"""How long the official rules take over the benchmark's 1,082 golds, against plain Python.

    python experiments/benchmark_judging/scorers.py SAMPLES_JSON

Each gold answer is scored against itself, and against a reply of some 60 characters, which is
where the edit distance costs most. Prints one JSON object; times are CPU seconds, the best of
several rounds.
"""

import json
import sys
import time
from unittest import mock

from awm_jax.datasets import mmlongbench as data
from awm_jax.judging import extraction, mmlongbench

ROUNDS = 7
_PADDING = " as the second paragraph of the page in question says it"


def levenshtein(first: str, second: str) -> int:
    """The edit distance in plain Python, two rows of the table at a time."""
    previous = list(range(len(second) + 1))
    for row, letter in enumerate(first, start=1):
        current = [row]
        for column, other in enumerate(second, start=1):
            current.append(
                min(
                    previous[column] + 1,
                    current[-1] + 1,
                    previous[column - 1] + (letter != other),
                )
            )
        previous = current
    return previous[-1]


class _PlainPython:
    distance = staticmethod(levenshtein)


def seconds(items, mode="official") -> float:
    """Best time of scoring all items once."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for gold, prediction, answer_format in items:
            mmlongbench.score(gold, prediction, answer_format, mode=mode)
        best = min(best, time.process_time() - start)
    return best


def main(path: str) -> dict:
    """The measurements."""
    questions, report = data.load(path)
    same = [(q.answer, str(q.answer), q.answer_format) for q in questions]
    long = [(gold, answer + _PADDING, form) for gold, answer, form in same]
    result = {
        "items": len(same),
        "samples_json": report.digest[:12],
        "golds_that_score_1": sum(mmlongbench.score(*item) == 1 for item in same),
        "golds_that_score_1_strict": sum(
            mmlongbench.score(*item, mode="strict") == 1 for item in same
        ),
    }
    for name, items in (("against_themselves", same), ("against_long_replies", long)):
        fast = seconds(items)
        with mock.patch.object(mmlongbench, "Levenshtein", _PlainPython):
            plain = seconds(items)
        result[name] = {
            "seconds": round(fast, 4),
            "seconds_strict": round(seconds(items, "strict"), 4),
            "seconds_plain_levenshtein": round(plain, 4),
            "plain_over_ours": round(plain / fast, 1),
        }
    start = time.process_time()
    for _, answer, form in long:
        extraction.extract(answer, form)
    result["rule_based_extraction_seconds"] = round(time.process_time() - start, 4)
    return result


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
