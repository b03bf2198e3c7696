"""LongDocURL's scorer: worked cases, the oddities kept, the official results."""

import json
import math
import os
import pathlib
import unittest

from absl.testing import absltest, parameterized

from awm_jax.judging import longdocurl

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA")


class OfficialScoreTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Integer", 5, "5.0", 0.0),
        ("Integer", 5, "5 million", 1.0),
        ("Integer", 1234, "1,234", 0.0),
        ("Integer", 1234, '"1,234"', 1.0),
        ("Integer", 1, "True", 0.0),
        ("Float", 0.75, "3/4", 1.0),
        ("Float", 2.5, "£2.5", 1.0),
        ("Float", 2.5, "€2.5", 0.0),
        # Read as Python first: a difference, a function, a text with a leading zero.
        ("String", "2020-10-12", "2020-10-12", 0.0),
        ("String", "2020-05-01", "2020-05-01", 1.0),
        ("String", "max", "max", 0.0),
        ("String", "team", "tea", 1.0),
        ("String", "Fail to extract", "Fail to extract", 0.0),
        ("List", ["apple", "pear"], "['apple']", 0.5),
        ("List", ["apple"], "['apple', 'pear']", math.sqrt(1 / 2)),
        ("List", ["1", "2"], "['2', '1']", 0.0),
        ("List", ["apple", "apple"], "['apple']", 1.0),
        ("List", ["apple"], "'apple', 'pear'", 0.0),
        ("List", [{"a": "x", "b": "yz"}], "['x-yz']", 1.0),
    )
    def test_by_hand(self, answer_format, gold, prediction, expected):
        found, reason = longdocurl.score_detail(gold, prediction, answer_format)
        self.assertAlmostEqual(found, expected, places=12)
        self.assertEqual(reason, "")

    @parameterized.parameters(
        (["apple"], "[]", "IndexError"),
        ([], "['a']", "IndexError"),
        (["a"], "[{'a': 1}, 2]", "AttributeError"),
    )
    def test_where_the_official_script_dies_it_is_0_with_the_reason(self, gold, found, reason):
        score, why = longdocurl.score_detail(gold, found, "List")
        self.assertEqual(score, 0.0)
        self.assertIn(reason, why)

    def test_equals_the_official_results(self):
        if not RESEARCH_DATA:
            raise unittest.SkipTest("AWM_RESEARCH_DATA is not set")
        path = pathlib.Path(RESEARCH_DATA) / "benchmarks" / "scorer_cases.json"
        cases = json.loads(path.read_text(encoding="utf-8"))
        cases = [case for case in cases if case["bench"] == "ldu"]
        self.assertLen(cases, 39)
        for case in cases:
            found, why = longdocurl.score_detail(case["gt"], case["concise"], case["type"])
            with self.subTest(case):
                if isinstance(case["score"], str):
                    self.assertEqual(found, 0.0)
                    self.assertNotEmpty(why)
                else:
                    self.assertEqual(found, case["score"])

    def test_an_unknown_format_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'Int', expected one of .*Integer"):
            longdocurl.score(1, "1", "Int")

    def test_a_question_without_a_record_counts_as_wrong(self):
        self.assertEqual(longdocurl.rectified_accuracy([1.0] * 465), 0.2)


class StrictScoreTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Integer", 1234, "1,234", 1.0),
        ("Integer", 5, "5.0", 1.0),
        ("Integer", 5, "five", 0.0),
        ("Float", 2.5, "€2.5", 1.0),
        ("Float", "$300 million", "300000000", 1.0),
        ("String", "2020-10-12", "2020-10-12", 1.0),
        ("String", "max", "max", 1.0),
        ("String", "team", "tea", 0.75),
        ("List", ["1", "2"], "['2', '1']", 1.0),
        ("List", ["apple", "apple"], "['apple']", 0.5),
        ("List", ["apple"], "['apple', 'pear']", math.sqrt(1 / 2)),
        ("List", ["apple", "pear"], "[]", 0.0),
    )
    def test_by_hand(self, answer_format, gold, prediction, expected):
        found = longdocurl.score(gold, prediction, answer_format, mode="strict")
        self.assertAlmostEqual(found, expected, places=12)


if __name__ == "__main__":
    absltest.main()
