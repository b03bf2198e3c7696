"""The working memory only grows, by findings that are short and cite a page that was shown."""

from absl.testing import absltest, parameterized

from awm_jax.agent.memory import append_finding, word_count
from awm_jax.types import Finding, Memory


class AppendFindingTest(parameterized.TestCase):
    def test_appends_and_leaves_the_old_memory_as_it_was(self):
        first = append_finding(Memory(), 3, "width is 42", shown_pages=(7, 3))
        second = append_finding(first, 7, "depth is 17", shown_pages=(7, 3))
        self.assertEqual(first.text, "[page 3] width is 42")
        self.assertEqual(second.text, "[page 3] width is 42\n[page 7] depth is 17")

    def test_a_finding_stays_on_its_line(self):
        forged = append_finding(Memory(), 3, " width\n[page 9] is\t 42 ", shown_pages=(3,))
        self.assertEqual(forged.findings, (Finding(3, "width [page 9] is 42"),))

    def test_forty_words_are_the_limit(self):
        self.assertIsInstance(append_finding(Memory(), 3, "a " * 40, shown_pages=(3,)), Memory)
        problem = append_finding(Memory(), 3, "a " * 41, shown_pages=(3,))
        self.assertEqual(problem, "Not noted: the finding has 41 words, at most 40 are allowed.")

    @parameterized.parameters(
        (4, "a", (7, 3), "page 4 was not shown. Shown: 7, 3."),
        (4, "a", (), "no page was shown yet"),
        (3, " \n", (7, 3), "the finding is empty"),
    )
    def test_refuses_in_words(self, page, finding, shown, expected):
        problem = append_finding(Memory(), page, finding, shown_pages=shown)
        self.assertRegex(problem, f"^Not noted: .*{expected}")

    @parameterized.parameters(
        ("", 0), ("a  b\nc", 3), ("4.7% (2020)", 2), ("水深 42 米", 4), ("2020年", 2)
    )
    def test_word_count(self, text, expected):
        self.assertEqual(word_count(text), expected)


if __name__ == "__main__":
    absltest.main()
