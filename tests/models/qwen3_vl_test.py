"""Images: against committed outputs of HF transformers, and against themselves."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import hf, qwen3_vl

DATA = pathlib.Path(__file__).parents[1] / "data"
IMAGE = 194


def setUpModule():
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


class Qwen3VLTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        cls.golden = dict(np.load(DATA / "tiny_qwen3_vl.npz"))
        cls.ids = cls.golden["right.input_ids"].astype(np.int32)
        cls.mask = cls.golden["right.attention_mask"]
        cls.positions = cls.golden["right.position_ids"].astype(np.int32)
        cls.pixels = cls.golden["pixel_values"].astype(np.float32)
        cls.grid = cls.golden["image_grid_thw"]
        cls.images = {"pixel_values": cls.pixels, "image_grid_thw": cls.grid}
        cls.encode = staticmethod(jax.jit(cls.model.image_features))
        cls.jitted = staticmethod(jax.jit(cls.model.apply))
        cls.layout = qwen3_vl.patch_layout(cls.grid, cls.model.config.vision)
        cls.features = cls.encode(cls.model.params, cls.pixels, cls.layout)

    def apply(self, ids, **inputs):
        """Op by op, so that what can be read on the host is."""
        return self.model.apply(self.model.params, jnp.asarray(ids), **inputs)

    def assert_logits(self, logits, expected=None, atol=5e-5):
        real = self.mask != 0
        np.testing.assert_allclose(logits[real], self.golden["logits"][real], atol=atol)

    def conversations(self):
        """(ids, positions `[3, time]`, features, logits) of each row alone."""
        rows, first = [], 0
        for row, keep in enumerate(self.mask != 0):
            count = int((self.ids[row][keep] == IMAGE).sum())
            features = jax.tree.map(lambda x: x[..., first : first + count, :], self.features)  # noqa: B023
            first += count
            positions, logits = self.positions[:, row, keep], self.golden["logits"][row][keep]
            rows.append((self.ids[row][keep], positions, features, logits))
        return rows

    # ---- against transformers

    def test_image_features_equal_those_of_transformers(self):
        np.testing.assert_allclose(self.features.merged, self.golden["merged"], atol=1e-5)
        np.testing.assert_allclose(self.features.deepstack, self.golden["deepstack"], atol=1e-5)

    def test_logits_equal_those_of_transformers(self):
        self.assert_logits(self.apply(self.ids, attention_mask=self.mask, **self.images))

    def test_left_padding_changes_nothing(self):
        mask = self.golden["left.attention_mask"]
        found = self.jitted(
            self.model.params,
            self.golden["left.input_ids"],
            attention_mask=mask,
            position_ids=self.golden["left.position_ids"],
            image_features=self.features,
        )
        expected = np.concatenate([logits for *_, logits in self.conversations()])
        np.testing.assert_allclose(found[mask != 0], expected, atol=5e-5)

    @parameterized.parameters("right", "left")
    def test_positions_equal_those_of_transformers(self, side):
        found = qwen3_vl.packed_positions(
            self.golden[f"{side}.input_ids"],
            self.grid,
            self.golden[f"{side}.attention_mask"],
            self.model.config,
        )
        np.testing.assert_array_equal(found, self.golden[f"{side}.position_ids"])

    def test_gradients_equal_those_of_transformers(self):
        model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32", remat=True)
        targets = self.ids[:, 1:]
        trained = self.mask[:, 1:] * (targets != IMAGE)

        def loss(params, pixels, layout):
            features = model.image_features(params, pixels, layout)
            logits = model.apply(
                params,
                self.ids,
                attention_mask=self.mask,
                position_ids=self.positions,
                image_features=features,
            )
            log_probs = jax.nn.log_softmax(logits[:, :-1])
            log_probs = jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
            return -jnp.sum(log_probs * trained) / trained.sum()

        gradient = jax.jit(jax.value_and_grad(loss))
        value, gradients = gradient(model.params, self.pixels, self.layout)
        self.assertAlmostEqual(float(value), float(self.golden["loss"]), places=5)
        visual, decoder = gradients["visual"], gradients["language_model"]["layers"]
        merger = visual["deepstack_merger_list"]
        for name, found in (
            ("lm_head.weight", gradients["lm_head"]["embedding"]),
            (
                "model.language_model.layers.1.self_attn.q_proj.weight",
                decoder["self_attn"]["q_proj"]["kernel"][1].T,
            ),
            (
                "model.visual.patch_embed.proj.weight",
                jnp.moveaxis(visual["patch_embed"]["proj"]["kernel"], -1, 0),
            ),
            ("model.visual.pos_embed.weight", visual["pos_embed"]["embedding"]),
            ("model.visual.blocks.0.attn.qkv.bias", visual["blocks"]["attn"]["qkv"]["bias"][0]),
            (
                "model.visual.deepstack_merger_list.1.linear_fc1.weight",
                merger["linear_fc1"]["kernel"][1].T,
            ),
            ("model.visual.merger.norm.weight", visual["merger"]["norm"]["scale"]),
        ):
            np.testing.assert_allclose(found, self.golden[f"grad.{name}"], atol=2e-6, err_msg=name)

    def test_greedy_decoding_equals_that_of_transformers(self):
        cache = self.model.init_cache(3, self.ids.shape[1] + 12)
        logits, cache = self.jitted(
            self.model.params,
            self.ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            image_features=self.features,
            cache=cache,
        )
        lengths = self.mask.sum(axis=1)
        token = jnp.argmax(logits[jnp.arange(3), lengths - 1], axis=-1)
        # After images the next position is behind the count of tokens: a delta for each row.
        position = self.positions.max(axis=(0, 2)) + 1
        tokens = []
        for number in range(12):
            tokens.append(token)
            logits, cache = self.jitted(
                self.model.params,
                token[:, None],
                position_ids=jnp.asarray(position + number)[:, None],
                cache=cache,
            )
            token = jnp.argmax(logits[:, 0], axis=-1)
        np.testing.assert_array_equal(np.stack(tokens, axis=1), self.golden["greedy"])

    # ---- against itself

    @parameterized.parameters(1, 5)
    def test_prefill_in_chunks_equals_one_shot(self, size):
        ids, positions, features, expected = self.conversations()[0]
        cache, found, first = self.model.init_cache(1, len(ids)), [], 0
        # Chunks that cut through images; the last is padded, and so are the features.
        padding = -len(ids) % size
        ids, positions = np.pad(ids, (0, padding)), np.pad(positions, ((0, 0), (0, padding)))
        features = jax.tree.map(lambda x: np.concatenate([x, x], axis=-2), features)
        for start in range(0, len(ids), size):
            chunk = slice(start, start + size)
            of_chunk = jax.tree.map(lambda x: x[..., first : first + size, :], features)  # noqa: B023
            first += int((ids[chunk] == IMAGE).sum())
            logits, cache = self.jitted(
                self.model.params,
                ids[None, chunk],
                attention_mask=(np.arange(start, start + size) < len(expected))[None],
                position_ids=positions[:, None, chunk],
                image_features=of_chunk,
                cache=cache,
            )
            found.append(logits[0])
        found = np.concatenate(found)[: len(expected)]
        np.testing.assert_allclose(found, expected, atol=5e-5)

    def test_packed_segments_equal_each_alone(self):
        rows = self.conversations()
        ids = np.concatenate([row[0] for row in rows] + [[0, IMAGE]])[None]
        segments = np.repeat([1, 2, 3, 0], [len(row[0]) for row in rows] + [2])[None]
        positions = np.concatenate([row[1] for row in rows] + [[[0, 0]] * 3], axis=1)[:, None]
        np.testing.assert_array_equal(
            qwen3_vl.packed_positions(ids, self.grid, segments, self.model.config), positions
        )
        found = self.jitted(
            self.model.params,
            ids,
            segment_ids=segments,
            position_ids=positions,
            image_features=self.features,
        )
        expected = np.concatenate([row[3] for row in rows])
        np.testing.assert_allclose(found[0, :-2], expected, atol=5e-5)

    def test_images_do_not_see_each_other_nor_their_padding(self):
        vision, last = self.model.config.vision, int(self.grid[2].prod())
        layout = qwen3_vl.patch_layout(self.grid[2:], vision, frames=3, tokens=26)
        pixels = np.full_like(self.pixels, 7.0)
        pixels[:last] = self.pixels[-last:]
        alone = self.encode(self.model.params, pixels, layout)
        for found, expected in zip(alone, self.features, strict=True):
            np.testing.assert_allclose(
                found[..., : last // 4, :], expected[..., -last // 4 :, :], atol=2e-6
            )

    def test_a_padded_layout_has_the_same_features(self):
        layout = qwen3_vl.patch_layout(
            self.grid, self.model.config.vision, frames=5, patches=64, tokens=40
        )
        pixels = np.concatenate([self.pixels, np.full((9, self.pixels.shape[1]), 7.0)])
        found = self.encode(self.model.params, pixels, layout)
        self.assertEqual(found.merged.shape, (40, 32))
        for padded, expected in zip(found, self.features, strict=True):
            np.testing.assert_allclose(padded[..., :26, :], expected, atol=2e-6)
        # Rows behind the last image token are free.
        self.assert_logits(
            self.jitted(
                self.model.params,
                self.ids,
                attention_mask=self.mask,
                position_ids=self.positions,
                image_features=found,
            )
        )

    def test_frames_of_one_image_do_not_see_each_other(self):
        vision = self.model.config.vision
        both = qwen3_vl.patch_layout(np.array([[2, 4, 6]]), vision, patches=56)
        apart = qwen3_vl.patch_layout(np.array([[1, 4, 6]] * 2), vision, patches=56)
        jax.tree.map(np.testing.assert_array_equal, both, apart)

    def test_text_first_then_images_under_one_jit(self):
        apply = jax.jit(self.model.apply)
        text = np.where(self.ids == IMAGE, 0, self.ids)
        inputs = {"attention_mask": self.mask, "position_ids": self.positions}
        apply(self.model.params, text, **inputs)
        self.assert_logits(
            apply(self.model.params, self.ids, image_features=self.features, **inputs)
        )

    def test_a_sampled_image_token_under_jit_is_a_plain_token(self):
        ids = self.ids.copy()
        row, last = 2, int(self.mask[2].sum()) - 1
        ids[row, last] = IMAGE  # behind all images: no feature is left for it
        found = self.jitted(
            self.model.params,
            ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            image_features=self.features,
        )
        self.assertTrue(np.isfinite(found).all())
        real = self.mask != 0
        real[row, last] = False
        np.testing.assert_allclose(found[real], self.golden["logits"][real], atol=5e-5)

    def test_memory_grows_with_the_number_of_images(self):
        def temporary(images):
            grid = np.array([[1, 32, 32]] * images)
            layout = qwen3_vl.patch_layout(grid, self.model.config.vision)
            pixels = jax.ShapeDtypeStruct((1024 * images, 96), jnp.float32)
            compiled = self.encode.lower(self.model.params, pixels, layout).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        # A dense mask over all images would need sixteen times as much.
        self.assertLess(temporary(16), 4.5 * temporary(4))

    # ---- refusals

    def test_image_tokens_and_features_are_counted(self):
        fewer = jax.tree.map(lambda x: x[..., :-1, :], self.features)
        for inputs, message in (
            ({}, "found 26 image tokens in input_ids, expected 0"),
            ({"image_features": fewer}, "found 26 image tokens in input_ids, expected 25"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.apply(self.ids, position_ids=self.positions, **inputs)
        text = np.where(self.ids == IMAGE, 0, self.ids)
        with self.assertRaisesRegex(ValueError, "found 0 image tokens in input_ids, expected 26"):
            self.apply(text, position_ids=self.positions, **self.images)

    def test_grids_and_image_tokens_agree(self):
        ids = np.array([[IMAGE] * 4 + [1, IMAGE, IMAGE]])
        segments = np.array([[1, 1, 1, 1, 1, 2, 2]])
        two, config = np.array([[1, 4, 4], [1, 2, 4]]), self.model.config
        found = qwen3_vl.packed_positions(ids, two, segments, config)
        np.testing.assert_array_equal(found[0, 0], [0, 0, 0, 0, 2, 0, 0])
        np.testing.assert_array_equal(found[2, 0], [0, 1, 0, 1, 2, 0, 1])
        with self.assertRaisesRegex(ValueError, r"found 2 image tokens for the grids \[\]"):
            qwen3_vl.packed_positions(ids, two[:1], segments, config)
        with self.assertRaisesRegex(ValueError, "found no image tokens for the image grids"):
            qwen3_vl.packed_positions(ids[:, :5], two, segments[:, :5], config)

    def test_what_is_traced_must_be_given(self):
        features = jax.jit(
            lambda grid: self.model.image_features(self.model.params, self.pixels, grid)
        )
        with self.assertRaisesRegex(ValueError, "image_grid_thw is traced"):
            features(self.grid)
        apply = jax.jit(
            lambda ids, features: self.model.apply(self.model.params, ids, image_features=features)
        )
        with self.assertRaisesRegex(ValueError, "position_ids are needed with images"):
            apply(self.ids, self.features)
        with self.assertRaisesRegex(ValueError, "position_ids are needed with a cache"):
            self.apply(self.ids[1:2, :5], cache=self.model.init_cache(1, 8))

    def test_misfits_between_pixels_and_grids(self):
        with self.assertRaisesRegex(ValueError, r"found shape \(103, 96\), expected \(104, 96\)"):
            self.apply(self.ids, pixel_values=self.pixels[1:], image_grid_thw=self.grid)
        with self.assertRaisesRegex(ValueError, "expected image_grid_thw with them"):
            self.apply(self.ids, pixel_values=self.pixels)
        with self.assertRaisesRegex(ValueError, "expected pixel_values or image_features with it"):
            self.apply(self.ids, image_grid_thw=self.grid)
        vision = self.model.config.vision
        with self.assertRaisesRegex(ValueError, "rows and columns must divide by 2"):
            qwen3_vl.patch_layout(np.array([[1, 3, 4]]), vision)
        with self.assertRaisesRegex(ValueError, "expected at least {'frames': 3"):
            qwen3_vl.patch_layout(self.grid, vision, frames=2)


if __name__ == "__main__":
    absltest.main()
