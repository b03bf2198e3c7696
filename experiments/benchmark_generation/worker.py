"""One side of the generation benchmark: does the case that a line of standard input names.

Imported by programs that run in three different environments: the standard library alone.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

# Tokens of the vocabulary below this are free of special meaning in all sides.
VOCABULARY = 31_999
CONVERSATIONS, TURNS, NEW, SAMPLED = 8, 6, 60, 40
BATCHES, SAMPLED_ALONE = (1, 8, 32), 64


def prompts(count: int, time: int) -> list[list[int]]:
    """The same made-up prompts for all sides; 0 is the id of padding and left out."""
    return [
        [1 + (7919 * row + 31 * t) % (VOCABULARY - 1) for t in range(time)] for row in range(count)
    ]


def serve(generate: Callable, others: dict[str, Callable], packages: tuple[str, ...]) -> None:
    """Says which versions it has, then times each case that it is asked for.

    Args:
      generate: (prompts, new tokens, slots of the cache) -> done when it returns. Called for
        cases such as `{"batch": 8, "prompt": 192, "new": 64, "slots": 256}`.
      others: further cases by name, such as `{"name": "turns"}`. What one returns is answered.
      packages: whose versions are said.
    """
    # Libraries print what they like; the answers keep the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content):
        print(json.dumps(content), file=answers, flush=True)

    answer({package: importlib.metadata.version(package) for package in packages})
    for line in sys.stdin:
        case = json.loads(line)
        start, result = time.process_time(), None
        if "name" in case:
            result = others[case["name"]]()
        else:
            generate(prompts(case["batch"], case["prompt"]), case["new"], case["slots"])
        answer({"cpu_s": time.process_time() - start, "result": result})
