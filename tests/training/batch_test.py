"""Trajectories to packed micro-batches: what is trained, and what each place holds."""

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.training import batch as batch_lib
from awm_jax.types import ANSWERED, Memory, Page, Question, Sample, Trajectory, Turn

IMAGE, PAD = 9, 0
QUESTION = Question("q", "d.pdf", "What?", "4", "Int")
PAGE = Page("d.pdf", 1, np.zeros((32, 64, 3), np.uint8), "digest")
SHAPE = batch_lib.PackShape(rows=2, row_length=10, image_tokens=4, target_rows=6, target_length=3)


def sample(prompt_ids, token_ids, pages=()):
    log_probs = -0.1 * np.arange(1, len(token_ids) + 1)
    return Sample(
        np.array(prompt_ids, np.int32), np.array(token_ids, np.int32),
        log_probs.astype(np.float32), "", "stop", pages,
    )  # fmt: skip


def trajectory(*turns):
    """Turns given as (context, sample)."""
    return Trajectory(
        QUESTION,
        0,
        tuple(Turn(c, s, (), (), (), Memory()) for c, s in turns),
        "4",
        Memory(),
        ANSWERED,
    )


def pack(*trajectories, shape=SHAPE):
    return list(
        batch_lib.pack(
            trajectories,
            shape,
            position_ids=lambda ids, pages: np.stack([np.arange(len(ids))] * 3),
            page_features=lambda page: np.full((2, 1, 4), 7.0, np.float32),
            feature_shape=(1, 4),
            image_token_id=IMAGE,
            pad_id=PAD,
        )
    )


class TrainingSequencesTest(absltest.TestCase):
    def test_one_sequence_a_context_and_only_sampled_tokens_are_trained(self):
        first = sample([1, 2], [3, 4])
        second = sample([1, 2, 3, 4, 5], [6])
        third = sample([1, 7], [8, 8, 8])
        sequences = batch_lib.training_sequences(
            trajectory((0, first), (0, second), (1, third)), index=5
        )
        self.assertLen(sequences, 2)
        np.testing.assert_array_equal(sequences[0].token_ids, [1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(sequences[0].trained, [0, 0, 1, 1, 0, 1])
        np.testing.assert_allclose(sequences[0].old_log_probs, [0, 0, -0.1, -0.2, 0, -0.1])
        np.testing.assert_array_equal(sequences[1].trained, [0, 0, 1, 1, 1])
        self.assertEqual({s.trajectory for s in sequences}, {5})

    def test_a_turn_that_rewrites_the_past_is_refused(self):
        turns = (0, sample([1, 2], [3])), (0, sample([1, 2, 4, 5], [6]))
        with self.assertRaisesRegex(ValueError, "do not extend"):
            batch_lib.training_sequences(trajectory(*turns), index=0)

    def test_a_turn_without_tokens_trains_nothing(self):
        self.assertEmpty(batch_lib.training_sequences(trajectory((0, sample([1], []))), index=0))


class PackTest(parameterized.TestCase):
    def test_predictors_stand_one_before_their_targets(self):
        tokens = sample([1, 2, 3], [4, 5])
        (batch,) = pack((batch_lib.training_sequences(trajectory((0, tokens)), 3), 1.5))
        ids = batch.input_ids.reshape(-1)
        targets = batch.targets[batch.mask]
        np.testing.assert_array_equal(targets, [4, 5])
        np.testing.assert_array_equal(ids[batch.predictor[batch.mask] + 1], targets)
        np.testing.assert_allclose(batch.old_log_probs[batch.mask], [-0.1, -0.2])
        np.testing.assert_array_equal(batch.advantages[batch.mask.any(axis=1)], [1.5])
        np.testing.assert_array_equal(batch.trajectory[batch.mask.any(axis=1)], [3])

    def test_sequences_share_a_row_under_segments_of_their_own(self):
        two = [
            batch_lib.training_sequences(trajectory((0, sample([1, 2], [k] * 3))), k)
            for k in (4, 5)
        ]
        (batch,) = pack(*((s, float(i)) for i, s in enumerate(two)))
        np.testing.assert_array_equal(batch.input_ids[0], [1, 2, 4, 4, 4, 1, 2, 5, 5, 5])
        np.testing.assert_array_equal(batch.segment_ids[0], [1] * 5 + [2] * 5)
        np.testing.assert_array_equal(batch.position_ids[1, 0], [0, 1, 2, 3, 4] * 2)
        np.testing.assert_array_equal(batch.segment_ids[1], np.zeros(10))

    def test_more_targets_than_a_row_holds_go_on_in_the_next(self):
        sequences = batch_lib.training_sequences(trajectory((0, sample([1], [2, 3, 4, 5, 6]))), 8)
        (batch,) = pack((sequences, -1.0))
        np.testing.assert_array_equal(batch.mask.sum(axis=1), [3, 2, 0, 0, 0, 0])
        np.testing.assert_array_equal(batch.trajectory[:3], [8, 8, -1])

    def test_a_trajectory_is_never_split_over_micro_batches(self):
        long = trajectory((0, sample([1] * 5, [2] * 3)), (1, sample([1] * 5, [3] * 3)))
        batches = pack(*((batch_lib.training_sequences(long, k), 1.0) for k in range(3)))
        self.assertLen(batches, 3)
        for k, batch in enumerate(batches):
            self.assertEqual(set(batch.trajectory) - {-1}, {k})

    def test_image_features_follow_the_order_of_the_rows(self):
        image = sample([1, IMAGE, IMAGE], [4], pages=(PAGE,))
        (batch,) = pack((batch_lib.training_sequences(trajectory((0, image)), 0), 1.0))
        np.testing.assert_array_equal(batch.image_features[:, 0, 0], [7, 7, 0, 0])

    @parameterized.named_parameters(
        ("too_few_patches", [1, IMAGE], (PAGE,)), ("image_dropped", [1, IMAGE, IMAGE], ())
    )
    def test_images_and_tokens_must_agree(self, prompt_ids, pages):
        sequences = batch_lib.training_sequences(trajectory((0, sample(prompt_ids, [4], pages))), 0)
        with self.assertRaisesRegex(ValueError, "image tokens"):
            pack((sequences, 1.0))

    def test_what_fits_nowhere_is_refused_with_its_size(self):
        sequences = batch_lib.training_sequences(trajectory((0, sample([1] * 12, [2]))), 0)
        with self.assertRaisesRegex(ValueError, r"\[13\] tokens.*does not fit"):
            pack((sequences, 1.0))


class QuestionsAtStepTest(absltest.TestCase):
    def test_an_epoch_shows_every_question_once(self):
        questions = [Question(str(k), "d", "", "", "Int") for k in range(6)]
        epochs = [
            q.id
            for step in range(3)
            for q in batch_lib.questions_at_step(questions, seed=1, step=step, count=4)
        ]
        self.assertCountEqual(epochs[:6], "012345")
        self.assertCountEqual(epochs[6:], "012345")
        self.assertNotEqual(epochs[:6], epochs[6:])


if __name__ == "__main__":
    absltest.main()
