"""Cells, P_mmc and its interval: by hand and against the paper's counts."""

import math

from absl.testing import absltest, parameterized

from awm_jax.evaluation import cells
from awm_jax.types import Verdict


class WilsonIntervalTest(parameterized.TestCase):
    @parameterized.parameters(
        (43, 172, 19.1, 32.0),
        (77, 181, 35.6, 49.8),
        (14, 500, 1.7, 4.6),
        (222, 500, 40.1, 48.8),
        (0, 10, 0.0, 27.8),
        (10, 10, 72.2, 100.0),
    )
    def test_the_papers_counts(self, successes, total, low, high):
        found = cells.wilson_interval(successes, total)
        self.assertEqual(tuple(round(100 * end, 1) for end in found), (low, high))

    def test_of_nothing_it_is_everything(self):
        self.assertEqual(cells.wilson_interval(0, 0), (0.0, 1.0))

    def test_it_holds_the_share(self):
        for total in range(1, 40):
            for successes in range(total + 1):
                low, high = cells.wilson_interval(successes, total)
                self.assertBetween(successes / total, low, high)
                self.assertBetween(low, 0.0, 1.0)
                self.assertBetween(high, 0.0, 1.0)

    @parameterized.parameters((2, 1), (-1, 3))
    def test_impossible_counts_are_an_error(self, successes, total):
        with self.assertRaisesRegex(ValueError, f"found {successes} successes of {total}"):
            cells.wilson_interval(successes, total)


class SummarizeTest(absltest.TestCase):
    def test_by_hand(self):
        scores = [(1.0, 1.0), (0.75, 0.0), (0.0, 0.5), (0.0, 0.0), (1.0, 0.25)]
        judged = [Verdict(answer, memory, "", "rules") for answer, memory in scores]
        judged.append(Verdict(1.0, 1.0, "", "rules", error="judge: gone"))
        found = cells.summarize(judged)
        self.assertEqual((found.supported_correct, found.missing_correct), (2, 1))
        self.assertEqual((found.answering_error, found.unresolved_error), (1, 1))
        self.assertEqual((found.total, found.invalid), (5, 1))
        self.assertAlmostEqual(found.final_acc, 2.75 / 5)
        self.assertAlmostEqual(found.mem_acc, 1.75 / 5)
        self.assertEqual((found.final_rate, found.mem_rate), (3 / 5, 3 / 5))
        self.assertEqual(found.p_mmc, 1 / 3)
        self.assertEqual(found.p_mmc_interval, cells.wilson_interval(1, 3))

    def test_the_papers_diagnostic(self):
        # EP-given, 500 questions (appendix D): 104, 77, 47 and 272 in the four cells.
        counts = {(1, 1): 104, (1, 0): 77, (0, 1): 47, (0, 0): 272}
        judged = [Verdict(*cell, "", "") for cell, count in counts.items() for _ in range(count)]
        found = cells.summarize(judged)
        self.assertEqual(round(100 * found.final_rate, 1), 36.2)
        self.assertEqual(round(100 * found.mem_rate, 1), 30.2)
        self.assertEqual(round(100 * found.p_mmc, 1), 42.5)

    def test_without_a_right_answer_there_is_no_p_mmc(self):
        found = cells.summarize([Verdict(0.0, 1.0, "", "")])
        self.assertTrue(math.isnan(found.p_mmc))
        self.assertEqual(found.p_mmc_interval, (0.0, 1.0))

    def test_nothing_judged(self):
        found = cells.summarize([])
        self.assertEqual((found.total, found.invalid), (0, 0))
        self.assertTrue(math.isnan(found.final_acc))


if __name__ == "__main__":
    absltest.main()
