import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.rl import advantages, rewards, simulation

# Appendix C.6, in the order (0, 0), (0, 1), (1, 0), (1, 1).
MIXTURES = (
    ("rare", (0.82, 0.05, 0.05, 0.08)),
    ("some", (0.60, 0.05, 0.05, 0.30)),
    ("common", (0.30, 0.05, 0.05, 0.60)),
)


class ExactAdvantagesTest(parameterized.TestCase):
    def test_every_group_of_three_by_hand(self):
        mixture, values = np.array([0.4, 0.3, 0.2, 0.1]), np.array([-1.0, -0.1, 0.0, 2.0])
        groups = np.array(list(itertools.product(range(4), repeat=3)))
        chance = mixture[groups].prod(axis=1)
        found = np.asarray(advantages.group_advantages(values[groups]), np.float64)
        law = simulation.exact_advantages(mixture, group_size=3)
        for cell in range(4):
            weight = chance[:, None] * (groups == cell)
            mean = (weight * found).sum() / weight.sum()
            variance = (weight * (found - mean) ** 2).sum() / weight.sum()
            np.testing.assert_allclose(law.cell_mean[cell], mean, atol=1e-6)
            np.testing.assert_allclose(law.cell_std[cell], np.sqrt(variance), atol=1e-6)
            positive = (weight * (found > 0)).sum() / weight.sum()
            np.testing.assert_allclose(law.share_positive[cell], positive, atol=1e-6)

    @parameterized.named_parameters(*MIXTURES)
    def test_is_a_law(self, mixture):
        law = simulation.exact_advantages(mixture)
        # 120 compositions of the other seven; 165 of all eight.
        self.assertEqual(law.values.shape, (4, 120))
        np.testing.assert_allclose(law.weights.sum(axis=1), np.ones(4), rtol=1e-12)
        np.testing.assert_allclose((np.asarray(mixture) * law.cell_mean).sum(), 0.0, atol=1e-6)

    @parameterized.named_parameters(*MIXTURES)
    def test_agrees_with_the_simulation(self, mixture):
        law = simulation.exact_advantages(mixture)
        drawn = simulation.simulate_advantages(jax.random.key(0), jnp.array(mixture))
        # Rollouts of one group are not independent: six standard errors of half the groups.
        rollouts = 15_000 * 8 * np.asarray(mixture)
        error = 6 * law.cell_std / np.sqrt(rollouts / 2)
        np.testing.assert_array_less(np.abs(drawn.cell_mean - law.cell_mean), error)
        np.testing.assert_allclose(drawn.cell_std, law.cell_std, atol=0.05)
        np.testing.assert_allclose(drawn.share_positive, law.share_positive, atol=0.03)

    def test_missing_correct_turns_negative_as_support_becomes_common(self):
        """The paper's claim about Figure 3, third bullet."""
        means = [simulation.exact_advantages(mixture).cell_mean for _, mixture in MIXTURES]
        self.assertGreater(means[0][2], 0)
        self.assertLess(means[2][2], 0)
        self.assertTrue(all(mean[3] > 0 for mean in means))

    def test_answer_only_cannot_tell_the_correct_cells_apart(self):
        law = simulation.exact_advantages(MIXTURES[0][1], cells=rewards.ANSWER_ONLY)
        np.testing.assert_allclose(law.cell_mean[2], law.cell_mean[3], atol=1e-6)
        np.testing.assert_allclose(law.cell_mean[0], law.cell_mean[1], atol=1e-6)

    def test_a_mixture_of_one_cell_has_no_signal(self):
        law = simulation.exact_advantages([0.0, 0.0, 1.0, 0.0])
        np.testing.assert_array_equal(law.cell_mean[2], 0.0)
        self.assertTrue(np.isfinite(law.cell_mean).all())

    def test_other_numbers_of_cells_and_sizes(self):
        law = simulation.exact_advantages([0.5, 0.5], cells=np.array([0.0, 1.0]), group_size=2)
        # Alone in its cell half the time: +-1; else 0.
        np.testing.assert_allclose(law.cell_mean, [-0.5, 0.5], atol=1e-5)
        np.testing.assert_allclose(law.share_positive, [0.0, 0.5])

    def test_signal_share_is_the_chance_of_a_nonzero_advantage(self):
        mixture = np.array(MIXTURES[0][1])
        law = simulation.exact_advantages(mixture)
        share = (mixture[:, None] * law.weights * (law.values != 0)).sum()
        # In a few groups with a signal a reward equals the mean.
        np.testing.assert_allclose(share, rewards.signal_share(mixture), atol=2e-3)

    def test_too_much_to_enumerate_is_refused(self):
        with self.assertRaisesRegex(ValueError, "simulate instead"):
            simulation.exact_advantages(np.full(10, 0.1), cells=np.arange(10.0), group_size=32)


class SimulateAdvantagesTest(absltest.TestCase):
    def test_same_key_same_numbers(self):
        draws = [
            simulation.simulate_advantages(
                jax.random.key(1), jnp.array(MIXTURES[1][1]), group_count=64
            )
            for _ in range(2)
        ]
        np.testing.assert_array_equal(draws[0].values, draws[1].values)

    def test_a_cell_that_never_comes_up_has_no_statistics(self):
        law = simulation.simulate_advantages(
            jax.random.key(0), jnp.array([0.5, 0.0, 0.0, 0.5]), group_count=100
        )
        np.testing.assert_array_equal(np.isnan(law.cell_mean), [False, True, True, False])


if __name__ == "__main__":
    absltest.main()
