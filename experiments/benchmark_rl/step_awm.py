"""Our side of the step benchmark, in this project's environment.

As training does it: layers are recomputed in the backward pass, and only the positions that
predict a token of the policy's own reach the head.
"""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import worker

from awm_jax.models import hf
from awm_jax.rl import log_probs, losses, presets

# Tokens whose whole logits would fill the memory that the head may use.
CHUNK = 64


def predictors(mask, prompt):
    """Where the policy's own tokens are, row by row: `[batch, own]` places and which are real."""
    own = mask.sum(axis=1)
    places = np.argsort(~mask, axis=1, kind="stable")[:, : own.max()]
    return prompt + places, np.arange(own.max())[None] < own[:, None]


def prepare(folder):
    model = dataclasses.replace(hf.load_model(folder, dtype="float32"), remat=True)
    given = dict(np.load(pathlib.Path(folder) / "batch.npz"))
    prompt = given["prompt_ids"].shape[1]
    ids = np.concatenate([given["prompt_ids"], given["completion_ids"]], axis=1)
    places, real = predictors(given["mask"], prompt)
    batch = {
        "ids": ids,
        "predictor": places - 1,
        "targets": np.take_along_axis(ids, places, axis=1),
        "mask": real,
        "old_log_probs": np.take_along_axis(given["old_log_probs"], places - prompt, axis=1),
        "advantages": given["advantages"],
    }
    batch = jax.tree.map(jnp.asarray, batch)

    def loss(params, batch):
        hidden = model.hidden(params, batch["ids"])
        new, entropy = log_probs.token_log_probs(
            jnp.take_along_axis(hidden, batch["predictor"][..., None], axis=1),
            model.output_embedding(params),
            batch["targets"],
            chunk_size=CHUNK,
            with_entropy=True,
        )
        # TRL's loss_type "grpo" and Tunix's default are this average over sequences.
        policy, metrics = losses.clipped_policy_loss(
            new,
            batch["old_log_probs"],
            batch["advantages"],
            batch["mask"],
            **presets.TUNIX["policy"],
        )
        _, of_entropy = losses.entropy_bonus(entropy, batch["mask"])
        return policy.mean, metrics | of_entropy

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(model.params, batch).compile()
    (value, metrics), gradient = jax.block_until_ready(compiled(model.params, batch))
    facts = {
        "versions": worker.versions("jax", "jaxlib", "flax"),
        "loss": float(value),
        "grad_norm": float(optax.tree.norm(gradient)),
        "entropy": float(metrics["entropy"].mean),
        "temporaries_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20,
    }
    return lambda: jax.block_until_ready(compiled(model.params, batch)), facts


if __name__ == "__main__":
    worker.serve(prepare)
