"""MMLongBench-Doc's scorer: worked cases, the oddities kept, the official results."""

import json
import os
import pathlib
import random
import re
import unittest

from absl.testing import absltest, parameterized

from awm_jax.judging import mmlongbench

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA")


def research_file(name):
    if not RESEARCH_DATA:
        raise unittest.SkipTest("AWM_RESEARCH_DATA is not set")
    path = pathlib.Path(RESEARCH_DATA) / "benchmarks" / name
    return json.loads(path.read_text(encoding="utf-8"))


class OfficialScoreTest(parameterized.TestCase):
    @parameterized.parameters(
        # int(float("12.7")) is 12; a comma or a per cent sign is no integer.
        ("Int", "12", "12.7", 1.0),
        ("Int", "1234", "1,234", 0.0),
        ("Int", "yes", "yes", 0.0),
        # Gold may be scaled by 100 either way, and is rounded to two places at least.
        ("Float", "18.29%", "0.1829", 1.0),
        ("Float", "18.29%", "1829", 1.0),
        ("Float", "18.29%", "18.4", 1.0),
        ("Float", "18.29%", "18.5", 0.0),
        ("Float", "0.3", "0", 1.0),
        ("Float", "100", "1", 1.0),
        # One edit in four letters; exactly one half is 0.
        ("Str", "Blue", "Blu", 0.75),
        ("Str", "abcd", "abxy", 0.0),
        ("Str", "01983 873655", "01983873655", 0.0),
        ("Str", "01983 873655", "01983 873655 (tel)", 1.0),
        ("Str", "5 million", "5", 0.0),
        # Upper-casing makes the sharp s two letters: 1 - 1 / 7.
        ("Str", "straße", "strase", 6 / 7),
        # One edit in fifteen letters.
        ("None", "Not answerable", "Not answerable.", 14 / 15),
        ("None", "Not answerable", "The question is not answerable", 0.0),
        # Sorted, then the worst pair; numbers as one text.
        ("List", "['apple', 'pear']", "['pears', 'apple']", 0.8),
        ("List", "['apple', 'pear']", "['apple']", 0.0),
        ("List", "['42', '17']", "[42, 17]", 1.0),
        ("List", "['5.3%', '5.2%']", "['5.2', '5.3']", 1.0),
        ("List", "['5.30', '5.2']", "['5.2', '5.3']", 0.0),
        ("List", ["apple", "pear"], "['pear', 'apple']", 1.0),
        ("List", "0.66", "0.66", 1.0),
    )
    def test_by_hand(self, answer_format, gold, prediction, expected):
        found, reason = mmlongbench.score_detail(gold, prediction, answer_format)
        self.assertAlmostEqual(found, expected, places=12)
        self.assertEqual(reason, "")

    @parameterized.parameters(
        ("Float", "1,234.5", "1234.5", "ValueError"),
        ("List", "['a']", "['a'", "not Python"),
        ("List", "['apple', 'pear']", "[apple, pear]", "'apple' is not defined"),
        ("List", "['a']", "[__import__('os').getpid()]", "Call is not evaluated"),
        ("List", "[]", "[]", "IndexError"),
    )
    def test_where_the_official_script_dies_it_is_0_with_the_reason(
        self, answer_format, gold, prediction, reason
    ):
        found, why = mmlongbench.score_detail(gold, prediction, answer_format)
        self.assertEqual(found, 0.0)
        self.assertIn(reason, why)

    def test_equals_the_official_results(self):
        cases = [c for c in research_file("scorer_cases.json") if c["bench"] == "mmlb"]
        self.assertLen(cases, 49)
        for case in cases:
            found, why = mmlongbench.score_detail(case["gt"], case["pred"], case["type"])
            with self.subTest(case):
                if isinstance(case["score"], str):
                    self.assertEqual(found, 0.0)
                    self.assertNotEmpty(why)
                else:
                    self.assertEqual(found, case["score"])

    @parameterized.parameters(("official", 1077), ("strict", 1082))
    def test_gold_against_itself(self, mode, expected):
        samples = research_file("mmlongbench_samples.json")
        scores = [
            mmlongbench.score(s["answer"], s["answer"], s["answer_format"], mode=mode)
            for s in samples
        ]
        self.assertEqual(scores.count(1.0), expected)
        if mode == "official":
            others = [index for index, score in enumerate(scores) if score != 1.0]
            self.assertEqual(others, [73, 210, 732, 734, 972])

    @parameterized.parameters(("Integer", "official", "Int"), ("Int", "lenient", "strict"))
    def test_an_unknown_format_or_mode_is_an_error(self, answer_format, mode, expected):
        with self.assertRaisesRegex(ValueError, expected):
            mmlongbench.score("1", "1", answer_format, mode=mode)


class WithoutParenthesesTest(absltest.TestCase):
    def test_equals_the_regular_expression(self):
        chance = random.Random(0)
        for _ in range(3000):
            text = "".join(chance.choices("ab ()\t\u2003", k=chance.randrange(12)))
            expected = re.sub(r"\s*\([^)]*\)", "", text)
            self.assertEqual(mmlongbench.without_parentheses(text), expected, repr(text))


class StrictScoreTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Int", "12", "12.7", 0.0),
        ("Int", "1234", "1,234", 1.0),
        ("Int", "21%", "21%", 1.0),
        ("Int", "5", "True", 0.0),
        ("Float", "18.29%", "0.1829", 1.0),
        ("Float", "18.29%", "1829", 0.0),
        ("Float", "0.3", "0", 0.0),
        ("Float", "100", "1", 0.0),
        ("Float", "2.5 million", "2,500,000", 1.0),
        ("Float", "2.5 million", "2.5 billion", 0.0),
        ("Float", "3.14 miles", "3.14 kg", 0.0),
        ("Float", "$5", "€5", 0.0),
        ("Float", "-5", "\u22125.", 1.0),
        ("Str", "01983 873655", "01983873655", 1.0),
        ("Str", "2015", "2016", 0.0),
        ("None", "Not answerable", "It cannot be determined from the document.", 1.0),
        ("None", "Not answerable", "Not amenable", 0.0),
        ("List", "['apple', 'pear']", "pear and apple", 1.0),
        ("List", "['2,015', '5.30']", "[5.3, 2015]", 1.0),
        ("List", "['2015', '7']", "['2016', '7']", 0.0),
        ("List", "['Smith, John']", "Smith, John", 1.0),
        ("List", "[]", "[]", 1.0),
        ("List", "[]", "['a']", 0.0),
    )
    def test_by_hand(self, answer_format, gold, prediction, expected):
        found = mmlongbench.score(gold, prediction, answer_format, mode="strict")
        self.assertEqual(found, expected)


if __name__ == "__main__":
    absltest.main()
