"""The reader sees question and notes alone, each pair once."""

import numpy as np
from absl.testing import absltest

from awm_jax.judging import reader
from awm_jax.types import Finding, Memory, Sample

NOTES = Memory((Finding(3, "The rate is 4.7 %."), Finding(1, "It fell.")))


def sample(text, finish_reason="stop"):
    nothing = np.zeros(0, np.int32)
    return Sample(nothing, nothing, np.zeros(0, np.float32), text, finish_reason)


class ReadMemoriesTest(absltest.TestCase):
    def test_the_prompt(self):
        prompt = reader.reader_prompt("What rate?", NOTES)
        system, user = (message.content for message in prompt.messages)
        self.assertEqual(system, (reader.READER_SYSTEM,))
        self.assertEqual(
            user, ("Question: What rate?\nNotes:\n[page 3] The rate is 4.7 %.\n[page 1] It fell.",)
        )
        self.assertEqual(prompt.tools, ())

    def test_one_greedy_call_in_which_equal_pairs_are_read_once(self):
        calls = []

        def generate(prompts, *, temperature):
            calls.append((len(prompts), temperature, [prompt.seed for prompt in prompts]))
            return [sample(f" {prompt.messages[1].content[0][10]} ") for prompt in prompts]

        items = [("a", NOTES), ("b", NOTES), ("a", Memory(NOTES.findings)), ("a", Memory())]
        self.assertEqual(reader.read_memories(generate, items, seed=(7,)), ["a", "b", "a", "a"])
        self.assertEqual(calls, [(3, 0.0, [(7, 0), (7, 1), (7, 2)])])

    def test_no_memories_no_call(self):
        self.assertEqual(reader.read_memories(lambda *_, **__: self.fail(), [], seed=()), [])

    def test_what_does_not_fit_is_empty_and_a_failure_is_none(self):
        def generate(prompts, *, temperature):
            return [sample("", "context_full"), sample("cut", "length"), sample("", "error")]

        items = [("a", NOTES), ("b", NOTES), ("c", NOTES)]
        with self.assertLogs(level="WARNING") as logs:
            self.assertEqual(reader.read_memories(generate, items, seed=()), ["", "cut", None])
        self.assertIn("context_full", logs.output[0])
        reasons = [r.finish_reason for r in reader.readings(generate, items, seed=())]
        self.assertEqual(reasons, ["context_full", "length", "error"])

    def test_a_missing_sample_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "shorter"):
            reader.readings(lambda *_, **__: [], [("a", NOTES)], seed=())


if __name__ == "__main__":
    absltest.main()
