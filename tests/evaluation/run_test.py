"""An evaluation goes on where it was killed, and mixes no two runs."""

import dataclasses
import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.evaluation.run import evaluate
from awm_jax.types import ANSWERED, TOOL_ERROR, Memory, Question, Trajectory, Verdict

QUESTIONS = [Question(f"q{k}", "d.pdf", "What?", "4", "Int") for k in range(3)]


class Agent:
    """Answers with the task's seed, and remembers what it was asked."""

    def __init__(self, fail_after=100):
        self.asked, self.fail_after = [], fail_after

    def roll_out(self, tasks):
        if len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked += [(question.id, rollout) for question, rollout, _ in tasks]
        return [Trajectory(q, r, (), str(seed), Memory(), ANSWERED) for q, r, seed in tasks]


def judge(trajectories):
    return [Verdict(1.0, 0.0, t.final_answer, "rules") for t in trajectories]


class EvaluateTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "evaluation.jsonl"

    def run_with(self, agent, seed=7, at_once=2, judge=judge, **options):
        return evaluate(
            QUESTIONS, roll_out=agent.roll_out, judge=judge, seed=(seed,), samples=2,
            path=self.path, at_once=at_once, **options,
        )  # fmt: skip

    def test_every_question_is_asked_as_often_as_wanted_each_with_its_own_seed(self):
        judged = self.run_with(Agent())
        self.assertEqual(
            [(t.question.id, t.rollout) for t, _ in judged],
            [(f"q{k}", sample) for k in range(3) for sample in range(2)],
        )
        self.assertLen({t.final_answer for t, _ in judged}, 6)

    def test_a_killed_evaluation_asks_only_what_is_missing(self):
        with self.assertRaises(KeyboardInterrupt):
            self.run_with(Agent(fail_after=4))
        again = Agent()
        judged = self.run_with(again)
        self.assertEqual(again.asked, [("q2", 0), ("q2", 1)])
        self.path.unlink()
        whole = self.run_with(Agent(), at_once=100)
        self.assertEqual(
            [(t.final_answer, v) for t, v in judged], [(t.final_answer, v) for t, v in whole]
        )

    def test_records_of_another_seed_are_refused(self):
        self.run_with(Agent(), seed=7)
        with self.assertRaisesRegex(ValueError, "of another run"):
            self.run_with(Agent(), seed=8)

    def test_rollouts_made_under_other_settings_are_refused(self):
        self.run_with(Agent(), settings={"rollout": {"max_steps": 15}, "setting": "agent"})
        agent = Agent()
        self.run_with(agent, settings={"setting": "agent", "rollout": {"max_steps": 15}})
        self.assertEmpty(agent.asked)
        with self.assertRaisesRegex(ValueError, "(?s)other settings.*rollout: found .*15.*3"):
            self.run_with(agent, settings={"rollout": {"max_steps": 3}, "setting": "agent"})

    def test_what_failed_is_done_again_where_that_is_wanted(self):
        def bad_judge(trajectories):
            """The server of the reader is away for q1, that of the policy was for q2."""
            return [
                dataclasses.replace(v, error="" if t.question.id == "q0" else "away")
                for t, v in zip(trajectories, judge(trajectories), strict=True)
            ]

        class BadAgent(Agent):
            def roll_out(self, tasks):
                return [
                    dataclasses.replace(t, status=TOOL_ERROR if t.question.id == "q2" else ANSWERED)
                    for t in super().roll_out(tasks)
                ]

        self.run_with(BadAgent(), judge=bad_judge)
        untouched = Agent()
        self.assertTrue(self.run_with(untouched)[-1][1].error)
        self.assertEmpty(untouched.asked)
        again, judged_again = Agent(), []

        def noting_judge(trajectories):
            judged_again.extend(t.question.id for t in trajectories)
            return judge(trajectories)

        repaired = self.run_with(again, judge=noting_judge, redo_failed=True)
        self.assertEqual(again.asked, [("q2", 0), ("q2", 1)])
        self.assertEqual(judged_again, ["q1", "q1", "q2", "q2"])
        self.assertLen(records.read_records(self.path), 6)
        self.path.unlink()
        whole = self.run_with(Agent())
        self.assertEqual(
            [(t.final_answer, v) for t, v in repaired], [(t.final_answer, v) for t, v in whole]
        )

    def test_costs_are_written_down(self):
        self.run_with(Agent(), costs=lambda seed: records.Costs(*seed[-2:], 0.5))
        found = [record.costs for record in records.read_records(self.path)]
        self.assertEqual(found[-1], records.Costs(2, 1, 0.5))


if __name__ == "__main__":
    absltest.main()
