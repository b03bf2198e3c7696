import itertools

import chex
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.rl import rewards

ANSWER = np.array([False, False, True, True])
MEMORY = np.array([False, True, False, True])


class AwmRewardTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(("bool", bool), ("int", np.int32), ("float", np.float32))
    def test_paper_values_in_any_dtype_and_shape(self, dtype):
        fn = self.variant(rewards.awm_reward)
        expected = np.array([-1.0, -0.1, 0.0, 2.0], np.float32)
        np.testing.assert_array_equal(fn(ANSWER.astype(dtype), MEMORY.astype(dtype)), expected)
        square = fn(ANSWER.astype(dtype).reshape(2, 2), MEMORY.astype(dtype).reshape(2, 2))
        np.testing.assert_array_equal(square, expected.reshape(2, 2))
        self.assertEqual(square.dtype, jnp.float32)

    @chex.variants(with_jit=True, without_jit=True)
    def test_any_positive_score_counts_as_correct(self):
        scores = np.array([0.0, 0.25, 1.0])
        np.testing.assert_array_equal(
            self.variant(rewards.answer_only_reward)(scores), [0.0, 1.0, 1.0]
        )

    def test_answer_only_cells_are_the_answer_only_reward(self):
        np.testing.assert_array_equal(
            rewards.awm_reward(ANSWER, MEMORY, rewards.ANSWER_ONLY),
            rewards.answer_only_reward(ANSWER),
        )

    def test_cell_index_finds_the_reward(self):
        cells = rewards.CellRewards(4.0, 3.0, 2.0, 1.0)
        np.testing.assert_array_equal(
            rewards.cell_values(cells)[rewards.cell_index(ANSWER, MEMORY)],
            rewards.awm_reward(ANSWER, MEMORY, cells),
        )

    def test_shapes_must_agree(self):
        with self.assertRaises(AssertionError):
            rewards.awm_reward(ANSWER, MEMORY[:2])


class CheckOrderTest(parameterized.TestCase):
    def test_paper_cells_pass(self):
        rewards.check_order(rewards.AWM)

    @parameterized.parameters(
        (rewards.ANSWER_ONLY,),
        (rewards.CellRewards(answering_error=0.5),),
        (rewards.CellRewards(unresolved_error=-0.1),),
        (rewards.CellRewards(unresolved_error=float("nan")),),
        (rewards.CellRewards(supported_correct=float("inf")),),
    )
    def test_anything_else_is_refused_with_the_values_found(self, cells):
        with self.assertRaisesRegex(ValueError, f"found {cells[0]}.*{cells[2]}.*{cells[3]}"):
            rewards.check_order(cells)


class StructureTest(parameterized.TestCase):
    def test_margins_by_hand(self):
        found = rewards.margins(rewards.AWM, 0.5, epsilon=0.0)
        np.testing.assert_allclose(found, (4.0, 0.2, 1.8), rtol=1e-6)

    def test_answer_only_has_no_memory_margins(self):
        found = rewards.margins(rewards.ANSWER_ONLY, 0.5)
        self.assertEqual((found.memory_refinement, found.useful_memory_failure), (0.0, 0.0))

    def test_cells_turn_negative_one_after_the_other(self):
        # All fail; the mean passes gamma; it passes r10 (section 3.2, last paragraph).
        found = rewards.positive_cells(jnp.array([-0.5, -0.05, 0.5, 2.0]))
        np.testing.assert_array_equal(
            found, [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
        )

    @parameterized.named_parameters(("awm", rewards.AWM), ("answer_only", rewards.ANSWER_ONLY))
    def test_signal_share_counts_groups_of_unequal_rewards(self, cells):
        mixture, values = np.array([0.4, 0.3, 0.2, 0.1]), np.asarray(rewards.cell_values(cells))
        expected = sum(
            mixture[list(group)].prod()
            for group in itertools.product(range(4), repeat=3)
            if len(set(values[list(group)])) > 1
        )
        found = rewards.signal_share(mixture, cells, group_size=3)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


class VariantsTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_share_of_reader_rollouts_is_the_mean_reward(self):
        rollouts = np.array([True, True, False, True])
        each = rewards.awm_reward(np.ones(4, bool), rollouts)
        found = self.variant(rewards.graded_reward)(jnp.array([1.0]), jnp.array([0.75]))
        np.testing.assert_allclose(found[0], each.mean(), rtol=1e-6)

    def test_whole_shares_give_the_cells(self):
        np.testing.assert_array_equal(
            rewards.graded_reward(ANSWER, MEMORY), rewards.awm_reward(ANSWER, MEMORY)
        )

    def test_grounding_ignores_padding_and_an_empty_memory_has_none(self):
        supported = np.array([[True, False, True], [True, True, True]])
        written = np.array([[True, True, False], [False, False, False]])
        np.testing.assert_allclose(rewards.grounding_share(supported, written), [0.5, 0.0])

    def test_echo_penalty_is_off_by_default(self):
        similarity, written = np.array([[1.0, 0.2]]), np.array([[True, True]])
        self.assertEqual(rewards.echo_penalty(similarity, written)[0], 0.0)
        self.assertEqual(rewards.echo_penalty(similarity, written, weight=0.5)[0], -0.25)

    def test_passes_are_two_a_rollout(self):
        judged = np.array([[True, True], [True, False]])
        self.assertEqual(rewards.judge_passes(judged), (3, 3, 0))
        findings = np.array([[2, 0], [4, 9]])
        self.assertEqual(
            rewards.judge_passes(judged, reader_rollouts=4, findings=findings), (12, 12, 6)
        )


if __name__ == "__main__":
    absltest.main()
