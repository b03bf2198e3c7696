"""config.json in the forms of transformers 4 and 5, and what is refused."""

import copy
import json
import math
import pathlib

import transformers
from absl.testing import absltest, parameterized

from awm_jax.models import config, hf

DATA = pathlib.Path(__file__).parents[1] / "data"


def source(name="tiny_qwen3_vl"):
    return json.loads((DATA / name / "config.json").read_text(encoding="utf-8"))


def version_5():
    """The same model as transformers 5 writes it."""
    changed = source()
    text, vision = changed["text_config"], changed["vision_config"]
    text["rope_parameters"] = text.pop("rope_scaling") | {"rope_theta": text.pop("rope_theta")}
    vision["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "axial"}
    vision["model_type"] = "qwen3_vl_vision"
    return changed


# Name: layers, hidden, heads, inner, tied, and how many parameters transformers' model has.
QWEN3 = {
    "0.6B": (28, 1024, 16, 3072, True, 596_049_920),
    "1.7B": (28, 2048, 16, 6144, True, 1_720_574_976),
    "4B": (36, 2560, 32, 9728, True, 4_022_468_096),
    "8B": (36, 4096, 32, 12288, False, 8_190_735_360),
    "14B": (40, 5120, 40, 17408, False, 14_768_307_200),
    "32B": (64, 5120, 64, 25600, False, 32_762_123_264),
}
# The vision tower's depth, hidden, inner and taps are behind the inner size.
QWEN3_VL = {
    "2B": (28, 2048, 16, 6144, (24, 1024, 4096, [5, 11, 17]), True, 2_127_532_032),
    "4B": (36, 2560, 32, 9728, (24, 1024, 4096, [5, 11, 17]), True, 4_437_815_808),
    "8B": (36, 4096, 32, 12288, (27, 1152, 4304, [8, 16, 24]), False, 8_767_123_696),
    "32B": (64, 5120, 64, 25600, (27, 1152, 4304, [8, 16, 24]), False, 33_357_390_064),
}


def text_section(layers, hidden, heads, inner):
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": 40960,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "use_cache": True,
        "vocab_size": 151936,
    }


def released_qwen3(name):
    """Of Qwen/Qwen3-*, as on the hub."""
    *sizes, tied, count = QWEN3[name]
    beside = {
        "architectures": ["Qwen3ForCausalLM"],
        "max_window_layers": sizes[0],
        "model_type": "qwen3",
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
    }
    return text_section(*sizes) | beside, count


def released_vl(name):
    """Of Qwen/Qwen3-VL-*-Instruct and -Thinking, as on the hub; the smaller have a flag more."""
    *sizes, (depth, hidden, inner, taps), tied, count = QWEN3_VL[name]
    rope = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    beside = {
        "dtype": "bfloat16",
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "rope_scaling": rope,
        "rope_theta": 5000000,
    } | ({"tie_word_embeddings": True} if tied else {})
    vision = {
        "deepstack_visual_indexes": taps,
        "depth": depth,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": sizes[1],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": text_section(*sizes) | beside,
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 151656,
        "vision_config": vision,
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    }, count


def released_moe():
    """Of Qwen/Qwen3-VL-30B-A3B-Instruct and -Thinking, as on the hub."""
    changed, _ = released_vl("8B")
    changed |= {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
    }
    changed["text_config"] |= text_section(48, 2048, 32, 6144) | {
        "decoder_sparse_step": 1,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
        "rope_scaling": changed["text_config"]["rope_scaling"],
        "rope_theta": 5000000,
    }
    changed["vision_config"] |= {"model_type": "qwen3_vl_moe", "out_hidden_size": 2048}
    return changed, 31_070_754_032


RELEASED = {
    **{f"Qwen3-{name}": released_qwen3(name) for name in QWEN3},
    **{f"Qwen3-VL-{name}": released_vl(name) for name in QWEN3_VL},
    "Qwen3-VL-30B-A3B": released_moe(),
}
CLASSES = {
    "qwen3": transformers.Qwen3Config,
    "qwen3_vl": transformers.Qwen3VLConfig,
    "qwen3_vl_moe": transformers.Qwen3VLMoeConfig,
}


