"""One side of the step benchmark: answers each line of standard input with a timed step.

Imported by programs that run in three different environments: the standard library alone.
"""

import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def versions(*packages: str) -> dict[str, str]:
    """Versions of the installed packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def serve(prepare: Callable[[str], tuple[Callable[[], Any], dict[str, Any]]]) -> None:
    """Prepares the step, says what it is, then times it as often as it is asked to.

    Args:
      prepare: (folder of weights and batch) -> the step, a function that is done when it
        returns, and facts about it. The first call of the step is not among the timed ones.
    """
    # Libraries print what they like; the answers keep the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    step, facts = prepare(sys.argv[1])
    answer(facts)
    for _ in sys.stdin:
        start = time.process_time()
        step()
        cpu_s = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer({"cpu_s": cpu_s, "peak_rss_mib": peak / 2**10})
