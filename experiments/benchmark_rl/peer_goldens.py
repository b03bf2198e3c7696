"""Goldens that TRL and Tunix make themselves, for the presets that carry their names.

    runs/benchmark_rl/trl/bin/python experiments/benchmark_rl/peer_goldens.py trl
    runs/benchmark_rl/tunix/bin/python experiments/benchmark_rl/peer_goldens.py tunix

Each runs in the environment that `run.sh` makes and writes tests/data/rl_peer_<name>.json:
advantages, loss and gradient with respect to the log-probs, on the inputs of
tests/data/rl_presets.json. Only the model is replaced, by the log-probs themselves.
"""

import importlib.metadata
import json
import pathlib
import sys

import numpy as np

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data"
PAD = 0


def read_inputs():
    inputs = json.loads((DATA / "rl_presets.json").read_text(encoding="utf-8"))["inputs"]
    arrays = {key: np.array(inputs[key], np.float32) for key in ("new", "old", "ref", "rewards")}
    mask = np.arange(arrays["new"].shape[1])[None] < np.array(inputs["lengths"])[:, None]
    return arrays, mask


def from_tunix(arrays, mask):
    import jax.numpy as jnp
    from flax import nnx
    from tunix.rl import algo_core, common
    from tunix.rl.grpo import grpo_learner

    class LogProbs(nnx.Module):
        def __init__(self, values):
            self.values = nnx.Param(jnp.asarray(values))

    def values_of(graph, state, **_):
        values = nnx.merge(graph, state).values[...]
        return values, jnp.zeros((*values.shape, 2))

    common.compute_per_token_logps = values_of
    rewards = arrays["rewards"]
    config = grpo_learner.GRPOConfig(num_generations=rewards.shape[1])
    config.temperature = 1.0
    advantages = algo_core.compute_advantages(rewards.reshape(-1), rewards.shape[1])
    ids = jnp.ones(mask.shape, jnp.int32)
    example = common.TrainExample(
        prompt_ids=ids,
        prompt_mask=ids,
        completion_ids=ids,
        completion_mask=jnp.asarray(mask, jnp.int32),
        advantages=jnp.asarray(advantages, jnp.float32),
        ref_per_token_logps=jnp.asarray(arrays["ref"]),
        old_per_token_logps=jnp.asarray(arrays["old"]),
    )

    def loss(model):
        return algo_core.grpo_loss_fn(model, example, config, PAD, PAD)[0]

    value, gradient = nnx.value_and_grad(loss)(LogProbs(arrays["new"]))
    case = {
        "kl_coefficient": config.beta,
        "loss": float(value),
        "gradient": np.asarray(gradient["values"][...]).tolist(),
    }
    return advantages.tolist(), [case]


def from_trl(arrays, mask):
    import torch
    import transformers
    import trl_trainer

    rewards = arrays["rewards"]
    rows, size = mask.shape[0], rewards.shape[1]
    shape = transformers.Qwen3Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
    )
    trainer = trl_trainer.make_trainer(
        transformers.Qwen3ForCausalLM(shape),
        rows=rows,
        group_size=size,
        reward=lambda completions, **_: rewards.reshape(-1).tolist(),
        max_completion_length=mask.shape[1],
    )
    # Prompts, completions as ids, tool mask, as text, sampler's log-probs, the rest.
    sampled = [[2]] * rows, [[2] * int(n) for n in mask.sum(axis=1)], None, ["a"] * rows, None
    trainer._generate = lambda _: (*sampled, {}, None, None)
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * rows)
    inputs["old_per_token_logps"] = torch.tensor(arrays["old"])
    inputs["ref_per_token_logps"] = torch.tensor(arrays["ref"])
    log_probs = torch.tensor(arrays["new"], requires_grad=True)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
        log_probs,
        torch.zeros_like(log_probs),
        None,
    )
    cases = []
    for coefficient in (trainer.beta, 0.04):
        trainer.beta = coefficient
        log_probs.grad = None
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        cases.append(
            {
                "kl_coefficient": coefficient,
                "loss": loss.item(),
                "gradient": log_probs.grad.tolist(),
            }
        )
    return inputs["advantages"].tolist(), cases


def main():
    name = sys.argv[1]
    package, make = {"trl": ("trl", from_trl), "tunix": ("google-tunix", from_tunix)}[name]
    advantages, cases = make(*read_inputs())
    golden = {
        "made_by": f"{package} {importlib.metadata.version(package)}",
        "advantages": advantages,
        "cases": cases,
    }
    path = DATA / f"rl_peer_{name}.json"
    path.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
