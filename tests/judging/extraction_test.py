"""Replies as models write them, and the short answer in each."""

from absl.testing import absltest, parameterized

from awm_jax.judging import extraction


class ExtractTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Str", "Less well-off", "Less well-off"),
        ("Str", "<think>Maybe Bob.</think>\n**Alice**.", "Alice"),
        ("Str", "I looked. The answer is Alice Cooper.", "Alice Cooper"),
        ("Str", "Analysis: long.\n**Final answer:** Alice", "Alice"),
        ("Str", "Answer: Bob\nWait.\nAnswer: Alice", "Alice"),
        ("Str", "Extracted answer: Alice\nAnswer format: String", "Alice"),
        ("String", "<concise_answer>Alice</concise_answer>", "Alice"),
        ("Str", "at 9 a.m.", "at 9 a.m."),
        ("Int", "There are **1,234** pages in it.", "1234"),
        ("Int", "Five of them.", "5"),
        ("Int", "Between 3 and 5.", "Between 3 and 5"),
        ("Float", "The rate is 18.29%.", "18.29%"),
        ("Float", r"So \boxed{3.5}", "3.5"),
        ("List", "The two are:\n1. Apple pie\n2. Pear.", "['Apple pie', 'Pear']"),
        ("List", "['a', 'b']", "['a', 'b']"),
        ("List", "apple, pear and fig", "['apple', 'pear', 'fig']"),
        ("Str", "The document does not mention who it was.", "Not answerable"),
        ("Int", "It cannot be determined.", "Not answerable"),
        ("Str", "The image is too blurry to tell.", "Fail to answer"),
        ("Str", "", ""),
    )
    def test_short_answer(self, answer_format, reply, expected):
        self.assertEqual(extraction.extract(reply, answer_format), expected)


if __name__ == "__main__":
    absltest.main()
