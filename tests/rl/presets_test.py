import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.rl import advantages, losses, presets

# Made by tests/data/make_rl_presets.py: float64, plain Python, no code in common.
GOLDENS = json.loads(
    (pathlib.Path(__file__).parents[1] / "data" / "rl_presets.json").read_text(encoding="utf-8")
)


class PresetsTest(parameterized.TestCase):
    def test_goldens_cover_every_preset(self):
        self.assertEqual(set(GOLDENS["expected"]), set(presets.PRESETS))

    @parameterized.parameters(*presets.PRESETS)
    def test_loss_and_gradient(self, name):
        preset, inputs, expected = presets.PRESETS[name], GOLDENS["inputs"], GOLDENS["expected"]
        new, old, ref = (jnp.array(inputs[key]) for key in ("new", "old", "ref"))
        mask = jnp.arange(new.shape[1])[None] < jnp.array(inputs["lengths"])[:, None]
        rewards = jnp.array(inputs["rewards"])
        per_row = advantages.group_advantages(rewards, **preset["advantages"]).reshape(-1)
        has_spread = jnp.repeat(advantages.group_spread(rewards), rewards.shape[1])
        if name == "tunix":
            # It adds the KL term to every group.
            has_spread = None

        @jax.jit
        def objective(log_probs):
            policy, _ = losses.clipped_policy_loss(
                log_probs, old, per_row, mask, **preset["policy"]
            )
            kl, _ = losses.kl_penalty(
                log_probs,
                ref,
                mask,
                has_spread=has_spread,
                old_log_probs=old if preset["off_policy_kl"] else None,
                **preset["kl"],
            )
            return losses.combine(policy, (preset["kl_coefficient"], kl)).mean

        loss, gradient = jax.value_and_grad(objective)(new)
        np.testing.assert_allclose(loss, expected[name]["loss"], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradient, expected[name]["gradient"], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    absltest.main()
