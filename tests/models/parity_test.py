"""Module by module against HF transformers, on the checkpoints of the research data.

They are larger than the committed goldens and have every intermediate: a test that fails
names the layer. Float32; the tolerances are some ten times what HF's own implementations of
attention differ by.
"""

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import hf, qwen3, qwen3_vl

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA")
PARITY = pathlib.Path(RESEARCH_DATA or ".") / "parity"
LOGITS, LOG_PROBS, VISION = 2e-4, 1e-4, 2e-5


def setUpModule():
    if RESEARCH_DATA is None:
        raise absltest.SkipTest("AWM_RESEARCH_DATA is not set")
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


def load(checkpoint, **options):
    return hf.load_model(PARITY / "ck" / checkpoint, dtype="float32", **options)


def golden(case):
    return dict(np.load(PARITY / "golden" / f"{case}.npz"))


def inputs(values):
    """What `apply` takes, out of a golden file."""
    given = {"attention_mask": values["in.attention_mask"]}
    if "in.pixel_values" in values:
        given["position_ids"] = values["pos.position_ids"].astype(np.int32)
    return jnp.asarray(values["in.input_ids"], jnp.int32), given


def layout(model, values):
    return qwen3_vl.patch_layout(values["in.image_grid_thw"], model.config.vision)


def token_log_probs(logits, ids):
    return jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], -1)[..., 0]


