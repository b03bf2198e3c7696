"""The step of google-tunix 0.1.7: its Qwen3, its GRPO loss, its defaults without KL."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import worker
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import algo_core, common
from tunix.rl.grpo import grpo_learner

CONFIG = qwen3.ModelConfig(
    num_layers=4,
    vocab_size=32_000,
    embed_dim=256,
    hidden_dim=1_024,
    num_heads=8,
    head_dim=32,
    num_kv_heads=4,
    rope_theta=1_000_000,
    norm_eps=1e-6,
    use_tied_embedding=True,
)
PAD, END = 0, 31_999


def prepare(folder):
    model = qwen3_params.create_model_from_safe_tensors(folder, CONFIG, dtype=jnp.float32)
    batch = dict(np.load(pathlib.Path(folder) / "batch.npz"))
    example = common.TrainExample(
        prompt_ids=jnp.asarray(batch["prompt_ids"]),
        prompt_mask=jnp.ones(batch["prompt_ids"].shape, jnp.int32),
        completion_ids=jnp.asarray(batch["completion_ids"]),
        completion_mask=jnp.asarray(batch["mask"], jnp.int32),
        advantages=jnp.asarray(batch["advantages"]),
        ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(batch["old_log_probs"]),
    )
    config = grpo_learner.GRPOConfig(num_generations=len(batch["advantages"]), beta=0.0)
    # The learner sets it from the rollout's settings.
    config.temperature = 1.0
    graph, params = nnx.split(model)

    def loss(params, example):
        return algo_core.grpo_loss_fn(nnx.merge(graph, params), example, config, PAD, END)

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params, example).compile()
    (value, aux), gradient = jax.block_until_ready(compiled(params, example))
    facts = {
        "versions": worker.versions("google-tunix", "jax", "jaxlib", "flax"),
        "loss": float(value),
        "grad_norm": float(optax.tree.norm(jax.tree.leaves(gradient))),
        "entropy": float(aux["entropy"]),
        "temporaries_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20,
    }
    return lambda: jax.block_until_ready(compiled(params, example)), facts


if __name__ == "__main__":
    worker.serve(prepare)
