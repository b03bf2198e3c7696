"""The page of a run: whole, escaped, within its limits."""

import base64
import collections
import dataclasses
import hashlib
import html.parser
import json

import numpy as np
from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.evaluation import report
from awm_jax.types import (
    ANSWERED,
    TOOL_ERROR,
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

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' {{7*7}} \ud800"


def page(number, document="d.pdf", edge=64):
    image = np.full((edge, edge, 3), number, np.uint8)
    return Page(document, number, image, str(number))


def sample(text):
    nothing = np.zeros(0, np.int32)
    return Sample(nothing, nothing, np.zeros(0, np.float32), text, "stop")


def rollout(text="How many?", note="Seven of them.", status=ANSWERED, gold=(2, 3)):
    memory = Memory((Finding(2, note),))
    search = ToolCall("search_pages", {"query": text})
    update = ToolCall("update_memory", {"source_page": 2, "finding": note})
    answer = ToolCall("answer", {"answer": text})
    turns = (
        Turn(0, sample(text), (search,), ("Page 2:", page(2), "Page 1:", page(1)), (), Memory()),
        Turn(1, sample(text), (update, answer), (text,), (text,), memory),
    )
    question = Question("q1", "d.pdf", text, text, "Str", gold)
    return Trajectory(question, 0, turns, text, memory, status, text)


def judged(count=1, **of):
    return [(rollout(**of), Verdict(1.0, 0.0, "Seven", "the rules"))] * count


class Elements(html.parser.HTMLParser):
    """Counts elements and keeps attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.attributes = collections.defaultdict(list)
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes[tag].append(dict(attrs))

    def handle_data(self, data):
        self.texts.append(data)

    def images(self):
        """The page images that the file holds."""
        position = next(i for i, text in enumerate(self.texts) if text.startswith('["'))
        return json.loads(self.texts[position])


def build(pairs, **options):
    return report.build_report(pairs, title="A run", provenance={"seed": "0"}, **options)


class ReportTest(absltest.TestCase):
    def test_numbers_cells_and_provenance(self):
        pairs = judged(3) + [(rollout(status=TOOL_ERROR), Verdict(0, 0, "", "", error="gone"))]
        elements = Elements(build(pairs))
        text = " ".join(elements.texts)
        self.assertIn("3 rollouts judged, 1 without a judgement", text)
        self.assertIn("memory-missing correct", text)
        cells = [found["data-cell"] for found in elements.attributes["details"]]
        self.assertEqual(cells, ["10", "10", "10", "none"])
        buttons = [b.get("data-cell") for b in elements.attributes["button"] if "data-cell" in b]
        self.assertEqual(buttons, ["11", "10", "01", "00", "none"])
        for part in ("A run", "seed", "the rules", "[43.8, 100.0]", "gone"):
            self.assertIn(part, text)

    def test_hostile_text_stays_text(self):
        pairs = judged(text=HOSTILE, note=HOSTILE)
        pairs = [(pairs[0][0], Verdict(1, 1, HOSTILE, HOSTILE, error=HOSTILE))]
        text = report.build_report(pairs, title=HOSTILE, provenance={HOSTILE: HOSTILE})
        elements = Elements(text)
        self.assertLen(elements.attributes["script"], 2)
        self.assertFalse([a for a in elements.attributes["img"] if "onerror" in a])
        self.assertIn("{{7*7}}", "".join(elements.texts))

    def test_arguments_of_any_shape_are_shown(self):
        trajectory = rollout()
        calls = (ToolCall("update_memory", {"finding": ["a"], "source_page": {}}),)
        turn = dataclasses.replace(trajectory.turns[0], calls=calls)
        trajectory = dataclasses.replace(trajectory, turns=(turn,))
        self.assertIn("finding: [&#39;a&#39;]", build([(trajectory, judged()[0][1])]))

    def test_only_its_own_script_may_run_and_nothing_is_fetched(self):
        text = build(judged(), curves=b"\x89PNG")
        script = text.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self.assertIn(
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest}'",
            text,
        )
        self.assertNotIn("http://", text)
        self.assertNotIn("https://", text)
        self.assertIn("data:image/png;base64,iVBORw==", text)

    def test_gold_pages_are_outlined_and_the_unseen_one_is_named(self):
        elements = Elements(build(judged()))
        gold = {
            b["data-number"]
            for b in elements.attributes["button"]
            if b.get("class") == "thumb gold"
        }
        plain = {
            b["data-number"] for b in elements.attributes["button"] if b.get("class") == "thumb"
        }
        self.assertEqual((gold, plain), ({"2"}, {"1"}))
        self.assertIn("never shown to the agent: page 3", "".join(elements.texts))

    def test_a_step_shows_what_was_written_what_was_refused_and_why(self):
        why = "Write a finding first."
        text = (
            'I look.<tool_call>{"name": "search_pages", "arguments": {"query": "cats"}}</tool_call>'
        )
        turn = Turn(0, sample(text), (), (why, "Page 1:", page(1)), (why,), Memory())
        trajectory = dataclasses.replace(rollout(), turns=(turn,))
        texts = Elements(build([(trajectory, judged()[0][1])])).texts
        self.assertContainsSubset(["I look.", "search_pages", "cats"], texts)
        self.assertEqual(texts.count(why), 1)
        self.assertNotIn("Page 1:", texts)

    def test_records_without_pixels_are_rendered(self):
        pair = (rollout(), judged()[0][1])
        record = records.from_json(records.to_json(records.Record(pair[0], verdict=pair[1])))
        drawn = []

        def render(document, number):
            drawn.append(number)
            return page(number)

        text = build([(record.trajectory, record.verdict)], render=render)
        self.assertEqual(sorted(drawn), [1, 2, 3])
        self.assertEqual(text, build([pair], render=render))

    def test_a_page_is_there_once_and_small(self):
        elements = Elements(
            build(judged(5), render=lambda document, number: page(number, edge=2000))
        )
        images = elements.images()
        # Pages 2 and 1 were shown, page 3 is gold.
        self.assertLen(images, 3)
        for image in images:
            self.assertLess(len(image), 10_000)
        used = {a["data-image"] for a in elements.attributes["img"] if "data-image" in a}
        self.assertEqual(used, {"0", "1", "2"})

    def test_what_exceeds_the_limits_is_said(self):
        limits = dataclasses.replace(report.DEFAULT_LIMITS, trajectories=2, images=1)
        elements = Elements(build(judged(5), limits=limits))
        text = "".join(elements.texts)
        self.assertLen(elements.attributes["details"], 2)
        self.assertIn("3 of 5 rollouts are left out", text)
        self.assertLen(elements.images(), 1)
        self.assertIn("2 page images are left out", text)
        none = dataclasses.replace(report.DEFAULT_LIMITS, image_bytes=10)
        self.assertEmpty(Elements(build(judged(), limits=none)).attributes["img"][1:])

    def test_a_page_that_cannot_be_rendered_is_a_number(self):
        def broken(document, number):
            raise ValueError("page 3 of 2")

        text = build(judged(), render=broken)
        self.assertIn('<span class="thumb gold"><span class="label">page 3', text)
        self.assertIn("1 page images are left out", text)

    def test_an_empty_run(self):
        self.assertIn("There is no rollout to show", build([]))


if __name__ == "__main__":
    absltest.main()
