"""Finished rollouts of a step are taken up again, whole parts alone, bit for bit."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from awm_jax.training import pending
from awm_jax.types import ANSWERED, Finding, Memory, Page, Question, Sample, Trajectory, Turn

QUESTION = Question("q", "d.pdf", "What?", ["4", 5], "List", (1, 2), ("Table",))
PIXELS = np.zeros((2, 2, 3), np.uint8)
TASKS = [(QUESTION, rollout, (0, 3, 0, rollout)) for rollout in range(5)]


def trajectory(task, version=3):
    log_probs = np.random.default_rng(task[2]).normal(size=2).astype(np.float32)
    page = Page("d.pdf", 2, PIXELS, "digest")
    sample = Sample(
        np.array([1, 2], np.int32), np.array([5, 6], np.int32), log_probs, "said", "stop", (page,),
        policy_version=version,
    )  # fmt: skip
    turn = Turn(0, sample, (), ("shown", page), ("bad",), Memory((Finding(2, "note"),)))
    return Trajectory(task[0], task[1], (turn,), "4", turn.memory, ANSWERED)


class PendingTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = pending.path_of(self.folder, 3)
        self.played = []

    def play(self, *, fail_at=None, tasks=TASKS, version=3, digest="digest"):
        def roll_out(part):
            self.played.append([task[1] for task in part])
            if len(self.played) == fail_at:
                raise KeyboardInterrupt
            return [trajectory(task, version) for task in part]

        return pending.play(
            tasks,
            roll_out,
            path=self.path,
            part=2,
            version=version,
            render=lambda document, number: Page(document, number, PIXELS, digest),
        )

    def test_parts_on_disk_are_not_played_again(self):
        with self.assertRaises(KeyboardInterrupt):
            self.play(fail_at=2)
        found = self.play()
        self.assertEqual(self.played, [[0, 1], [2, 3], [2, 3], [4]])
        for task, taken_up in zip(TASKS, found, strict=True):
            expected = trajectory(task)
            self.assertEqual(taken_up.question, expected.question)
            self.assertEqual(taken_up.rollout, task[1])
            sample, wanted = taken_up.turns[0].sample, expected.turns[0].sample
            np.testing.assert_array_equal(sample.prompt_ids, wanted.prompt_ids)
            np.testing.assert_array_equal(sample.token_ids, wanted.token_ids)
            # The very bits: they are the old log-probabilities of the update.
            np.testing.assert_array_equal(sample.log_probs, wanted.log_probs)
            self.assertEqual(sample.log_probs.dtype, np.float32)
            self.assertIs(sample.pages[0].image, PIXELS)
            self.assertEqual(taken_up.turns[0].violations, ("bad",))

    def test_a_part_that_is_not_whole_is_played_again_and_counted_once(self):
        self.play()
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
        self.play()
        self.assertEqual(self.played, [[0, 1], [2, 3], [4], [2, 3], [4]])
        seeds = [record.seed[3] for record in pending.read_records(self.path)]
        self.assertEqual(seeds, [0, 1, 2, 3, 4])

    def test_rollouts_of_another_policy_are_played_again(self):
        self.play(version=2)
        self.play(version=3)
        self.assertLen(self.played, 6)
        self.assertLen(pending.read_records(self.path), 5)

    def test_a_page_that_changed_is_an_error(self):
        self.play()
        with self.assertRaisesRegex(ValueError, "page 2 of d.pdf looks otherwise"):
            self.play(digest="another")

    def test_files_of_steps_that_are_done_are_removed(self):
        for step in (9, 10, 11):
            pending.path_of(self.folder, step).touch()
        pending.forget(self.folder, before=10)
        self.assertEqual(
            sorted(path.name for path in self.folder.iterdir()),
            ["10.jsonl", "11.jsonl"],
        )


if __name__ == "__main__":
    absltest.main()
