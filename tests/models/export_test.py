"""What we write is loaded by HF transformers, every bit of it; where torch is installed."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import hf

try:
    import torch
    import transformers
except ImportError:
    torch = None

DATA = pathlib.Path(__file__).parents[1] / "data"
NAMES = ("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe")


def setUpModule():
    if torch is None:
        raise absltest.SkipTest("torch is not installed")


def theirs(directory, testcase):
    """A checkpoint as transformers loads it, which has to find all it wants and nothing else."""
    source = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, source["architectures"][0])
    model, found = kind.from_pretrained(
        directory, output_loading_info=True, dtype="auto", attn_implementation="eager"
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        testcase.assertEmpty(found[what], what)
    return model.eval()


def logits(model, golden):
    """Of the right-padded conversations of a golden file."""
    inputs = {key: golden[f"right.{key}"] for key in ("input_ids", "attention_mask")}
    if "pixel_values" in golden:
        pixels = golden["pixel_values"].astype(np.float32)
        inputs |= {"pixel_values": pixels, "image_grid_thw": golden["image_grid_thw"]}
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == 194).astype(np.int32)
    with torch.no_grad():
        inputs = {key: torch.from_numpy(value) for key, value in inputs.items()}
        return model(**inputs, use_cache=False).logits.numpy()


class ExportTest(parameterized.TestCase):
    def exported(self, directory, dtype="float32"):
        out = self.folder()
        model = hf.load_model(directory, dtype=dtype)
        hf.save_model(model, model.params, out, shard_bytes=20_000)
        return out

    def folder(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def assert_same_bits(self, found, expected):
        found, expected = found.state_dict(), expected.state_dict()
        self.assertEqual(found.keys(), expected.keys())
        for key, tensor in expected.items():
            self.assertEqual(found[key].dtype, tensor.dtype)
            self.assertTrue(torch.equal(found[key], tensor), key)

    @parameterized.parameters(*NAMES)
    def test_transformers_finds_the_model_that_was_loaded_here(self, name):
        given, written = (theirs(d, self) for d in (DATA / name, self.exported(DATA / name)))
        self.assert_same_bits(written, given)
        golden = dict(np.load(DATA / f"{name}.npz"))
        found, real = logits(written, golden), golden["right.attention_mask"] != 0
        np.testing.assert_array_equal(found, logits(given, golden))
        np.testing.assert_allclose(found[real], golden["logits"][real], atol=2e-5)

    @parameterized.parameters(*NAMES)
    def test_what_transformers_5_wrote_is_what_was_there_before(self, name):
        # Experts have their outputs first then, and the config another form.
        given, saved = theirs(DATA / name, self), self.folder()
        given.save_pretrained(saved)
        self.assertIn("rope_parameters", (saved / "config.json").read_text(encoding="utf-8"))
        self.assert_same_bits(theirs(self.exported(saved), self), given)

    def test_a_tied_model_of_images_in_bfloat16(self):
        given, saved = theirs(DATA / "tiny_qwen3_vl", self), self.folder()
        given.config.tie_word_embeddings = True
        given.tie_weights()
        given.bfloat16().save_pretrained(saved)
        written = theirs(self.exported(saved, "bfloat16"), self)
        self.assert_same_bits(written, theirs(saved, self))
        self.assertTrue(torch.equal(written.lm_head.weight, given.get_input_embeddings().weight))


if __name__ == "__main__":
    absltest.main()
