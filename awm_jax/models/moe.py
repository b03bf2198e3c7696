"""The sparse feed-forward layer of Qwen3-VL-MoE: each token goes through a few experts.

Follows `modeling_qwen3_vl_moe.py` of HF transformers 5.24.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from awm_jax.models import layers
from awm_jax.models.config import TextConfig


class Experts(nnx.Module):
    """All experts' gated layers; the first half of `gate_up_proj`'s outputs is the gate."""

    def __init__(self, c: TextConfig):
        count, hidden, inner = c.num_experts, c.hidden_size, c.moe_intermediate_size
        scale = (2 * c.num_hidden_layers) ** -0.5
        self.gate_up_proj = layers.parameter(count, hidden, 2 * inner, deviation=hidden**-0.5)
        self.down_proj = layers.parameter(count, inner, hidden, deviation=scale * inner**-0.5)

    def __call__(self, rows, sizes):
        """`[row, hidden]` sorted by expert, `sizes[e]` rows for expert e -> same shape."""
        gate, up = jnp.split(jax.lax.ragged_dot(rows, self.gate_up_proj[...], sizes), 2, axis=-1)
        return jax.lax.ragged_dot(jax.nn.silu(gate) * up, self.down_proj[...], sizes)


class SparseMLP(nnx.Module):
    """Sends each token to its likeliest experts and sums what they say, weighted."""

    def __init__(self, c: TextConfig):
        self.gate = layers.Linear(c.hidden_size, c.num_experts)
        self.experts = Experts(c)
        self.num_experts, self.chosen = c.num_experts, c.num_experts_per_tok

    def __call__(self, x):
        rows = x.reshape(-1, x.shape[-1])
        shares = jax.nn.softmax(self.gate(rows).astype(jnp.float32), axis=-1)
        weights, experts = jax.lax.top_k(shares, self.chosen)
        weights = (weights / jnp.sum(weights, axis=-1, keepdims=True)).astype(x.dtype)
        # Sorted by expert, so that each expert is one product over neighbouring rows.
        order = jnp.argsort(experts.reshape(-1))
        sizes = jnp.bincount(experts.reshape(-1), length=self.num_experts)
        token = order // self.chosen
        said = self.experts(rows[token], sizes) * weights.reshape(-1)[order][:, None]
        return jnp.zeros_like(rows).at[token].add(said).reshape(x.shape)
