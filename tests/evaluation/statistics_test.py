"""Differences with their intervals, agreement beyond chance: by hand and against known limits."""

import json
import math

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.evaluation import statistics
from awm_jax.types import ANSWERED, Memory, Question, Trajectory, Verdict


def judged(*scores, rollouts=1):
    """One question a pair of scores; None is no judgement."""
    pairs = []
    for place, score in enumerate(scores):
        question = Question(str(place // rollouts), "d", "q", "a", "Str")
        trajectory = Trajectory(question, place % rollouts, (), "a", Memory(), ANSWERED)
        verdict = Verdict(0, 0, "", "s", error="x") if score is None else Verdict(*score, "", "s")
        pairs.append((trajectory, verdict))
    return pairs


RIGHT, MISSING, ERROR, WRONG = (1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)


class PairedBootstrapTest(absltest.TestCase):
    def test_a_run_with_itself_has_no_difference(self):
        run = judged(RIGHT, MISSING, ERROR, WRONG, MISSING)
        found = statistics.paired_bootstrap(run, run, seed=0, resamples=200)
        for change in (found.final_acc, found.mem_acc, found.p_mmc):
            self.assertEqual((change.difference, change.low, change.high), (0, 0, 0))
            self.assertEqual(change.p_value, 1)
        self.assertAlmostEqual(found.p_mmc.first, 2 / 3)

    def test_differences_and_intervals(self):
        first = judged(*[MISSING] * 40, *[RIGHT] * 60)
        second = judged(*[RIGHT] * 30, *[MISSING] * 10, *[RIGHT] * 60)
        found = statistics.paired_bootstrap(first, second, seed=1, resamples=4000)
        self.assertAlmostEqual(found.p_mmc.difference, -0.3)
        # Paired: 30 of 100 questions change by 1, so the deviation is sqrt(0.3 * 0.7 / 100).
        spread = 1.96 * math.sqrt(0.3 * 0.7 / 100)
        self.assertAlmostEqual(found.p_mmc.low, -0.3 - spread, delta=0.015)
        self.assertAlmostEqual(found.p_mmc.high, -0.3 + spread, delta=0.015)
        self.assertLess(found.p_mmc.p_value, 0.001)
        self.assertEqual(found.final_acc.difference, 0)

    def test_rollouts_of_one_question_are_drawn_together(self):
        first = judged(*[WRONG] * 8, *[RIGHT] * 8, rollouts=8)
        second = judged(*[RIGHT] * 16, rollouts=8)
        found = statistics.paired_bootstrap(first, second, seed=0, resamples=500)
        self.assertEqual((found.questions, found.pairs), (2, 16))
        self.assertEqual((found.final_acc.low, found.final_acc.high), (0.0, 1.0))

    def test_what_is_left_out_is_counted(self):
        first, second = judged(RIGHT, RIGHT, None), judged(RIGHT, None, None, RIGHT)
        found = statistics.paired_bootstrap(first, second, seed=0, resamples=50)
        self.assertEqual((found.pairs, found.unpaired, found.without_judgement), (1, 1, 2))

    def test_without_right_answers_there_is_no_p_mmc(self):
        run = judged(WRONG, ERROR)
        found = statistics.paired_bootstrap(run, run, seed=0, resamples=50)
        self.assertTrue(math.isnan(found.p_mmc.low))
        self.assertIsNone(json.loads(json.dumps(statistics.to_json(found)))["p_mmc"]["low"])

    def test_runs_without_a_common_question_are_refused(self):
        with self.assertRaisesRegex(ValueError, "found 1 and 0 rollouts, none"):
            statistics.paired_bootstrap(judged(RIGHT), [], seed=0)

    def test_moves(self):
        found = statistics.moves(judged(MISSING, MISSING, WRONG), judged(RIGHT, RIGHT, WRONG))
        self.assertEqual(found, [("memory-missing correct", "memory-supported correct", 2)])


class AgreementTest(parameterized.TestCase):
    @parameterized.parameters(
        ("aabb", "aabb", 1.0),
        ("abab", "aabb", 0.0),
        # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5.
        ("1111100000", "1111011000", 0.4),
        ("aaaa", "aaaa", math.nan),
        ("", "", math.nan),
    )
    def test_kappa(self, first, second, expected):
        found = statistics.cohens_kappa(first, second)
        np.testing.assert_allclose(found, expected, atol=1e-12)

    def test_kappa_of_unequal_lengths_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "found 1 and 2 labels"):
            statistics.cohens_kappa("a", "ab")

    def test_two_readers(self):
        found = statistics.reader_agreement(
            judged(RIGHT, RIGHT, MISSING, WRONG, None),
            judged(RIGHT, MISSING, MISSING, ERROR, RIGHT),
        )
        counts = (found.both, found.only_first, found.only_second, found.neither)
        self.assertEqual(counts, (1, 1, 1, 1))
        self.assertEqual(found.without_judgement, 1)
        self.assertEqual((found.agreement, found.kappa), (0.5, 0.0))
        self.assertEqual(found.p_mmc, (1 / 3, 2 / 3))
        with self.assertRaisesRegex(ValueError, "1 rollouts were read by one reader only"):
            statistics.reader_agreement(judged(RIGHT), judged(RIGHT, RIGHT))


if __name__ == "__main__":
    absltest.main()
