"""The page in headless Chromium: clicks, keys, filters, the comparison, and hostile text."""

import dataclasses
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from awm_jax.evaluation import report, statistics
from awm_jax.types import (
    ANSWERED,
    STEP_BUDGET,
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

HOSTILE = (
    "</script><script>window.run = 1; alert(1)</script><img src=x onerror='window.run = 2'>"
    "<svg onload='window.run = 3'></template></details>\"'>{{7*7}}<a href='javascript:run()'>\u202e"
)
RIGHT, MISSING, ERROR, WRONG = (1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)


def rollout(place, scores, *, text="How many?", source="Table", status=ANSWERED):
    nothing = np.zeros(0, np.int32)
    memory = Memory((Finding(2, text), Finding(3, text)))
    call = ToolCall("search_pages", {"query": text, text: text})
    shown = Page("d.pdf", 2, np.full((40, 30, 3), 200, np.uint8), "2")
    sample = Sample(nothing, nothing, np.zeros(0, np.float32), text, "stop")
    turn = Turn(0, sample, (call,), ("Page 2:", shown, text), (text,), memory)
    document = f"{text}{place % 2}.pdf"
    question = Question(f"q{place}", document, text, text, "Str", (2,), (source, text))
    trajectory = Trajectory(question, 0, (turn,), text, memory, status)
    return trajectory, Verdict(*scores, text, text)


@absltest.skipUnless(browser.executable(), "no Chromium is installed")
class PageTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.page = cls.enterClassContext(browser.running())
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        judged = [
            rollout(0, RIGHT, source="Chart"),
            rollout(1, MISSING),
            rollout(2, MISSING, source="Chart", status=STEP_BUDGET),
            rollout(3, WRONG),
        ]
        before = [(t, dataclasses.replace(v, memory_score=0.0)) for t, v in judged]
        cls.plain, cls.hostile = folder / "plain.html", folder / "hostile.html"
        options = {"title": "A run", "provenance": {"seed": "0"}}
        report.write_report(cls.plain, judged, before=("before", before), **options)
        bad = [rollout(place, MISSING, text=HOSTILE, source=HOSTILE) for place in range(2)]
        report.write_report(
            cls.hostile,
            bad,
            title=HOSTILE,
            provenance={HOSTILE: HOSTILE},
            before=(HOSTILE, bad),
            changes=statistics.paired_bootstrap(bad, bad, seed=0, resamples=10),
            left_out=[HOSTILE],
        )

    def open(self, path, fragment=""):
        self.page.messages.clear()
        self.page.requests.clear()
        self.page.open(path, fragment=fragment)

    def tearDown(self):
        self.assertEqual(self.page.messages, [])
        self.assertEqual(self.page.requests, [])
        super().tearDown()

    def count(self):
        return self.page.evaluate("document.getElementById('count').textContent")

    def choose(self, name, value):
        self.page.evaluate(
            f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('input')); }})"
            f"(document.getElementById({name!r}))"
        )

    def open_rollouts(self):
        return self.page.evaluate(
            "[...document.querySelectorAll('details.rollout[open]')].map(e => e.id)"
        )

    def test_a_cell_is_picked_and_dropped_by_mouse_and_by_key(self):
        self.open(self.plain)
        self.assertEqual(self.count(), "4 of 4 rollouts")
        self.page.click("button.cell[data-cell='10']")
        self.assertEqual(self.count(), "2 of 4 rollouts")
        pressed = "document.querySelector('button.cell[aria-pressed=true]').dataset.cell"
        self.assertEqual(self.page.evaluate(pressed), "10")
        self.page.press("2")
        self.assertEqual(self.count(), "4 of 4 rollouts")
        self.page.press("4")
        self.assertEqual(self.count(), "1 of 4 rollouts")
        self.page.press("0")
        self.assertEqual(self.count(), "4 of 4 rollouts")

    def test_filters_and_the_rate_of_a_selection(self):
        self.open(self.plain)
        self.choose("source", "Chart")
        self.assertEqual(
            self.count(), "2 of 4 rollouts \u00b7 P_mmc of this selection 50.0 % [9.5, 90.5]"
        )
        self.choose("status", STEP_BUDGET)
        self.assertStartsWith(self.count(), "1 of 4")
        self.page.click("#clear")
        self.choose("document", "How many?1.pdf")
        self.assertStartsWith(self.count(), "2 of 4")
        self.choose("words", "q3 MANY")
        self.assertStartsWith(self.count(), "1 of 4")
        self.choose("words", "nowhere")
        self.assertStartsWith(self.count(), "0 of 4")

    def test_reading_by_keyboard(self):
        self.open(self.plain)
        self.page.press("j")
        self.page.press("Enter")
        self.assertEqual(self.open_rollouts(), ["r1"])
        self.page.press("n")
        self.assertEqual(self.open_rollouts(), ["r2"])
        self.page.press("p")
        self.assertEqual(self.open_rollouts(), ["r1"])
        self.page.press("/")
        for letter in "q2":
            self.page.press(letter)
        self.assertStartsWith(self.count(), "1 of 4")
        self.page.press("Escape")
        self.page.press("0")
        self.assertEqual(self.count(), "4 of 4 rollouts")

    def test_pages_appear_and_open_in_a_dialog(self):
        self.open(self.plain, "#r2")
        self.assertEqual(self.open_rollouts(), ["r2"])
        shown = self.page.evaluate(
            "new Promise(done => setTimeout(() => done([...document.querySelectorAll("
            "'#r2 img')].every(e => e.complete && e.naturalWidth === 30)), 50))"
        )
        self.assertTrue(shown)
        gold = self.page.evaluate(
            "getComputedStyle(document.querySelector('#r2 button.thumb.gold')).borderTopWidth"
        )
        self.assertEqual(gold, "3px")
        self.page.click("#r2 button.thumb")
        self.assertTrue(self.page.evaluate("document.getElementById('viewer').open"))
        self.page.press("Escape")
        self.assertFalse(self.page.evaluate("document.getElementById('viewer').open"))

    def test_a_note_stands_beside_the_page_that_it_cites(self):
        self.open(self.plain, "#r1")
        beside = self.page.evaluate(
            "[...document.querySelectorAll('#r1 aside .note')].map(e => "
            "[e.querySelector('.label').textContent, e.querySelector('p').textContent])"
        )
        self.assertEqual(beside, [["page 2 \u00b7 gold", "How many?"], ["page 3", "How many?"]])

    def test_what_moved_between_two_runs(self):
        self.open(self.plain)
        self.page.click("button.move[data-from='10'][data-to='11']")
        self.assertEqual(self.count(), "1 of 4 rollouts")
        self.page.press("j")
        self.page.press("Enter")
        self.assertEqual(self.open_rollouts(), ["r1"])
        self.assertIn(
            "memory-missing correct",
            self.page.evaluate("document.querySelector('#r1 .earlier h3').textContent"),
        )
        self.assertTrue(
            self.page.evaluate(
                'document.querySelector(\'[data-from="00"][data-to="11"]\').disabled'
            )
        )

    def test_hostile_text_runs_nothing_and_asks_for_nothing(self):
        self.open(self.hostile)
        self.page.press("j")
        self.page.press("Enter")
        self.page.evaluate("document.querySelector('.leftout').open = true")
        self.choose("source", HOSTILE)
        self.assertStartsWith(self.count(), "2 of 2")
        self.assertEqual(self.page.evaluate("typeof window.run"), "undefined")
        heading = self.page.evaluate("document.querySelector('h1').textContent")
        self.assertEqual(heading, HOSTILE)
        counts = self.page.evaluate(
            "['script', 'a', 'svg', 'img[src=x]'].map(e => document.querySelectorAll(e).length)"
        )
        self.assertEqual(counts, [2, 0, 0, 0])

    def test_it_fits_a_narrow_screen(self):
        self.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=390,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
        try:
            for path in (self.plain, self.hostile):
                self.open(path, "#r1")
                width = self.page.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(width, 390)
        finally:
            self.page.call("Emulation.clearDeviceMetricsOverride")


if __name__ == "__main__":
    absltest.main()
