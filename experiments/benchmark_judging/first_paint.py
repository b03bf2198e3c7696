"""How long a browser takes to show the page of a run with 1,000 trajectories.

    python experiments/benchmark_judging/first_paint.py [TRAJECTORIES]

Makes a run of that many invented rollouts (three searches each, page images up to the page's
limits, a run to compare with), writes its page, and opens it in headless Chromium. Prints one
JSON object: milliseconds from navigation to the first contentful paint and until the script ran,
of an empty page as well, and what filtering costs.
"""

import functools
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import numpy as np

from awm_jax.evaluation import report
from awm_jax.types import (
    ANSWERED,
    Finding,
    Memory,
    Page,
    Question,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)
from tests import browser

OPENINGS = 5
_DOCUMENTS, _PAGES = 120, 5
_WORDS = (
    "revenue region share table figure growth market annual report total operating segment "
    "percent increase asset policy method result energy carbon water health"
)
_NOTHING = np.zeros(0, np.int32)


@functools.cache
def page(document: str, number: int) -> Page:
    """An image with lines of dark marks on white, which JPEG compresses about as well as text."""
    marks = np.random.default_rng([int(document[3:-4]), number])
    image = np.full((990, 765, 3), 255, np.uint8)
    for top in range(60, 930, 15):
        dark = np.repeat(marks.random(110) < 0.7, 6)
        image[top : top + 8, 50:710][:, dark] = 40
    return Page(document, number, image, f"{document} {number}")


def words(generator: random.Random, count: int) -> str:
    return " ".join(generator.choices(_WORDS.split(), k=count))


def rollout(place: int, generator: random.Random) -> tuple[Trajectory, Verdict]:
    """Three searches, each followed by a note."""
    say = functools.partial(words, generator)
    document = f"doc{place % _DOCUMENTS}.pdf"
    memory, turns = Memory(), []
    for search in range(3):
        numbers = [1 + (place + search + k) % _PAGES for k in range(3)]
        query = json.dumps({"name": "search_pages", "arguments": {"query": say(6)}})
        sample = Sample(
            _NOTHING,
            _NOTHING,
            np.zeros(0, np.float32),
            f"{say(12)}<tool_call>{query}</tool_call>",
            "stop",
        )
        shown = [item for n in numbers for item in (f"Page {n}:", page(document, n))]
        calls = (ToolCall("search_pages", {"query": say(6)}),)
        turns.append(Turn(search, sample, calls, tuple(shown), (), memory))
        memory = Memory((*memory.findings, Finding(numbers[0], say(25))))
        noted = Sample(_NOTHING, _NOTHING, np.zeros(0, np.float32), say(8), "stop")
        call = ToolCall("update_memory", {"source_page": numbers[0], "finding": say(25)})
        turns.append(Turn(search, noted, (call,), (), (), memory))
    source = generator.choice(("Table", "Chart", "Figure", "Pure-text"))
    question = Question(
        f"q{place}", document, f"{say(14)}?", say(2), "Str", (1 + place % _PAGES,), (source,)
    )
    trajectory = Trajectory(question, 0, tuple(turns), say(2), memory, ANSWERED)
    scores = (float(generator.random() < 0.5), float(generator.random() < 0.5))
    return trajectory, Verdict(*scores, say(2), "invented")


def main(count: int) -> dict:
    """The measurements."""
    generator = random.Random(0)
    judged = [rollout(place, generator) for place in range(count)]
    before = [(t, Verdict(float(generator.random() < 0.4), 0.0, "", "x")) for t, _ in judged]
    with tempfile.TemporaryDirectory() as folder, browser.running() as tab:
        path = pathlib.Path(folder) / "report.html"
        start = time.perf_counter()
        report.write_report(
            path, judged, title="Invented", provenance={"seed": "0"}, before=("before", before)
        )
        wrote = time.perf_counter() - start
        empty = pathlib.Path(folder) / "empty.html"
        empty.write_text("<!doctype html><title>empty</title><p>Hello")
        times = {}
        for name, opened in (("empty_page", empty), ("report", path)):
            paints, scripts = [], []
            for _ in range(OPENINGS):
                tab.open(opened)
                paints.append(tab.first_paint_ms())
                scripts.append(
                    tab.evaluate(
                        "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
                    )
                )
            times[name] = {
                "first_paint_ms": [round(value) for value in sorted(paints)],
                "first_paint_ms_median": round(statistics.median(paints)),
                "script_done_ms_median": round(statistics.median(scripts)),
            }

        def of_script(script: str) -> float:
            timed = f"(t => {{ {script}; return performance.now() - t; }})(performance.now())"
            return round(tab.evaluate(timed), 1)

        search = "const e = byId('words'); e.value = 'revenue'; filter()"
        result = {
            "trajectories": count,
            "megabytes": round(path.stat().st_size / 1e6, 1),
            "images": tab.evaluate("images.length"),
            "elements": tab.evaluate("document.querySelectorAll('*').length"),
            "seconds_to_write": round(wrote, 1),
            **times,
            "filter_by_cell_ms": of_script("pick('10')"),
            "first_search_ms": of_script(search),
            "second_search_ms": of_script(search),
            "load_average": [round(value, 1) for value in os.getloadavg()],
        }
    return result


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000), indent=1))
