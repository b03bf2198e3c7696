"""One layer at the width of real models against HF transformers; where torch is installed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import attention, config, qwen3

try:
    import torch
    from transformers.models.qwen3 import modeling_qwen3
except ImportError:
    torch = None

# Qwen3-VL-4B's decoder and the 14B reader: hidden, inner, query heads, key heads.
SHAPES = {"4b": (2560, 9728, 32, 8), "14b": (5120, 17408, 40, 8)}
TIME, HEAD = 24, 128


def setUpModule():
    if torch is None:
        raise absltest.SkipTest("torch is not installed")


def theirs(shape):
    """A decoder layer with random weights, and its rotary embedding."""
    hidden, inner, heads, key_heads = shape
    about = modeling_qwen3.Qwen3Config(
        hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads,
        num_key_value_heads=key_heads, head_dim=HEAD, num_hidden_layers=1, vocab_size=8,
        rope_theta=5e6, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    layer = modeling_qwen3.Qwen3DecoderLayer(about, 0)
    for name, parameter in layer.named_parameters():
        deviation = 0.2 if "norm" in name else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=deviation)
    return layer, modeling_qwen3.Qwen3RotaryEmbedding(about)


def ours(layer, shape, dtype):
    """The same layer here: a block, and the angles' config."""
    hidden, inner, heads, key_heads = shape
    text = config.TextConfig(
        vocab_size=8, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=HEAD,
        max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=5e6, mrope_section=None,
        num_experts=None, num_experts_per_tok=None, moe_intermediate_size=None,
    )  # fmt: skip
    block = qwen3.Block(text)
    for name, value in layer.state_dict().items():
        *path, _ = name.split(".")
        module = block
        for part in path:
            module = getattr(module, part)
        array = value.float().numpy()
        leaf = "kernel" if array.ndim == 2 else "scale"
        getattr(module, leaf)[...] = jnp.asarray(array.T, dtype)
    return block, text


class RealShapesTest(parameterized.TestCase):
    @parameterized.product(name=("4b", "14b"), dtype=("float32", "bfloat16"))
    def test_a_layer_and_its_gradient(self, name, dtype):
        shape = SHAPES[name]
        layer, rotary = theirs(shape)
        layer = layer.to(getattr(torch, dtype))
        given = np.random.default_rng(0).standard_normal((1, TIME, shape[0]), np.float32)
        x = torch.tensor(given).to(getattr(torch, dtype)).requires_grad_()
        places = torch.arange(TIME)[None]
        hidden_later = torch.full((TIME, TIME), torch.finfo(x.dtype).min).triu(1)[None, None]
        out = layer(
            x,
            position_embeddings=rotary(x, places),
            attention_mask=hidden_later.to(x.dtype),
            position_ids=places,
        )
        torch.sin(out.float()).sum().backward()

        block, text = ours(layer, shape, dtype)
        angles = qwen3.rotary_angles(jnp.arange(TIME, dtype=jnp.int32)[None, None], text)
        angles = jnp.concatenate([angles, angles], axis=-1)
        cos, sin = jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)
        visibility = attention.packed_visibility(jnp.ones((1, TIME), jnp.int32))
        model = dataclasses.make_dataclass(
            "Options", [("attention", str, "xla"), ("per_device", object, None)]
        )()

        def total(x):
            found, _ = block(x, cos, sin, visibility, 0, None, model)
            return jnp.sum(jnp.sin(found.astype(jnp.float32))), found

        with jax.default_matmul_precision("highest"):
            gradient, found = jax.grad(total, has_aux=True)(jnp.asarray(given, dtype))
        # Of bfloat16's eight bits, the last of the largest values.
        atol = {"float32": 3e-5, "bfloat16": 0.06}[dtype]
        for value, expected in ((found, out), (gradient, x.grad)):
            expected = expected.detach().float().numpy()
            scale = np.abs(expected).max()
            np.testing.assert_allclose(value.astype(jnp.float32), expected, atol=atol * scale)


if __name__ == "__main__":
    absltest.main()
