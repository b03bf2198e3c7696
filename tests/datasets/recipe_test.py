"""The data recipe's draws: by hand, seeded, disjoint, and what is kept."""

from absl.testing import absltest, parameterized

from awm_jax.datasets import recipe
from awm_jax.types import (
    ANSWERED,
    MALFORMED,
    TOOL_ERROR,
    Memory,
    Question,
    Trajectory,
    Turn,
    Verdict,
)


def question(id, text="What is it?", document="d.pdf"):
    return Question(id, document, text, "4", "Int")


def judged(id, right, *, rollout=0, status=ANSWERED, error="", turns=()):
    trajectory = Trajectory(question(id), rollout, tuple(turns), "4", Memory(), status)
    return trajectory, Verdict(float(right), 0.0, "", "rules", error)


def turn(*violations):
    return Turn(0, None, (), (), violations, Memory())


class SolveRatesTest(absltest.TestCase):
    def test_only_judged_rollouts_count(self):
        rates = recipe.solve_rates(
            [
                judged("a", True),
                judged("a", False, status=MALFORMED),
                judged("a", True, status=TOOL_ERROR),
                judged("a", True, error="judge: 500"),
                judged("b", False, status=TOOL_ERROR),
            ]
        )
        self.assertEqual(rates, {"a": recipe.SolveRate(1, 2)})
        self.assertTrue(rates["a"].mixed)

    def test_mixed_groups_are_those_with_both(self):
        rates = {"a": recipe.SolveRate(0, 8), "b": recipe.SolveRate(8, 8)}
        rates |= {"c": recipe.SolveRate(1, 8), "d": recipe.SolveRate(7, 8)}
        found = recipe.mixed_questions([question(id) for id in "abcde"], rates)
        self.assertEqual([q.id for q in found], ["c", "d"])


class BucketsTest(parameterized.TestCase):
    def test_a_bucket_ends_with_its_edge(self):
        rates = [recipe.SolveRate(n, 8) for n in range(9)]
        self.assertEqual([recipe.bucket_of(r) for r in rates], [0, 1, 1, 2, 2, 3, 3, 4, 4])

    @parameterized.parameters(
        ([10, 10, 10], 6, [2, 2, 2]),
        ([10, 10, 10], 8, [3, 3, 2]),
        ([1, 10, 10], 9, [1, 4, 4]),
        ([0, 2, 5], 7, [0, 2, 5]),
        ([3], 0, [0]),
    )
    def test_quotas_by_hand(self, sizes, count, expected):
        self.assertEqual(recipe.balanced_quotas(sizes, count), expected)

    def test_more_than_there_is_is_refused_with_the_sizes(self):
        with self.assertRaisesRegex(ValueError, r"asked for 9.*\[3, 4\], 7 in all"):
            recipe.balanced_quotas([3, 4], 9)

    @parameterized.parameters(((0.0, 0.5),), ((0.5, 0.5, 1.0),), ((-0.1, 1.0),), ((),))
    def test_edges_out_of_order_are_refused(self, edges):
        with self.assertRaisesRegex(ValueError, "ascend"):
            recipe.check_edges(edges)


class ChooseTest(absltest.TestCase):
    def test_the_order_of_the_items_does_not_matter(self):
        items = [f"{n:03}" for n in range(50)]
        first = recipe.choose(items, 10, seed=3)
        self.assertEqual(first, recipe.choose(items[::-1], 10, seed=3))
        self.assertNotEqual(first, recipe.choose(items, 10, seed=4))
        self.assertLen(set(first), 10)
        with self.assertRaisesRegex(ValueError, "asked for 51, found 50"):
            recipe.choose(items, 51, seed=0)


class BestTrajectoriesTest(absltest.TestCase):
    def test_right_then_clean_then_short(self):
        found = recipe.best_trajectories(
            [
                judged("a", False, rollout=0),
                judged("a", True, rollout=1, turns=[turn("searched twice")]),
                judged("a", True, rollout=2, turns=[turn(), turn(), turn()]),
                judged("a", True, rollout=3, turns=[turn(), turn()]),
                judged("a", True, rollout=4, error="judge: 500"),
                judged("b", False),
            ]
        )
        self.assertEqual({id: t.rollout for id, t in found.items()}, {"a": 3})


class SplitTest(absltest.TestCase):
    def make(self, **changes):
        questions = [question(f"{n:02}") for n in range(20)]
        # Four questions in each of five buckets; the last has no judged rollout.
        rates = {f"{n:02}": recipe.SolveRate(n % 5, 4) for n in range(19)}
        trajectories = {f"{n:02}": judged(f"{n:02}", True)[0] for n in range(16)}
        return recipe.split(
            questions, trajectories, rates, **{"count": 10, "seed": 0, **changes}
        ), rates

    def test_balanced_disjoint_and_complete(self):
        made, rates = self.make()
        taught = {trajectory.question.id for trajectory in made.sft}
        pool = {q.id for q in made.pool}
        self.assertEqual((len(taught), len(pool), made.unjudged), (10, 9, ("19",)))
        self.assertFalse(taught & pool)
        for bucket in range(5):
            self.assertLen([id for id in taught if recipe.bucket_of(rates[id]) == bucket], 2)
        self.assertEqual(made.buckets, ((4, 2), (3, 2), (3, 2), (3, 2), (3, 2)))

    def test_the_seed_decides(self):
        first, again, other = (
            [trajectory.question.id for trajectory in self.make(seed=seed)[0].sft]
            for seed in (0, 0, 1)
        )
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_too_few_to_teach_is_refused(self):
        with self.assertRaisesRegex(ValueError, "asked for 17"):
            self.make(count=17)


class OverlapsTest(absltest.TestCase):
    def find(self, ours, theirs, digests=(), other_digests=()):
        found = recipe.overlaps(
            [ours], theirs, digests=dict(digests), other_digests=dict(other_digests)
        )
        return [(overlap.kind, overlap.other) for overlap in found]

    def test_names_but_for_case_and_ending(self):
        theirs = [question("x", "Who?", "Report.PDF"), question("y", "When?", "Report.PDF")]
        self.assertEqual(
            self.find(question("a", document="report"), theirs), [(recipe.SAME_NAME, "x")]
        )

    def test_files_by_content(self):
        theirs = [question("x", "Who?", "e.pdf")]
        found = self.find(question("a"), theirs, {"d.pdf": "0a"}, {"e.pdf": "0a"})
        self.assertEqual(found, [(recipe.SAME_FILE, "x")])
        self.assertEmpty(self.find(question("a"), theirs, {"d.pdf": "0a"}, {"e.pdf": "0b"}))
        # Unknown content is not the same as unknown content.
        self.assertEmpty(self.find(question("a"), theirs))

    def test_texts_same_and_similar(self):
        long = "What is the total revenue of the company in the year 2019 in dollars"
        theirs = [question("x", f"{long}?", "e.pdf"), question("y", "What is the title?", "e.pdf")]
        self.assertEqual(self.find(question("a", long.upper()), theirs), [(recipe.SAME_TEXT, "x")])
        self.assertEqual(
            self.find(question("a", f"{long} and cents?"), theirs), [(recipe.SIMILAR_TEXT, "x")]
        )
        self.assertEmpty(self.find(question("a", "What is the total of the title?"), theirs))
        self.assertEmpty(self.find(question("a", "Title?"), theirs))


if __name__ == "__main__":
    absltest.main()
