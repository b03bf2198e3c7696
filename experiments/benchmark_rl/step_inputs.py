"""Makes the weights and the batch of the step benchmark, for all sides to read.

The model is a Qwen3 of 4 layers, hidden 256, vocabulary 32,000 with a tied head; the batch is
8 x (256 prompt + 256 completion) tokens, of which a stretch in each completion is a tool
result that nobody trains on. Old log-probs are the model's own with some noise, so that a part
of the ratios is clipped.
"""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from awm_jax.models import config, hf

ROWS, PROMPT, COMPLETION = 8, 256, 256
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32_000,
    "hidden_size": 256,
    "intermediate_size": 1_024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 4_096,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    model = hf.init_model(config.parse_config(SHAPE), jax.random.key(0))
    hf.save_model(model, model.params, folder)
    (folder / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    rng = np.random.default_rng(0)
    # 0 is the id of padding, of which there is none.
    ids = rng.integers(1, SHAPE["vocab_size"], (ROWS, PROMPT + COMPLETION), dtype=np.int32)
    logits = model.apply(model.params, jnp.asarray(ids))[:, PROMPT - 1 : -1]
    chosen = ids[:, PROMPT:, None]
    log_probs = np.asarray(jnp.take_along_axis(jax.nn.log_softmax(logits), chosen, axis=-1))[..., 0]
    place = np.arange(COMPLETION)[None]
    start = rng.integers(32, 160, (ROWS, 1))
    mask = (place < start) | (place >= start + 64)
    advantages = rng.standard_normal(ROWS, np.float32)
    np.savez(
        folder / "batch.npz",
        prompt_ids=ids[:, :PROMPT],
        completion_ids=ids[:, PROMPT:],
        mask=mask,
        old_log_probs=log_probs + 0.1 * rng.standard_normal(log_probs.shape, np.float32),
        advantages=advantages - advantages.mean(),
    )


if __name__ == "__main__":
    main()
