"""config.json in the forms of transformers 4 and 5, and what is refused."""

import copy
import json
import pathlib

from absl.testing import absltest, parameterized

from awm_jax.models import config

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
        ({"quantization_config": {}}, "quantised weights"),
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
        ("vision_config", {"rope_parameters": {"rope_theta": 1e6}}, "found rope_theta 1000000"),
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
