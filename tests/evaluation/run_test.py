"""An evaluation goes on where it was killed, and mixes no two runs."""

import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.evaluation.run import evaluate
from awm_jax.types import ANSWERED, Memory, Question, Trajectory, Verdict

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

    def run_with(self, agent, seed=7, at_once=2):
        return evaluate(
            QUESTIONS, roll_out=agent.roll_out, judge=judge, seed=(seed,), samples=2,
            path=self.path, at_once=at_once,
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


if __name__ == "__main__":
    absltest.main()
