"""Qwen3: the decoder, and what a caller sees of a model.

Follows `modeling_qwen3.py` of HF transformers 5.24. Layers are stacked along a leading axis
and run by one `jax.lax.scan`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from awm_jax.models import attention as attention_lib
from awm_jax.models import layers, moe
from awm_jax.models.attention import KVCache, Visibility
from awm_jax.models.config import Config, TextConfig


class Attention(nnx.Module):
    """Grouped-query self-attention; queries and keys are normed per head before they turn."""

    def __init__(self, c: TextConfig):
        queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = layers.Linear(c.hidden_size, queries)
        self.k_proj = layers.Linear(c.hidden_size, keys)
        self.v_proj = layers.Linear(c.hidden_size, keys)
        self.o_proj = layers.Linear(queries, c.hidden_size, scale=(2 * c.num_hidden_layers) ** -0.5)
        self.q_norm = layers.RMSNorm(c.head_dim, epsilon=c.rms_norm_eps)
        self.k_norm = layers.RMSNorm(c.head_dim, epsilon=c.rms_norm_eps)
        self.head_dim = c.head_dim

    def __call__(self, x, cos, sin, visibility: Visibility, layer, kept, model):
        """`kept` is the cache's (key, value) over all layers, or None; returned updated."""

        def heads(y):
            return y.reshape(*y.shape[:2], -1, self.head_dim)

        query = layers.rotate(self.q_norm(heads(self.q_proj(x))), cos, sin)
        key = layers.rotate(self.k_norm(heads(self.k_proj(x))), cos, sin)
        value = heads(self.v_proj(x))
        if kept is not None:
            (keys, values), rows, slots = kept, jnp.arange(x.shape[0])[:, None], visibility.slots
            keys = keys.at[layer, rows, :, slots].set(key.astype(keys.dtype), mode="drop")
            value = value.astype(values.dtype)
            values = values.at[layer, rows, :, :, slots].set(value, mode="drop")
            key = jnp.moveaxis(keys[layer], 2, 1).astype(x.dtype)
            value = jnp.moveaxis(values[layer], 3, 1).astype(x.dtype)
            kept = keys, values
        out = attention_lib.attention(
            query,
            key,
            value,
            visibility.mask,
            segments=visibility.segments,
            implementation=model.attention,
            per_device=model.per_device,
        )
        return self.o_proj(out.reshape(*x.shape[:2], -1)), kept


class MLP(nnx.Module):
    """The gated feed-forward layer."""

    def __init__(self, c: TextConfig):
        self.gate_proj = layers.Linear(c.hidden_size, c.intermediate_size)
        self.up_proj = layers.Linear(c.hidden_size, c.intermediate_size)
        scale = (2 * c.num_hidden_layers) ** -0.5
        self.down_proj = layers.Linear(c.intermediate_size, c.hidden_size, scale=scale)

    def __call__(self, x):
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
    """One decoder layer."""

    def __init__(self, c: TextConfig):
        self.input_layernorm = layers.RMSNorm(c.hidden_size, epsilon=c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = layers.RMSNorm(c.hidden_size, epsilon=c.rms_norm_eps)
        self.mlp = MLP(c) if c.num_experts is None else moe.SparseMLP(c)

    def __call__(self, x, cos, sin, visibility, layer, kept, model):
        y, kept = self.self_attn(self.input_layernorm(x), cos, sin, visibility, layer, kept, model)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), kept


def rotary_angles(position_ids: jax.Array, c: TextConfig) -> jax.Array:
    """`[batch, time, head_dim / 2]` float32 angles in radians.

    With three axes of positions the frequencies are interleaved: frequency `j` turns with
    height where `j % 3 == 1`, with width where `j % 3 == 2`, while the axis has frequencies
    left, and with time otherwise.

    Args:
      position_ids: `[axis, batch, time]` int32; one axis without `mrope_section`.
    """
    frequencies = layers.inverse_frequencies(c.head_dim, c.rope_theta)
    axis = np.zeros(len(frequencies), np.int32)
    for number, count in enumerate(c.mrope_section or ()):
        if number > 0:
            axis[number : 3 * count : 3] = number
    positions = jnp.moveaxis(position_ids[axis], 0, -1)
    return positions.astype(jnp.float32) * frequencies[None, None, :]