class ParityTest(parameterized.TestCase):
    def assert_outputs(self, logits, values, ids):
        real = values["in.attention_mask"] != 0
        np.testing.assert_allclose(logits[real], values["out.logits"][real], atol=LOGITS)
        pairs = real[:, 1:] & real[:, :-1]
        np.testing.assert_allclose(
            token_log_probs(logits, ids)[pairs], values["out.logprobs"][pairs], atol=LOG_PROBS
        )

    @parameterized.parameters("text_single", "text_left")
    def test_text(self, case):
        model, values = load("qwen3"), golden(f"qwen3.{case}")
        ids, given = inputs(values)
        self.assert_outputs(jax.jit(model.apply)(model.params, ids, **given), values, ids)

    @parameterized.parameters("img1", "mixed_left", "tools_right")
    def test_images(self, case):
        model, values = load("vl"), golden(f"vl.{case}")
        ids, given = inputs(values)
        np.testing.assert_array_equal(
            qwen3_vl.packed_positions(
                ids, values["in.image_grid_thw"], given["attention_mask"], model.config
            ),
            values["pos.position_ids"],
        )
        features = jax.jit(model.image_features)(
            model.params, values["in.pixel_values"], layout(model, values)
        )
        np.testing.assert_allclose(features.merged, values["vis.merged"], atol=VISION)
        for tap, found in enumerate(features.deepstack):
            if f"vis.deepstack.{tap}" in values:
                expected = values[f"vis.deepstack.{tap}"]
                np.testing.assert_allclose(found, expected, atol=VISION)
        logits = jax.jit(model.apply)(model.params, ids, image_features=features, **given)
        self.assert_outputs(logits, values, ids)

    @parameterized.parameters(False, True)
    def test_tied_and_untied(self, tied):
        model = load("vl_tied" if tied else "vl")
        head = model.output_embedding(model.params)
        embedding = model.params["language_model"]["embed_tokens"]["embedding"]
        self.assertEqual("lm_head" not in model.params, tied)
        self.assertEqual(bool((head == embedding).all()), tied)

    def test_inside_the_vision_tower(self):
        model, values = load("vl"), golden("vl.img1")
        tower = qwen3_vl.merged_tower(model.config.vision, model.params)
        where = layout(model, values)
        pixels = values["in.pixel_values"]
        patches = tower.patch_embed(pixels)
        np.testing.assert_allclose(patches, values["vis.patch_embed"], atol=VISION)
        x = tower.embed(pixels, where)
        expected = values["vis.pos_interp"] + values["vis.patch_embed"]
        np.testing.assert_allclose(x[0], expected, atol=VISION)
        cos, sin = tower.rotation(where)
        np.testing.assert_allclose(cos[0], values["vis.cos"], atol=VISION)
        np.testing.assert_allclose(sin[0], values["vis.sin"], atol=VISION)
        block = jax.jit(lambda block, x: block(x, cos, sin, where.valid[:, None]))
        for number in range(model.config.vision.depth):
            x = block(jax.tree.map(lambda p: p[number], tower.blocks), x)  # noqa: B023
            expected = values[f"vis.block.{number}"]
            np.testing.assert_allclose(x[0], expected, atol=VISION, err_msg=f"block {number}")

    def test_inside_the_decoder(self):
        values = golden("vl.mixed_left")
        inside = []
        model = load("vl", constrain=lambda x: (jax.debug.callback(inside.append, x), x)[1])
        ids, given = inputs(values)
        features = model.image_features(
            model.params, values["in.pixel_values"], values["in.image_grid_thw"]
        )
        inside.clear()
        angles = qwen3.rotary_angles(given["position_ids"], model.config.text)
        real = given["attention_mask"] != 0
        half = angles.shape[-1]
        np.testing.assert_allclose(
            jnp.cos(angles)[real], values["pos.cos"][real][:, :half], atol=2e-6
        )
        hidden = model.hidden(model.params, ids, image_features=features, **given)
        jax.effects_barrier()
        # What goes into layer k + 1 is what layer k and DeepStack's tap k made.
        expected = [values[f"txt.layer_in.{k}"] for k in range(model.config.text.num_hidden_layers)]
        expected.append(values["txt.prenorm"])
        self.assertLen(inside, len(expected))
        for number, (found, wanted) in enumerate(zip(inside, expected, strict=True)):
            np.testing.assert_allclose(
                found[real], wanted[real], atol=1e-4, err_msg=f"input of layer {number}"
            )
        np.testing.assert_allclose(hidden[real], values["out.last_hidden"][real], atol=1e-4)

    @parameterized.parameters(("vl", "img1"), ("vl", "mixed_left"), ("qwen3", "text_left"))
    def test_gradients(self, checkpoint, case):
        model, values = load(checkpoint, remat=True), golden(f"{checkpoint}.{case}")
        ids, given = inputs(values)
        trained = values["in.loss_mask"]

        def loss(params):
            if checkpoint == "vl":
                features = model.image_features(
                    params, values["in.pixel_values"], values["in.image_grid_thw"]
                )
                logits = model.apply(params, ids, image_features=features, **given)
            else:
                logits = model.apply(params, ids, **given)
            return -jnp.sum(token_log_probs(logits, ids) * trained) / trained.sum()

        value, gradients = jax.jit(jax.value_and_grad(loss))(model.params)
        self.assertAlmostEqual(float(value), float(values["out.loss"]), places=4)
        tensors = hf.tensors(model.config, gradients)
        names = [name for name in values if name.startswith("grad.")]
        self.assertGreaterEqual(len(names), 8)
        for name in names:
            scale = np.abs(values[name]).max()
            np.testing.assert_allclose(
                tensors[name.removeprefix("grad.")], values[name], atol=2e-4 * scale, err_msg=name
            )

    @parameterized.parameters(("vl", "img1"), ("vl", "mixed_left"), ("qwen3", "text_left"))
    def test_greedy_decoding(self, checkpoint, case):
        model, values = load(checkpoint), golden(f"{checkpoint}.{case}")
        ids, given = inputs(values)
        apply = jax.jit(model.apply)
        if checkpoint == "vl":
            given["image_features"] = model.image_features(
                model.params, values["in.pixel_values"], values["in.image_grid_thw"]
            )
        cache = model.init_cache(len(ids), ids.shape[1] + 20)
        logits, cache = apply(model.params, ids, cache=cache, **given)
        next_position = np.asarray(cache.index) + values.get("pos.rope_deltas", np.zeros(1)).ravel()
        for number, expected in enumerate(values["gen.logits"].swapaxes(0, 1)):
            np.testing.assert_allclose(logits[:, -1], expected, atol=LOGITS)
            token = jnp.argmax(logits[:, -1], axis=-1)
            np.testing.assert_array_equal(token, values["gen.tokens"][:, number])
            positions = jnp.asarray(next_position + number, jnp.int32)[:, None]
            logits, cache = apply(model.params, token[:, None], position_ids=positions, cache=cache)


if __name__ == "__main__":
    absltest.main()
