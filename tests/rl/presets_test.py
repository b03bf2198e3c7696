import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.rl import advantages, losses, presets

DATA = pathlib.Path(__file__).parents[1] / "data"


def _read(name):
    return json.loads((DATA / name).read_text(encoding="utf-8"))


# Made by tests/data/make_rl_presets.py: float64, plain Python, no code in common.
GOLDENS = _read("rl_presets.json")
# Made by the trainers themselves, on the same inputs: experiments/benchmark_rl/peer_goldens.py.
PEERS = {name: _read(f"rl_peer_{name}.json") for name in ("trl", "tunix")}


def _inputs():
    inputs = GOLDENS["inputs"]
    new, old, ref, rewards = (jnp.array(inputs[key]) for key in ("new", "old", "ref", "rewards"))
    mask = jnp.arange(new.shape[1])[None] < jnp.array(inputs["lengths"])[:, None]
    return new, old, ref, mask, rewards


def _loss_and_gradient(preset, per_row, has_spread=None):
    new, old, ref, mask, _ = _inputs()

    @jax.jit
    def objective(log_probs):
        policy, _ = losses.clipped_policy_loss(log_probs, old, per_row, mask, **preset["policy"])
        kl, _ = losses.kl_penalty(
            log_probs,
            ref,
            mask,
            has_spread=has_spread,
            old_log_probs=old if preset["off_policy_kl"] else None,
            **preset["kl"],
        )
        return losses.combine(policy, (preset["kl_coefficient"], kl)).mean

    return jax.value_and_grad(objective)(new)


class PresetsTest(parameterized.TestCase):
    def test_goldens_cover_every_preset(self):
        self.assertEqual(set(GOLDENS["expected"]), set(presets.PRESETS))

    @parameterized.parameters(*presets.PRESETS)
    def test_loss_and_gradient(self, name):
        preset, expected, rewards = presets.PRESETS[name], GOLDENS["expected"][name], _inputs()[-1]
        per_row = advantages.group_advantages(rewards, **preset["advantages"]).reshape(-1)
        has_spread = jnp.repeat(advantages.group_spread(rewards), rewards.shape[1])
        # Tunix adds the KL term to every group.
        loss, gradient = _loss_and_gradient(
            preset, per_row, None if name == "tunix" else has_spread
        )
        np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradient, expected["gradient"], rtol=1e-4, atol=1e-6)

    @parameterized.parameters(("trl", "trl 1.16.0"), ("tunix", "google-tunix 0.1.7"))
    def test_equals_the_trainer_that_it_is_named_after(self, name, version):
        preset, golden, rewards = presets.PRESETS[name], PEERS[name], _inputs()[-1]
        self.assertEqual(golden["made_by"], version)
        per_row = advantages.group_advantages(rewards, **preset["advantages"]).reshape(-1)
        np.testing.assert_allclose(per_row, golden["advantages"], rtol=1e-5, atol=1e-6)
        # The first case is the trainer's default; the others turn its KL term on.
        self.assertEqual(golden["cases"][0]["kl_coefficient"], preset["kl_coefficient"])
        for case in golden["cases"]:
            loss, gradient = _loss_and_gradient(
                preset | {"kl_coefficient": case["kl_coefficient"]}, per_row
            )
            np.testing.assert_allclose(loss, case["loss"], rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(gradient, case["gradient"], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    absltest.main()