class Decoder(nnx.Module):
    """Embedded tokens -> hidden states after the last norm."""

    def __init__(self, c: TextConfig):
        self.embed_tokens = layers.Embedding(c.vocab_size, c.hidden_size)
        self.layers = layers.stacked(lambda: Block(c), c.num_hidden_layers)
        self.norm = layers.RMSNorm(c.hidden_size, epsilon=c.rms_norm_eps)
        self.config = c

    def __call__(self, x, position_ids, visibility, cache, *, model, after_layer=None):
        """Returns the hidden states and the cache, with keys and values written.

        Args:
          x: `[batch, time, hidden]`.
          position_ids: `[axis, batch, time]` int32.
          visibility: who sees whom.
          cache: as `attention.advance` returned it, or None.
          model: the `Model`, for what it says beside the parameters.
          after_layer: changes the hidden state, given it and the layer's number.
        """
        # All is computed in the layers' type, also where the embedding is kept in a wider one.
        x = x.astype(self.norm.scale.dtype)
        angles = rotary_angles(position_ids, self.config)
        angles = jnp.concatenate([angles, angles], axis=-1)
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)

        # The cache is carried: as scan inputs and outputs it would be held twice.
        def body(carry, step):
            x, kept = carry
            block, layer = step
            x, kept = block(x, cos, sin, visibility, layer, kept, model)
            if after_layer is not None:
                x = after_layer(x, layer)
            return (model.constrain(x), kept), None

        kept = None if cache is None else (cache.key, cache.value)
        numbers = jnp.arange(self.config.num_hidden_layers)
        body = jax.checkpoint(body, prevent_cse=False) if model.remat else body
        (x, kept), _ = jax.lax.scan(body, (model.constrain(x), kept), (self.layers, numbers))
        if cache is not None:
            cache = model.constrain_cache(cache._replace(key=kept[0], value=kept[1]))
        return self.norm(x), cache


class Qwen3(nnx.Module):
    """The parameters of a text model."""

    def __init__(self, c: Config):
        self.language_model = Decoder(c.text)
        if not c.tie_word_embeddings:
            self.lm_head = layers.Embedding(c.text.vocab_size, c.text.hidden_size)


@functools.lru_cache
def _decoder_graph(c: TextConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Decoder(c)))[0]


def merged_decoder(c: TextConfig, params) -> Decoder:
    """The decoder with the arrays under `params["language_model"]`."""
    return nnx.merge(_decoder_graph(c), params["language_model"])