class ReleasedConfigsTest(parameterized.TestCase):
    @parameterized.named_parameters((name, *about) for name, about in RELEASED.items())
    def test_every_parameter_is_there(self, released, count):
        parsed = config.parse_config(released)
        self.assertEqual(parsed.source, released)
        self.assertEqual(sum(math.prod(e.shape) for e in hf.entries(parsed)), count)

    @parameterized.named_parameters((name, *about) for name, about in RELEASED.items())
    def test_the_installed_transformers_writes_the_same_model(self, released, _):
        theirs = CLASSES[released["model_type"]](**copy.deepcopy(released))
        for written in (theirs.to_diff_dict(), theirs.to_dict()):
            self.assertIn("rope_parameters", written.get("text_config", written))
            self.assertEqual(config.parse_config(written), config.parse_config(released))


class ParseConfigTest(parameterized.TestCase):
    def test_reads_what_it_says(self):
        found = config.parse_config(source())
        self.assertEqual(found.text.mrope_section, (4, 2, 2))
        self.assertEqual(found.text.rope_theta, 5e6)
        self.assertEqual(found.vision.deepstack_visual_indexes, (1, 2))
        self.assertEqual(found.image_token_id, 194)
        self.assertFalse(found.tie_word_embeddings)
        self.assertTrue(config.parse_config(source("tiny_qwen3")).tie_word_embeddings)

    def test_both_forms_are_one_config_and_version_4_is_kept(self):
        old, new = config.parse_config(source()), config.parse_config(version_5())
        self.assertEqual(old, new)
        self.assertEqual(new.source, source())
        text = source("tiny_qwen3")
        rope = {"rope_theta": text.pop("rope_theta"), "rope_type": "default"}
        text = {k: v for k, v in text.items() if k != "rope_scaling"} | {"rope_parameters": rope}
        self.assertEqual(config.parse_config(text).source, source("tiny_qwen3"))

    def test_a_tied_model_says_so_where_either_version_looks(self):
        for section in ("", "text_config"):
            tied = source()
            (tied[section] if section else tied)["tie_word_embeddings"] = True
            (tied if section else tied["text_config"]).pop("tie_word_embeddings", None)
            found = config.parse_config(tied)
            self.assertTrue(found.tie_word_embeddings)
            self.assertTrue(found.source["tie_word_embeddings"])
            self.assertTrue(found.source["text_config"]["tie_word_embeddings"])

    def test_the_argument_is_left_alone(self):
        given = version_5()
        before = copy.deepcopy(given)
        config.parse_config(given)
        self.assertEqual(given, before)

    @parameterized.parameters(
        ({"model_type": "llama"}, "model_type: found 'llama'"),
        ({"use_sliding_window": True}, "use_sliding_window: found True, expected False"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias: found True"),
        ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', expected 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "found type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "found type 'linear'"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"head_dim": None}, "head_dim is missing"),
        ({"quantization_config": {}}, "quantization_config: found {}, expected None"),
        ({"num_key_value_heads": 3}, "does not divide"),
    )
    def test_text_refusals(self, change, message):
        with self.assertRaisesRegex(ValueError, message):
            config.parse_config(source("tiny_qwen3") | change)

    @parameterized.parameters(
        ("text_config", {"rope_scaling": None}, "mrope_interleaved"),
        ("text_config", {"tie_word_embeddings": True}, "tie_word_embeddings: found False"),
        ("text_config", {"head_dim": 32}, "expected a sum of 16"),
        ("vision_config", {"hidden_act": "gelu"}, "expected 'gelu_pytorch_tanh'"),
        ("vision_config", {"deepstack_visual_indexes": [2, 1]}, "expected ascending blocks"),
        ("vision_config", {"deepstack_visual_indexes": [4]}, "expected ascending blocks of 4"),
        ("vision_config", {"out_hidden_size": 8}, "expected the text's hidden_size 32"),
        ("vision_config", {"num_position_embeddings": 26}, "expected a square"),
        ("vision_config", {"deepstack_visual_indexes": []}, "expected ascending blocks"),
        ("vision_config", {"num_heads": 3}, "divides by 4"),
        ("vision_config", {"rope_parameters": {"rope_theta": 1e6}}, "rope_theta: found 1000000"),
    )
    def test_vision_refusals(self, section, change, message):
        changed = source()
        changed[section] |= change
        with self.assertRaisesRegex(ValueError, message):
            config.parse_config(changed)

    def test_all_that_is_wrong_is_said_at_once(self):
        changed = source("tiny_qwen3") | {"attention_bias": True, "hidden_act": "gelu"}
        with self.assertRaisesRegex(ValueError, "(?s)hidden_act.*attention_bias"):
            config.parse_config(changed)


if __name__ == "__main__":
    absltest.main()
