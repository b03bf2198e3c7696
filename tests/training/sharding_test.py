"""The same update on every mesh, and parameters where the rules say."""

import dataclasses
import functools
import json
import pathlib
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from awm_jax.models import attention, generate, hf
from awm_jax.models import config as config_lib
from awm_jax.rl import losses
from awm_jax.training import batch as batch_lib
from awm_jax.training import grpo, sharding, state

DATA = pathlib.Path(__file__).parents[1] / "data"
MESHES = [
    (data, fsdp, 8 // data // fsdp)
    for data in (1, 2, 4, 8)
    for fsdp in (1, 2, 4, 8)
    if data * fsdp <= 8
]


def widened_config():
    """The tiny Qwen3-VL with eight heads of each kind, so that any mesh of eight splits them."""
    source = json.loads((DATA / "tiny_qwen3_vl" / "config.json").read_text())
    source["text_config"] |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    return config_lib.parse_config(source)


def full_batch(config, rows=8) -> batch_lib.PolicyBatch:
    """Packed rows of two segments, images in them, everything random."""
    rng, time, tokens = np.random.default_rng(0), 12, rows
    input_ids = rng.integers(0, 190, (rows, time)).astype(np.int32)
    input_ids[:, 2] = config.image_token_id
    segment_ids = np.repeat([[1] * 6 + [2] * 5 + [0]], rows, axis=0).astype(np.int32)
    predictor = (np.arange(rows)[:, None] * time + np.array([[2, 3, 4, 7]])).astype(np.int32)
    taps = 1 + len(config.vision.deepstack_visual_indexes)
    return batch_lib.PolicyBatch(
        input_ids=input_ids,
        segment_ids=segment_ids,
        position_ids=np.repeat([[[*range(6), *range(5), 0]] * rows], 3, axis=0).astype(np.int32),
        image_features=rng.normal(size=(tokens, taps, config.text.hidden_size)).astype(np.float32),
        predictor=predictor,
        targets=rng.integers(0, 190, predictor.shape).astype(np.int32),
        mask=rng.random(predictor.shape) < 0.8,
        old_log_probs=rng.normal(-5.3, 0.1, predictor.shape).astype(np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        trajectory=np.arange(rows, dtype=np.int32) // 2,
    )


class TrainStepTest(parameterized.TestCase):
    """One device and every mesh of eight: to 1e-5, float32 sums taken in another order."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.init_model(widened_config(), jax.random.key(0))
        cls.batch = full_batch(cls.model.config)
        cls.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.9))
        cls.alone = cls.begun(None)[1]

    @classmethod
    def begun(cls, mesh, batch=None, **options):
        """The update, what a micro-batch gives, and the state before the update."""
        params = cls.model.params
        constraints = {} if mesh is None else sharding.model_options(mesh)
        if mesh is not None:
            params = jax.device_put(params, sharding.shardings(params, constraints.pop("place")))
        model = type(cls.model)(cls.model.config, params, remat=True, **constraints)
        update = grpo.make_update(
            model,
            {"visual": params["visual"]},
            cls.optimizer,
            functools.partial(losses.clipped_policy_loss, aggregate="token"),
            banned=jnp.zeros(model.config.text.vocab_size, bool).at[7].set(True),
            temperature=0.7,
            chunk_size=8,
            mesh=mesh,
            **options,
        )
        trained = {name: tree for name, tree in params.items() if name != "visual"}
        begin = state.initial_state(trained, cls.optimizer)
        return update, update.accumulate(begin.params, None, batch or cls.batch), begin

    def assert_laid(self, tree, mesh):
        place = sharding.placement(mesh)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
            expected = place(sharding.path_of(keys), leaf.shape)
            self.assertTrue(leaf.sharding.is_equivalent_to(expected, leaf.ndim), keys)

    def test_a_kernel_sees_each_devices_rows_and_heads(self):
        mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
        rng = np.random.default_rng(0)
        query, key, value = (
            rng.standard_normal((8, 6, heads, 4), np.float32) for heads in (4, 2, 2)
        )
        segments = jnp.asarray(rng.integers(1, 3, (8, 6)).cumsum(axis=1))

        def kernel(query, key, value, segments):
            mask = attention.packed_visibility(segments).mask
            return attention.attention(query, key, value, mask)

        def on_a_part(*parts):
            self.assertEqual([part.shape[0] for part in parts], [2] * 4)
            self.assertEqual([part.shape[2] for part in parts[:3]], [2, 1, 1])
            return kernel(*parts)

        np.testing.assert_allclose(
            jax.jit(sharding.attention_per_device(mesh)(on_a_part))(query, key, value, segments),
            kernel(query, key, value, segments),
            atol=1e-6,
        )

    @parameterized.parameters(*MESHES, (1, 1, 1))
    def test_every_mesh_gives_the_same_loss_and_gradients(self, data, fsdp, tensor):
        mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
        _, found, _ = self.begun(mesh)
        self.assert_laid(found.gradients, mesh)
        weight = float(self.alone.loss.weight)
        self.assertGreater(float(optax.tree.norm(self.alone.gradients)) / weight, 1.0)
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf: leaf / weight, found.gradients),
            jax.tree.map(lambda leaf: leaf / weight, self.alone.gradients),
            atol=1e-5,
        )
        np.testing.assert_allclose(found.loss, self.alone.loss, rtol=1e-5)
        chex.assert_trees_all_close(found.metrics, self.alone.metrics, rtol=1e-4, atol=1e-5)

    def test_state_and_moments_stay_where_the_rules_say(self):
        mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
        update, _, begin = self.begun(mesh)
        self.assert_laid(begin.opt_state[1][0].trace, mesh)
        after, metrics = grpo.update_state(update, begin, [self.batch, self.batch], left_out=3)
        self.assert_laid(after.params, mesh)
        self.assert_laid(after.opt_state[1][0].trace, mesh)
        # Clipped to norm 1, at rate 1.
        before = jax.device_get(self.begun(None)[2].params)
        moved = optax.tree.norm(optax.tree.sub(jax.device_get(after.params), before))
        self.assertAlmostEqual(float(moved), 1.0, places=4)
        weight = 2 * float(self.alone.loss.weight) + 3
        expected = 2 * float(optax.tree.norm(self.alone.gradients)) / weight
        self.assertAlmostEqual(metrics["grad_norm"], expected, places=4)

    def test_master_weights_and_gradients_are_float32(self):
        _, found, begin = self.begun(None, dtype="bfloat16")
        chex.assert_trees_all_equal_dtypes(begin.params, self.alone.gradients)
        chex.assert_trees_all_equal_dtypes(found.gradients, self.alone.gradients)
        moved = optax.tree.norm(optax.tree.sub(found.gradients, self.alone.gradients))
        self.assertGreater(moved, 0.0)

    def test_a_frequent_tokens_gradient_is_summed_in_float32(self):
        """704 occurrences: 0.8 % off beside 2.4 % where the embedding is bfloat16 as well."""
        batch = full_batch(self.model.config, rows=64)
        of_image = batch.input_ids == self.model.config.image_token_id
        batch = batch._replace(input_ids=np.where(of_image, batch.input_ids, 5))

        def gradient(model, dtype=None):
            with mock.patch.object(type(self), "model", model):
                gradients = self.begun(None, batch, dtype=dtype)[1].gradients
            return np.asarray(gradients["language_model"]["embed_tokens"]["embedding"][5], float)

        rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), self.model.params)
        exact, mixed = gradient(self.model), gradient(self.model, "bfloat16")
        coarse = gradient(dataclasses.replace(self.model, params=rounded))
        self.assertLess(np.linalg.norm(mixed - exact), 0.5 * np.linalg.norm(coarse - exact))


class PlacementTest(parameterized.TestCase):
    def spec(self, path, shape):
        mesh = sharding.make_mesh(data=1, fsdp=4, tensor=2)
        return sharding.placement(mesh)(path, shape).spec

    @parameterized.parameters(
        ("language_model/layers/self_attn/q_proj/kernel", (3, 32, 64), (None, "fsdp", "tensor")),
        ("language_model/layers/mlp/down_proj/kernel", (3, 40, 32), (None, "tensor", "fsdp")),
        ("language_model/embed_tokens/embedding", (200, 32), (("fsdp", "tensor"), None)),
        # 201 rows do not divide over eight; the features do.
        ("lm_head/embedding", (201, 32), (None, ("fsdp", "tensor"))),
        ("language_model/layers/self_attn/q_norm/scale", (3, 16), (None, None)),
        ("language_model/layers/mlp/experts/down_proj", (3, 8, 20, 32), (None, ("fsdp", "tensor"))),
        ("language_model/layers/mlp/gate/kernel", (3, 32, 8), (None, "fsdp")),
        ("visual/merger/linear_fc1/kernel", (64, 64), (None, ("fsdp", "tensor"))),
        # Four of eight ways divide twenty.
        ("visual/blocks/mlp/linear_fc1/kernel", (4, 16, 20), (None, None, "fsdp")),
    )
    def test_rules(self, path, shape, expected):
        def padded(axes):
            """A tuple of tuples, one an axis of the array."""
            axes = [(a,) if isinstance(a, str) else a or () for a in axes]
            return axes + [()] * (len(shape) - len(axes))

        self.assertEqual(padded(self.spec(path, shape)), padded(expected))

    def test_for_sampling_the_decoder_is_gathered_and_cast(self):
        mesh = sharding.make_mesh(fsdp=4, tensor=2)
        model = hf.load_model(
            DATA / "tiny_qwen3_vl", dtype="float32", place=sharding.placement(mesh)
        )
        found = sharding.for_sampling(model.params, mesh=mesh, dtype="bfloat16")
        kernel = found["language_model"]["layers"]["self_attn"]["q_proj"]["kernel"]
        self.assertEqual(kernel.sharding.shard_shape(kernel.shape), (3, 32, 32))
        self.assertEqual(kernel.dtype, jnp.bfloat16)
        stored = model.params["language_model"]["layers"]["self_attn"]["q_proj"]["kernel"]
        self.assertEqual(stored.sharding.shard_shape(stored.shape), (3, 8, 32))
        again = sharding.for_sampling(found, mesh=mesh, dtype="bfloat16")
        jax.tree.map(self.assertIs, again, found)

    def test_a_cache_is_spread_by_rows_and_heads(self):
        mesh = sharding.make_mesh(fsdp=4, tensor=2)
        options = sharding.model_options(mesh)
        del options["place"]
        host = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        model = type(host)(host.config, host.params, **options)
        cache = jax.jit(lambda: model.init_cache(8, 6))()
        self.assertEqual(cache.key.sharding.shard_shape(cache.key.shape), (3, 2, 1, 6, 16))
        self.assertEqual(cache.index.sharding.shard_shape(cache.index.shape), (2,))

    @parameterized.parameters((1, 8, 1), (2, 2, 2), (1, 4, 2))
    def test_sampling_on_a_mesh_gives_the_tokens_of_one_device(self, data, fsdp, tensor):
        host = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
        options = sharding.model_options(mesh)
        place = sharding.shardings(host.params, options.pop("place"))
        spread = type(host)(host.config, jax.device_put(host.params, place), **options)
        params = sharding.for_sampling(spread.params, mesh=mesh, dtype="float32")

        def sampled(model, params):
            rng = np.random.default_rng(0)
            tokens, lengths = rng.integers(0, 190, (8, 5), np.int32), np.full(8, 5, np.int32)
            positions = np.broadcast_to(np.arange(5, dtype=np.int32), (3, 8, 5))
            rows, zeros = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
            store = generate.make_store(params, model=model, rows=8, slots=12)
            store = generate.prefill(
                store, params, rows, zeros, tokens, lengths - 1, positions, None,
                model=model, reach=12,
            )  # fmt: skip
            pending = generate.Pending(
                rows, lengths - 1, tokens[:, -1], zeros + 4, zeros, zeros + 6
            )
            return generate.decode(
                store, params, pending, generate.row_keys([(row,) for row in range(8)]),
                np.zeros(200, bool), np.zeros(0, np.int32), np.float32(1.0),
                model=model, reach=12, steps=6, choice=(1.0, 0, 0.0),
            )  # fmt: skip

        store, found = sampled(spread, params)
        held = store.key.sharding.shard_shape(store.key.shape)
        self.assertEqual(held[1:3], (8 // (data * fsdp), 2 // tensor))
        _, expected = sampled(host, host.params)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5)

    @parameterized.parameters((8, ("data", "fsdp")), (2, ("fsdp",)), (3, None))
    def test_rows_are_spread_as_far_as_they_divide(self, rows, expected):
        mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
        self.assertEqual(sharding.batch_spec(mesh, rows), expected)

    def test_a_head_whose_rows_do_not_divide_gets_banned_ones(self):
        mesh = sharding.make_mesh(fsdp=8)
        head, banned = sharding.padded_head(jnp.ones((21, 2)), np.zeros(21, bool), mesh)
        self.assertEqual(head.shape, (24, 2))
        np.testing.assert_array_equal(banned, [False] * 21 + [True] * 3)


class MistakesTest(absltest.TestCase):
    def test_devices_that_do_not_exist(self):
        with self.assertRaisesRegex(ValueError, "needs 32 devices, found 8 of kind 'cpu'"):
            sharding.make_mesh(fsdp=16, tensor=2)
        with self.assertRaisesRegex(ValueError, "'tensor': 0.*expected sizes of at least 1"):
            sharding.make_mesh(tensor=0)

    def test_a_mesh_that_does_not_divide_the_model(self):
        config = hf.load_config(DATA / "tiny_qwen3_vl")
        mesh = sharding.make_mesh(fsdp=2, tensor=4)
        with self.assertRaisesRegex(
            ValueError,
            "num_key_value_heads 2 does not divide over tensor = 4\n"
            ".*rows of a micro-batch 3 does not divide over data x fsdp = 2",
        ):
            sharding.check_mesh(mesh, config, rows=3)
        sharding.check_mesh(sharding.make_mesh(fsdp=4, tensor=2), config, rows=8)


if __name__ == "__main__":
    absltest.main()