def is_concrete(*arrays) -> bool:
    """Whether the values can be read now, on the host."""
    return not any(isinstance(a, jax.core.Tracer) for a in arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model as the rest of the project sees it: functions of a plain dict of arrays.

    Nothing here changes; `params` are those it was loaded with, and every function takes the
    parameters to use. All functions can be traced.

    Attributes:
      config: the model's shape.
      params: nested dict of arrays. Linear kernels are `[inputs, outputs]`; what lies under
        `layers` has a leading layer axis.
      remat: whether the backward pass recomputes each layer instead of keeping its inside.
      attention: name of the implementation for packed rows, as `attention.attention` has it.
      constrain: applied to the decoder's hidden states `[batch, time, hidden]` between layers;
        a place for a sharding constraint.
      constrain_cache: likewise, applied to a cache when it is made and when it was written.
      per_device: as `attention.attention` has it.
    """

    config: Config
    params: dict = dataclasses.field(repr=False)
    remat: bool = False
    attention: str = "xla"
    constrain: Callable[[jax.Array], jax.Array] = lambda x: x
    constrain_cache: Callable[[KVCache], KVCache] = lambda cache: cache
    per_device: Callable[[Callable], Callable] = lambda kernel: kernel

    def hidden(
        self,
        params,
        input_ids,
        *,
        attention_mask=None,
        position_ids=None,
        segment_ids=None,
        pixel_values=None,
        image_grid_thw=None,
        image_features=None,
        cache=None,
    ):
        """`[batch, time]` tokens -> `[batch, time, hidden]` after the last norm.

        Args:
          params: parameters in the form of `self.params`.
          input_ids: `[batch, time]` int.
          attention_mask: `[batch, time]`, nonzero for real tokens; None for all.
          position_ids: `[batch, time]` int32, or `[3, batch, time]`, of which a text model
            reads the first axis. None counts the real tokens of the row or segment.
          segment_ids: `[batch, time]` int32. Tokens see only their own segment; 0 is padding.
          pixel_values, image_grid_thw, image_features: images; a text model refuses them.
          cache: a `KVCache`. The tokens are written behind those of their row and see them.

        Returns:
          The hidden states, undefined but finite at padding; with a cache, a pair of them
          and the new cache.
        """
        if any(x is not None for x in (pixel_values, image_grid_thw, image_features)):
            raise ValueError("images were given to a text model, which cannot read them")
        segments = token_segments(input_ids, attention_mask, segment_ids, cache)
        visibility, moved = visibility_of(segments, cache)
        if position_ids is None:
            position_ids = counted_positions(visibility)
        elif position_ids.ndim == 3:
            position_ids = position_ids[0]
        decoder = merged_decoder(self.config.text, params)
        x = decoder.embed_tokens(input_ids)
        x, moved = decoder(x, position_ids[None], visibility, moved, model=self)
        return x if cache is None else (x, moved)

    def apply(self, params, input_ids, *, cache=None, **inputs):
        """`[batch, time, vocab]` float32 logits; arguments and cache as in `hidden`."""
        x = self.hidden(params, input_ids, cache=cache, **inputs)
        x, cache_after = x if cache is not None else (x, None)
        # b batch, t time, d hidden, v vocab.
        head = self.output_embedding(params)
        logits = jnp.einsum("btd,vd->btv", x, head, preferred_element_type=jnp.float32)
        return logits if cache is None else (logits, cache_after)

    def output_embedding(self, params) -> jax.Array:
        """`[vocab, hidden]`: the head, or the token embedding where the two are tied."""
        owner = params["language_model"]["embed_tokens"]
        return (owner if self.config.tie_word_embeddings else params["lm_head"])["embedding"]

    def init_cache(self, batch: int, slots: int, dtype=None) -> KVCache:
        """An empty cache for `slots` tokens a row; the type is the parameters' by default."""
        c = self.config.text
        heads = (c.num_hidden_layers, batch, c.num_key_value_heads)
        dtype = self.params["language_model"]["norm"]["scale"].dtype if dtype is None else dtype
        key = jnp.zeros((*heads, slots, c.head_dim), dtype)
        value = jnp.zeros((*heads, c.head_dim, slots), dtype)
        mask, index = jnp.zeros((batch, slots), bool), jnp.zeros((batch,), jnp.int32)
        return self.constrain_cache(KVCache(key, value, mask, index))


def token_segments(input_ids, attention_mask, segment_ids, cache) -> jax.Array:
    """`[batch, time]` int32 segments out of what a caller gave; 0 is padding."""
    if segment_ids is None:
        segment_ids = jnp.ones(input_ids.shape, jnp.int32)
    elif cache is not None:
        raise ValueError("segment_ids with a cache: a packed row cannot be continued")
    if attention_mask is not None:
        segment_ids = jnp.where(attention_mask != 0, segment_ids, 0)
    return segment_ids


def visibility_of(segments, cache) -> tuple[Visibility, KVCache | None]:
    """Who sees whom, and the cache moved on by the real tokens, where there is one."""
    if cache is None:
        return attention_lib.packed_visibility(segments), None
    moved, visibility = attention_lib.advance(cache, segments != 0)
    slots = cache.mask.shape[1]
    if is_concrete(moved.index) and np.max(moved.index) > slots:
        raise ValueError(f"the cache has {slots} slots; {np.max(moved.index)} tokens were put")
    return visibility, moved


def counted_positions(visibility: Visibility) -> jax.Array:
    """`[batch, time]` int32: how many earlier tokens each token sees."""
    return jnp.maximum(jnp.sum(visibility.mask, axis=-1, dtype=jnp.int32) - 1, 0)
