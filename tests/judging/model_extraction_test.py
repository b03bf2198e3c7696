"""Extraction by a model: the benchmarks' request shapes, tolerant reading, cache, failures."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax import servers
from awm_jax.judging import extraction, mmlongbench, model_extraction, training_scorer
from awm_jax.judging.model_extraction import Cache, Instructions
from awm_jax.types import Question, Sample
from tests.server_double import ServerDouble, say


def question(text, answer="4", answer_format="Int"):
    return Question(text, "d", text, answer, answer_format)


class MessagesTest(absltest.TestCase):
    def test_mmlongbench_ends_in_an_assistant_message(self):
        user, assistant = model_extraction.messages(Instructions(text="Do it."), "Q?", "R.")
        self.assertEqual(user, {"role": "user", "content": "Do it."})
        self.assertEqual(
            assistant, {"role": "assistant", "content": "\n\nQuestion:Q?\nAnalysis:R.\n"}
        )

    def test_one_message_for_local_models_and_longdocurl(self):
        (one,) = model_extraction.messages(Instructions(text="Do it.", one_turn=True), "Q?", "R.")
        self.assertEqual(one["content"], "Do it.\n\nQuestion:Q?\nAnalysis:R.\n")
        (one,) = model_extraction.messages(Instructions("longdocurl", "Do it."), "Q?", "R.")
        self.assertEqual(one["content"], "Do it.\nQuestion: Q?\nAnalysis: R.")

    def test_the_name_tells_text_and_shape_apart(self):
        names = {
            Instructions().name,
            Instructions(one_turn=True).name,
            Instructions(text="x").name,
            Instructions("longdocurl").name,
        }
        self.assertLen(names, 4)
        with self.assertRaisesRegex(ValueError, "benchmark 'x', expected one of"):
            Instructions("x")

    def test_both_ways_to_decline_are_named_as_the_scorers_know_them(self):
        for text in (model_extraction.MMLONGBENCH_TEXT, model_extraction.LONGDOCURL_TEXT):
            self.assertIn(extraction.NOT_ANSWERABLE, text)
            self.assertIn(extraction.NOT_READ, text)


class ParseTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Extracted answer: 10\nAnswer format: Integer", "10"),
        ("**Extracted answer:** 10\n**Answer format:** Integer", "10"),
        ("Extracted answer: **10**", "10"),
        ("Answer format: List\nExtracted answer: ['a', 'b']", "['a', 'b']"),
        ("```\nExtracted answer: a b\nAnswer format: String\n```", "a b"),
        ("Extracted answer: two\nlines\nAnswer format: String", "two\nlines"),
        ("Extracted answer: <concise_answer>3</concise_answer>\nAnswer format: x", "3"),
        # The last one counts: a model may repeat the example first.
        ("Extracted answer: 2\nAnswer format: x\nExtracted answer: 7\nAnswer format: x", "7"),
        ("Extracted answer: [answer]\nAnswer format: [answer format]", None),
        ("<concise_answer></concise_answer>", None),
        ("10", None),
        ("", None),
    )
    def test_reply(self, reply, expected):
        self.assertEqual(model_extraction.parse(reply), expected)


class ServedTest(absltest.TestCase):
    def extract(self, double, items, cache):
        with double.running():
            server = servers.Server(double.url, "double", retries=0)
            return model_extraction.extract_served(
                server, items, instructions=Instructions(), cache=cache
            )

    def path(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "cache.jsonl"

    def test_each_request_is_sent_once_at_temperature_zero_and_kept(self):
        path, item = self.path(), (question("How many?"), "There are four.")
        double = ServerDouble(lambda body: say("Extracted answer: 4\nAnswer format: Integer"))
        self.assertEqual(self.extract(double, [item, item], Cache(path)), ["4", "4"])
        (body,) = double.bodies()
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.0, 256))
        self.assertEqual([m["role"] for m in body["messages"]], ["user", "assistant"])
        # A torn line, as a killed run leaves it, costs nothing but itself.
        with open(path, "a") as file:
            file.write('{"key": "to')
        unused = ServerDouble(lambda body: self.fail("asked again"))
        self.assertEqual(self.extract(unused, [item], Cache(path)), ["4"])
        other = ServerDouble(lambda body: say("Extracted answer: 5\nAnswer format: Integer"))
        self.extract(other, [(question("Which?"), "5")], Cache(path))
        self.assertEqual(self.extract(unused, [item], Cache(path)), ["4"])

    def test_failures_are_none_are_not_kept_and_are_no_judgement(self):
        def reply(body):
            asked = body["messages"][1]["content"]
            return say("no label" if "bad" in asked else "Extracted answer: 4\nAnswer format: x")

        path = self.path()
        items = [(question("good"), "4"), (question("bad"), "4")]
        with self.assertLogs(level="WARNING") as logs:
            found = self.extract(ServerDouble(reply), items, Cache(path))
        self.assertEqual(found, ["4", None])
        self.assertIn("1 of 2 answers could not be extracted", logs.output[0])
        self.assertLen(path.read_text().splitlines(), 1)
        scores = training_scorer.extracted_scores(items, extract=lambda _: found)
        self.assertEqual(scores, [1.0, None])

    def test_another_model_or_text_is_another_request(self):
        keys = {
            Cache.key("a", [{"content": "x"}]),
            Cache.key("b", [{"content": "x"}]),
            Cache.key("a", [{"content": "y"}]),
        }
        self.assertLen(keys, 3)


class LocalTest(absltest.TestCase):
    def test_one_greedy_call(self):
        calls = []

        def generate(prompts, *, temperature):
            calls.append((len(prompts), temperature))
            nothing = np.zeros(0, np.int32)
            text = "Extracted answer: 4\nAnswer format: Integer"
            return [
                Sample(nothing, nothing, np.zeros(0, np.float32), text, "stop") for _ in prompts
            ]

        items = [(question("a"), "4"), (question("a"), "4"), (question("b"), "4")]
        instructions = Instructions(one_turn=True)
        found = model_extraction.extract_local(generate, items, instructions=instructions)
        self.assertEqual((found, calls), (["4"] * 3, [(2, 0.0)]))
        with self.assertRaisesRegex(ValueError, "set one_turn"):
            model_extraction.extract_local(generate, items, instructions=Instructions())

    def test_rules_extract_all(self):
        items = [(question("a"), "The answer is 4."), (question("b", answer_format="List"), "x, y")]
        self.assertEqual(extraction.extract_all(items), ["4", "['x', 'y']"])
        scores = training_scorer.extracted_scores(
            items, extract=extraction.extract_all, score=mmlongbench.score
        )
        self.assertEqual(scores, [1.0, 0.0])


if __name__ == "__main__":
    absltest.main()
