"""Mixtures of experts: against committed outputs of HF transformers, and a loop over tokens."""

import json
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from flax import nnx
from safetensors.numpy import load_file, save_file

from awm_jax.models import config, hf, moe, qwen3_vl

DATA = pathlib.Path(__file__).parents[1] / "data"
TINY = DATA / "tiny_qwen3_vl_moe"
IMAGE = 194


def setUpModule():
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


class MoETest(absltest.TestCase):
    def swapped(self):
        """The checkpoint as transformers 5 saves it: experts with their outputs first."""
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copy(TINY / "config.json", directory)
        tensors = load_file(TINY / "model.safetensors")
        for name, tensor in tensors.items():
            if ".experts." in name:
                tensors[name] = np.ascontiguousarray(tensor.swapaxes(1, 2))
        save_file(tensors, directory / "model.safetensors")
        return directory

    def test_logits_and_gradients_equal_those_of_transformers(self):
        model = hf.load_model(TINY, dtype="float32", remat=True)
        golden = np.load(DATA / "tiny_qwen3_vl_moe.npz")
        ids, mask = golden["right.input_ids"], golden["right.attention_mask"]
        layout = qwen3_vl.patch_layout(golden["image_grid_thw"], model.config.vision)
        pixels, positions = golden["pixel_values"].astype(np.float32), golden["right.position_ids"]
        targets = ids[:, 1:]
        trained = mask[:, 1:] * (targets != IMAGE)

        def loss(params):
            features = model.image_features(params, pixels, layout)
            logits = model.apply(
                params,
                ids,
                attention_mask=mask,
                position_ids=positions,
                image_features=features,
            )
            log_probs = jax.nn.log_softmax(logits[:, :-1])
            log_probs = jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
            return -jnp.sum(log_probs * trained) / trained.sum(), logits

        gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (value, logits), gradients = gradient(model.params)
        real = mask != 0
        np.testing.assert_allclose(logits[real], golden["logits"][real], atol=5e-5)
        self.assertAlmostEqual(float(value), float(golden["loss"]), places=5)
        found = hf.tensors(model.config, gradients)
        for name in [name for name in golden if name.startswith("grad.")]:
            tensor = found[name.removeprefix("grad.")]
            tensor = tensor.swapaxes(1, 2) if ".experts." in name else tensor
            np.testing.assert_allclose(tensor, golden[name], atol=2e-6, err_msg=name)

    def test_both_layouts_are_read_and_the_released_one_is_written(self):
        plain, swapped = (hf.load_model(d, dtype="float32") for d in (TINY, self.swapped()))
        jax.tree.map(np.testing.assert_array_equal, swapped.params, plain.params)
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        hf.save_model(swapped, swapped.params, directory)
        found, expected = (load_file(d / "model.safetensors") for d in (directory, TINY))
        jax.tree.map(np.testing.assert_array_equal, found, expected)

    def test_a_square_matrix_is_told_by_the_other(self):
        source = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
        source["text_config"]["moe_intermediate_size"] = 12  # gate_up_proj is [5, 24, 24]
        made = hf.init_model(config.parse_config(source), jax.random.key(0))
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        hf.save_model(made, made.params, directory)
        file = directory / "model.safetensors"
        for _ in range(2):
            loaded = hf.load_model(directory, dtype="float32")
            jax.tree.map(np.testing.assert_array_equal, loaded.params, made.params)
            save_file(
                {
                    name: np.ascontiguousarray(x.swapaxes(1, 2)) if ".experts." in name else x
                    for name, x in load_file(file).items()
                },
                file,
            )

    def test_a_token_goes_through_its_likeliest_experts(self):
        shape = hf.load_config(TINY).text
        layer, rng = moe.SparseMLP(shape), np.random.default_rng(0)
        for holder, name in (
            (layer.gate, "kernel"),
            (layer.experts, "gate_up_proj"),
            (layer.experts, "down_proj"),
        ):
            size = getattr(holder, name).shape
            setattr(holder, name, nnx.Param(rng.standard_normal(size).astype(np.float32)))
        x = rng.standard_normal((2, 3, shape.hidden_size)).astype(np.float32)
        found = layer(x)
        inner = shape.moe_intermediate_size
        for row, time in np.ndindex(2, 3):
            scores = np.asarray(x[row, time] @ layer.gate.kernel[...], np.float64)
            shares = np.exp(scores - scores.max())
            best = np.argsort(shares)[-shape.num_experts_per_tok :]
            expected = 0.0
            for expert in best:
                gate_up = np.asarray(x[row, time] @ layer.experts.gate_up_proj[expert])
                gate, up = gate_up[:inner], gate_up[inner:]
                said = (gate / (1 + np.exp(-gate)) * up) @ layer.experts.down_proj[expert]
                expected += shares[expert] / shares[best].sum() * np.asarray(said)
            np.testing.assert_allclose(found[row, time], expected, rtol=1e-4, atol=1e-3)

    def test_refusals(self):
        source = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
        renamed = source | {"text_config": dict(source["text_config"])}
        renamed["text_config"]["num_local_experts"] = renamed["text_config"].pop("num_experts")
        self.assertEqual(config.parse_config(renamed).source, source)
        for change, message in (
            ({"mlp_only_layers": [0]}, r"mlp_only_layers: found \[0\]"),
            ({"decoder_sparse_step": 2}, "decoder_sparse_step: found 2, expected 1"),
            ({"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ):
            changed = source | {"text_config": source["text_config"] | change}
            with self.assertRaisesRegex(ValueError, message):
                config.parse_config(changed)


if __name__ == "__main__":
    absltest.main()
