"""The demo reader finds what a note says outright and declines otherwise."""

from absl.testing import absltest, parameterized

from awm_jax.judging import rule_reader
from awm_jax.types import Finding, Memory


class AnswerTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("number", "What was the rate in 2020?", "The 2020 rate is 4.7%.", "4.7%"),
        ("nearest", "How many employees?", "1,204 employees in 12 countries.", "1,204"),
        ("name", "Who signed the letter?", "The letter is signed by Maria Lopez.", "Maria Lopez"),
        ("no", "Does the plan cover teeth?", "Teeth are not covered by the plan.", "No"),
        ("yes", "Is the plan new?", "The plan is new.", "Yes"),
        ("generic", "What was the rate in 2020?", "The chart shows trends.", "Not answerable"),
        ("no_number", "What was the rate in 2020?", "The 2020 rate fell.", "Not answerable"),
        ("echo", "Which plan?", "Which plan?", "Not answerable"),
    )
    def test_one_note(self, question, note, expected):
        memory = Memory((Finding(3, "Other things."), Finding(3, note)))
        self.assertEqual(rule_reader.answer(question, memory), expected)

    def test_an_empty_memory_holds_nothing(self):
        self.assertEqual(
            rule_reader.read_memories([("What is empty?", Memory()), ("", Memory())]),
            [rule_reader.NOT_ANSWERABLE] * 2,
        )

    def test_long_and_odd_notes_are_no_trouble(self):
        memory = Memory((Finding(1, "plan " * 20_000 + "\x00\ud800"), Finding(2, "[page 1]")))
        self.assertEqual(rule_reader.answer("plan?", memory), rule_reader.NOT_ANSWERABLE)


if __name__ == "__main__":
    absltest.main()
