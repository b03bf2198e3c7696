"""No field of a config.json is ignored: changed, it is refused or the model is another."""

import copy
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import config, hf

DATA = pathlib.Path(__file__).parents[1] / "data"

# They say nothing about what is computed from ids and pixels: types, what a tokenizer or sampler
# reads, and a length that no table depends on.
FREE = {
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "max_position_embeddings",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
}
CHANGED = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "attention_bias": True,
    "decoder_sparse_step": 2,
    "deepstack_visual_indexes": [1],
    "depth": 5,
    "head_dim": 8,
    "hidden_act": "relu",
    "hidden_size": 64,
    "image_token_id": 7,
    "in_channels": 1,
    "intermediate_size": 44,
    "mlp_only_layers": [0],
    "model_type": "qwen2",
    "moe_intermediate_size": 12,
    "norm_topk_prob": False,
    "num_attention_heads": 8,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_heads": 1,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "num_local_experts": 6,
    "num_position_embeddings": 36,
    "out_hidden_size": 64,
    "patch_size": 8,
    "rms_norm_eps": 0.5,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0},
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [8, 0, 0]},
    "rope_theta": 10.0,
    "spatial_merge_size": 1,
    "temporal_patch_size": 1,
    "vocab_size": 220,
}
TOGGLED = {"tie_word_embeddings"}
ROPE = {
    "mrope_interleaved": False,
    "mrope_section": [8, 0, 0],
    "rope_theta": 10.0,
    "rope_type": "yarn",
}
# Not in the test's checkpoints: a value that HF would compute something else with.
ABSENT = {
    "add_cross_attention": True,
    "attention_dropout": 0.1,
    "chunk_size_feed_forward": 16,
    "is_decoder": True,
    "is_encoder_decoder": True,
    "layer_types": ["full_attention", "sliding_attention"],
    "output_router_logits": True,
    "partial_rotary_factor": 0.5,
    "pruned_heads": {"0": [1]},
    "quantization": {"bits": 4},
    "quantization_config": {"quant_method": "fp8"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10.0},
    "sliding_window": 4096,
    "tie_encoder_decoder": True,
    "use_sliding_window": True,
    "attn_output_gate": True,
}


def version_5(source):
    """The same model as transformers 5 writes it."""
    source = copy.deepcopy(source)
    text = source.get("text_config", source)
    rope = text.pop("rope_scaling") or {"rope_type": "default"}
    text["rope_parameters"] = rope | {"rope_theta": text.pop("rope_theta")}
    if "num_experts" in text:
        text["num_local_experts"] = text.pop("num_experts")
    if "vision_config" in source:
        source["vision_config"]["rope_parameters"] = {"rope_type": "axial", "rope_theta": 1e4}
    return source


def source_of(name, version):
    source = json.loads((DATA / name / "config.json").read_text(encoding="utf-8"))
    return source if version == 4 else version_5(source)


def sections(source):
    """The places of the fields: the model's own, and those of its parts."""
    return [name for name in ("", "text_config", "vision_config") if not name or name in source]


def with_field(source, section, **field):
    changed = copy.deepcopy(source)
    (changed[section] if section else changed).update(field)
    return changed


@functools.lru_cache
def logits(parsed):
    """Of a fresh model on text with one image, or the refusal."""
    model = hf.init_model(parsed, jax.random.key(0))
    rng = np.random.default_rng(0)
    ids, images = rng.integers(0, 100, (1, 8)), {}
    if parsed.vision is not None:
        ids[0, 2:6] = 194
        images = {
            "pixel_values": rng.standard_normal((16, parsed.vision.patch_features)),
            "image_grid_thw": np.array([[1, 4, 4]]),
        }
    try:
        return np.asarray(model.apply(model.params, jnp.asarray(ids), **images))
    except ValueError as error:
        return str(error)


def shapes(parsed):
    return {entry.path: entry.shape for entry in hf.entries(parsed)}


class FieldsTest(parameterized.TestCase):
    def assert_another(self, changed, before):
        """Refused, of other shapes, or with other logits."""
        try:
            parsed = config.parse_config(changed)
        except ValueError:
            return
        if shapes(parsed) == shapes(before) and not isinstance(logits(parsed), str):
            self.assertGreater(np.abs(logits(parsed) - logits(before)).max(), 1e-6)

    @parameterized.product(
        name=("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe"), version=(4, 5)
    )
    def test_every_field_counts(self, name, version):
        source = source_of(name, version)
        before = config.parse_config(source)
        for section in sections(source):
            fields = source[section] if section else source
            for field in fields.keys() - FREE - {"text_config", "vision_config"}:
                if field == "intermediate_size" and before.text.num_experts and "text" in section:
                    continue  # Of layers without experts, of which there are none.
                value = not fields[field] if field in TOGGLED else CHANGED[field]
                with self.subTest(f"{section}.{field}"):
                    self.assert_another(with_field(source, section, **{field: value}), before)

    @parameterized.product(
        name=("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe"), version=(4, 5)
    )
    def test_every_field_of_rope_counts(self, name, version):
        source = source_of(name, version)
        before = config.parse_config(source)
        for section in sections(source):
            for rope in ("rope_scaling", "rope_parameters"):
                fields = (source[section] if section else source).get(rope) or {}
                for field in fields:
                    changed = with_field(source, section, **{rope: fields | {field: ROPE[field]}})
                    with self.subTest(f"{section}.{rope}.{field}"):
                        self.assert_another(changed, before)
                unknown = with_field(source, section, **{rope: fields | {"factor": 2.0}})
                with self.subTest(f"{section}.{rope}.factor"), self.assertRaises(ValueError):
                    config.parse_config(unknown)

    @parameterized.product(
        name=("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe"), version=(4, 5)
    )
    def test_what_is_not_there_is_refused_by_name_once_it_is(self, name, version):
        source = source_of(name, version)
        for section in sections(source):
            for field, value in ABSENT.items():
                if (section, field) == ("vision_config", "rope_parameters"):
                    value = {"rope_theta": 10.0}
                elif field in (source[section] if section else source):
                    continue
                with self.subTest(f"{section}.{field}"), self.assertRaisesRegex(ValueError, field):
                    config.parse_config(with_field(source, section, **{field: value}))

    @parameterized.parameters("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe")
    def test_known_fields_may_have_the_value_that_is_computed(self, name):
        source = source_of(name, 4)
        before = config.parse_config(source)
        where = "" if name == "tiny_qwen3" else "text_config"
        count = before.text.num_hidden_layers
        changed = with_field(
            source,
            where,
            layer_types=["full_attention"] * count,
            max_window_layers=1,
            sliding_window=4096,
            use_sliding_window=False,
            partial_rotary_factor=1.0,
            initializer_range=1.0,
            use_cache=False,
            pad_token_id=3,
        )
        self.assertEqual(config.parse_config(changed), before)


if __name__ == "__main__":
    absltest.main()
