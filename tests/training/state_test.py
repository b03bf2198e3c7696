"""Learning rates by hand, and what cannot be one."""

from absl.testing import absltest, parameterized

from awm_jax.training import state


class LearningRateTest(parameterized.TestCase):
    @parameterized.named_parameters(
        # Two updates of warm-up from a third; then six to the last, which is the eighth.
        ("constant", "constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1]),
        ("linear", "linear", [1 / 3, 2 / 3, 1, 0.85, 0.7, 0.55, 0.4, 0.25]),
        # 0.1 + 0.9 * (1 + cos(pi * k / 6)) / 2.
        ("cosine", "cosine", [1 / 3, 2 / 3, 1, 0.93971, 0.775, 0.55, 0.325, 0.16029]),
    )
    def test_by_hand(self, decay, expected):
        rate = state.learning_rate_schedule(
            learning_rate=1.0, warmup_steps=2, decay=decay, final_learning_rate=0.1, updates=8
        )
        for update, value in enumerate(expected):
            self.assertAlmostEqual(float(rate(update)), value, places=5)

    @parameterized.named_parameters(
        ("rate", {"learning_rate": float("nan")}, "found learning rate nan"),
        ("decay", {"decay": "step"}, "decay 'step': expected constant, cosine or linear"),
        ("warm_up", {"decay": "cosine", "updates": 5}, "in 5 updates, 5 of them warm-up"),
        ("length", {"decay": "linear"}, "in None updates"),
        ("rise", {"decay": "linear", "updates": 9, "final_learning_rate": 2.0}, "from 1.0 to 2.0"),
    )
    def test_refusals(self, changed, message):
        options = {"learning_rate": 1.0, "warmup_steps": 5} | changed
        with self.assertRaisesRegex(ValueError, message):
            state.learning_rate_schedule(**options)


if __name__ == "__main__":
    absltest.main()
