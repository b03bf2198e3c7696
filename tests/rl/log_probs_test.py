import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from awm_jax.rl import log_probs

VOCAB, HIDDEN, BATCH, TIME = 304, 16, 2, 12
TEMPERATURE = 0.7


def _inputs(seed=0, dtype=np.float32, scale=1.0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(BATCH, TIME, HIDDEN), scale=scale)
    head = rng.normal(size=(VOCAB, HIDDEN), scale=0.5)
    banned = np.arange(VOCAB) >= VOCAB - 20
    banned[:3] = True
    targets = rng.integers(3, VOCAB - 20, (BATCH, TIME))
    weights = rng.normal(size=(2, BATCH, TIME)).astype(np.float32)
    return jnp.asarray(hidden, dtype), jnp.asarray(head, dtype), targets, banned, weights


def _plain(hidden, head, targets, banned, temperature=TEMPERATURE):
    """The whole logits, as the sampler would mask them."""
    logits = jnp.einsum("btd,vd->btv", hidden, head) / temperature
    every = jax.nn.log_softmax(jnp.where(banned[None, None], -jnp.inf, logits))
    chosen = jnp.take_along_axis(every, targets[..., None], axis=-1)[..., 0]
    finite = jnp.where(banned[None, None], 0.0, every)
    return chosen, -(jnp.exp(every) * finite).sum(axis=-1)


def _gradients(fn, hidden, head, weights):
    def weighted(hidden, head):
        return sum(
            (weight * value).sum() for weight, value in zip(weights, fn(hidden, head), strict=True)
        )

    return jax.grad(weighted, argnums=(0, 1))(hidden, head)


def _head_gradient_in_float64(hidden, head, targets, banned, weights):
    """Of the weighted log-probs at temperature 1, by hand."""
    states = np.asarray(hidden, np.float64).reshape(-1, HIDDEN)
    logits = states @ np.asarray(head, np.float64).T
    logits[:, banned] = -np.inf
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    d_logits = np.eye(VOCAB)[targets.reshape(-1)] - share
    return (d_logits * weights.reshape(-1, 1)).T @ states


class TokenLogProbsTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(
        # 24 tokens over 304 ids: three blocks (the last starts early), two, and one.
        ("smallest_blocks", 1),
        ("two_blocks", 12),
        ("one_block", 1000),
    )
    def test_equals_the_whole_softmax(self, chunk_size):
        hidden, head, targets, banned, weights = _inputs()
        fn = functools.partial(
            log_probs.token_log_probs,
            targets=targets,
            banned=banned,
            chunk_size=chunk_size,
            temperature=TEMPERATURE,
            with_entropy=True,
        )
        plain = functools.partial(_plain, targets=targets, banned=banned)
        for found, expected in zip(
            self.variant(fn)(hidden, head), plain(hidden, head), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=2e-5)
        found = self.variant(lambda h, w: _gradients(fn, h, w, weights))(hidden, head)
        for one, other in zip(found, _gradients(plain, hidden, head, weights), strict=True):
            np.testing.assert_allclose(one, other, atol=5e-5)

    def test_without_entropy_is_the_same_log_prob_and_gradient(self):
        hidden, head, targets, banned, weights = _inputs()
        options = {"targets": targets, "banned": banned, "chunk_size": 8}
        only = functools.partial(log_probs.token_log_probs, **options)
        both = functools.partial(only, with_entropy=True)
        np.testing.assert_array_equal(only(hidden, head), both(hidden, head)[0])
        one = _gradients(lambda *x: (only(*x),), hidden, head, weights[:1])
        other = _gradients(both, hidden, head, weights * np.array([1.0, 0.0])[:, None, None])
        for x, y in zip(one, other, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)

    def test_shapes_without_a_batch_axis(self):
        hidden, head, targets, *_ = _inputs()
        flat = log_probs.token_log_probs(
            hidden.reshape(-1, HIDDEN), head, targets.reshape(-1), chunk_size=5
        )
        square = log_probs.token_log_probs(hidden, head, targets, chunk_size=5)
        np.testing.assert_array_equal(flat, square.reshape(-1))

    def test_large_logits_stay_finite(self):
        hidden, head, targets, banned, weights = _inputs(scale=200.0)
        fn = functools.partial(
            log_probs.token_log_probs,
            targets=targets,
            banned=banned,
            chunk_size=1,
            with_entropy=True,
        )
        plain = _plain(hidden, head, targets, banned, 1.0)
        for found, expected in zip(fn(hidden, head), plain, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
        for gradient in _gradients(fn, hidden, head, weights):
            self.assertTrue(np.isfinite(gradient).all())

    def test_banned_ids_have_no_probability_and_no_gradient(self):
        hidden, head, targets, banned, weights = _inputs()
        fn = functools.partial(
            log_probs.token_log_probs, targets=targets, banned=banned, chunk_size=4
        )
        louder = head.at[banned].set(1e4)
        np.testing.assert_array_equal(fn(hidden, louder), fn(hidden, head))
        _, gradient = _gradients(lambda *x: (fn(*x),), hidden, louder, weights[:1])
        np.testing.assert_array_equal(gradient[banned], np.zeros((23, HIDDEN)))
        forbidden = log_probs.token_log_probs(
            hidden, head, np.zeros_like(targets), banned=banned, chunk_size=4
        )
        self.assertTrue((forbidden == -np.inf).all())

    def test_garbage_without_weight_reaches_no_gradient(self):
        hidden, head, targets, banned, weights = _inputs()
        mask = np.arange(TIME)[None] < np.array([[5], [9]])
        fn = functools.partial(
            log_probs.token_log_probs, banned=banned, chunk_size=4, with_entropy=True
        )

        def gradients(hidden, targets):
            def masked(hidden, head):
                return tuple(jnp.where(mask, x, 0.0) for x in fn(hidden, head, targets))

            return _gradients(masked, hidden, head, weights)

        clean = gradients(jnp.where(mask[..., None], hidden, 0.0), targets)
        dirty = gradients(
            jnp.where(mask[..., None], hidden, jnp.nan), np.where(mask, targets, -100)
        )
        for one, other in zip(dirty, clean, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_target_outside_the_vocabulary_is_nan(self):
        hidden, head, targets, *_ = _inputs()
        targets = targets.copy()
        targets[0, 0], targets[1, 1] = -1, VOCAB
        found = log_probs.token_log_probs(hidden, head, targets, chunk_size=4)
        self.assertTrue(np.isnan(found[0, 0]) and np.isnan(found[1, 1]))
        self.assertEqual(np.isnan(found).sum(), 2)

    def test_finite_differences(self):
        hidden, head, targets, banned, weights = _inputs()
        hidden, head, targets = hidden[:1, :3, :4], head[:40, :4], targets[:1, :3] % 30
        banned, weights = np.arange(40) >= 30, weights[:, :1, :3]

        def weighted(hidden, head):
            found = log_probs.token_log_probs(
                hidden, head, targets, chunk_size=1, banned=banned, with_entropy=True
            )
            return sum((w * x).sum() for w, x in zip(weights, found, strict=True))

        jax.test_util.check_grads(weighted, (hidden, head), order=1, modes=["rev"], rtol=1e-2)

    def test_head_gradient_with_bf16_operands(self):
        hidden, head, targets, banned, weights = _inputs(seed=3, dtype=jnp.bfloat16)
        fn = functools.partial(
            log_probs.token_log_probs, targets=targets, banned=banned, chunk_size=1
        )
        # An fp32 head, cast to the states' dtype inside: its gradient stays fp32.
        _, found = _gradients(lambda *x: (fn(*x),), hidden, head.astype(jnp.float32), weights[:1])
        self.assertEqual(found.dtype, jnp.float32)
        exact = _head_gradient_in_float64(hidden, head, targets, banned, weights[0])
        error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        self.assertLess(error, 0.0025)

    @parameterized.parameters(
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"chunk_size": 4, "temperature": 0.0}, "temperature must be above 0"),
        ({"chunk_size": 4, "split": "rows"}, 'split must be "vocab" or "tokens"'),
    )
    def test_wrong_options_are_named(self, options, message):
        hidden, head, targets, *_ = _inputs()
        with self.assertRaisesRegex(ValueError, message):
            log_probs.token_log_probs(hidden, head, targets, **options)


class MeshTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        if jax.device_count() < 8:
            self.skipTest(f"needs 8 devices, found {jax.device_count()}")
        self.mesh = jax.make_mesh(
            (2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3
        )

    @parameterized.parameters("vocab", "tokens")
    def test_equals_one_device(self, split):
        hidden, head, targets, banned, weights = _inputs()
        # 22 tokens do not divide over 8 devices.
        hidden, targets, weights = hidden[:, 1:], targets[:, 1:], weights[..., 1:]
        fn = functools.partial(
            log_probs.token_log_probs,
            targets=targets,
            banned=banned,
            chunk_size=2,
            temperature=TEMPERATURE,
            with_entropy=True,
        )
        spread = functools.partial(fn, mesh=self.mesh, split=split)

        @jax.jit
        def on_mesh(hidden, head):
            return spread(hidden, head), _gradients(spread, hidden, head, weights)

        values, gradients = on_mesh(hidden, head)
        for found, expected in zip(values, fn(hidden, head), strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-5)
        for found, expected in zip(gradients, _gradients(fn, hidden, head, weights), strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-5)

    @parameterized.parameters("vocab", "tokens")
    def test_head_gradient_with_bf16_operands(self, split):
        hidden, head, targets, banned, weights = _inputs(seed=3, dtype=jnp.bfloat16)
        fn = functools.partial(
            log_probs.token_log_probs,
            targets=targets,
            banned=banned,
            chunk_size=1,
            mesh=self.mesh,
            split=split,
        )
        gradients = jax.jit(lambda h, w: _gradients(lambda *x: (fn(*x),), h, w, weights[:1]))
        _, found = gradients(hidden, head.astype(jnp.float32))
        self.assertEqual(found.dtype, jnp.float32)
        exact = _head_gradient_in_float64(hidden, head, targets, banned, weights[0])
        self.assertLess(np.linalg.norm(found - exact) / np.linalg.norm(exact), 0.0025)

    @parameterized.parameters("vocab", "tokens")
    def test_the_head_is_not_gathered_in_the_loop(self, split):
        hidden, head, targets, _, weights = _inputs()
        spread = functools.partial(
            log_probs.token_log_probs, targets=targets, chunk_size=1, mesh=self.mesh, split=split
        )
        fn = jax.jit(lambda h, w: _gradients(lambda *x: (spread(*x),), h, w, weights[:1]))
        text = str(jax.make_jaxpr(fn)(hidden, head))
        outside = {"all_gather": 0, "reduce_scatter": 0}
        for line in text.splitlines():
            for name in outside:
                outside[name] += f" {name}[" in line
        # Forward and backward gather the states, or the head and the banned ids; once each.
        self.assertEqual(outside["all_gather"], 2 if split == "vocab" else 4)
        self.assertEqual(outside["reduce_scatter"], 1)

    def test_vocabulary_that_does_not_divide_is_refused(self):
        hidden, head, targets, *_ = _inputs()
        with self.assertRaisesRegex(ValueError, "303 rows does not divide over 8 devices"):
            log_probs.token_log_probs(
                hidden, head[:303], targets % 300, chunk_size=4, mesh=self.mesh
            )


class SelectPredictorsTest(absltest.TestCase):
    def test_states_before_the_trained_tokens(self):
        hidden, head, targets, *_ = _inputs()
        mask = np.zeros((BATCH, TIME), bool)
        mask[0, 4:6] = mask[1, 11] = True
        states, tokens, positions = log_probs.select_predictors(
            hidden, targets, mask, max_targets=5
        )
        np.testing.assert_array_equal(tokens, [*targets[0, 4:6], targets[1, 11], -1, -1])
        np.testing.assert_array_equal(states[:2], hidden[0, 3:5])
        found = log_probs.token_log_probs(states, head, tokens, chunk_size=4)
        back = jnp.zeros(mask.size).at[positions].set(found, mode="drop").reshape(mask.shape)
        every = log_probs.token_log_probs(hidden[:, :-1], head, targets[:, 1:], chunk_size=4)
        np.testing.assert_allclose(
            back[:, 1:], np.where(mask[:, 1:], every, 0.0), rtol=1e-5, atol=1e-6
        )

    def test_too_many_targets_are_loud(self):
        hidden, _, targets, *_ = _inputs()
        mask = np.ones((BATCH, TIME), bool)
        states, *_ = log_probs.select_predictors(hidden, targets, mask, max_targets=5)
        self.assertTrue(np.isnan(states).all())


class MemoryTest(absltest.TestCase):
    """What the compiler reports, for a head large enough to tell."""

    def _temporaries(self, prompt, chunk_size=None):
        vocab, width, own = 32_768, 64, 512
        tokens = jax.ShapeDtypeStruct((1, prompt + own), jnp.int32)
        states = jax.ShapeDtypeStruct((1, prompt + own, width), jnp.float32)
        head = jax.ShapeDtypeStruct((vocab, width), jnp.float32)

        def loss(hidden, head, tokens):
            mask = (jnp.arange(prompt + own) >= prompt)[None]
            if chunk_size is None:
                every = jax.nn.log_softmax(hidden[:, prompt - 1 : -1] @ head.T)
                targets = tokens[:, prompt:, None]
                return jnp.take_along_axis(every, targets, axis=-1).sum()
            states, targets, _ = log_probs.select_predictors(hidden, tokens, mask, max_targets=own)
            return log_probs.token_log_probs(states, head, targets, chunk_size=chunk_size).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(states, head, tokens).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def test_temporaries_are_small_and_the_prompt_costs_no_logits(self):
        short, long = self._temporaries(64, 8), self._temporaries(4096, 8)
        whole = self._temporaries(64)
        head_gradient = 32_768 * 64 * 4
        self.assertLess(short - head_gradient, whole / 10)
        # A few arrays of [tokens, hidden] may grow with the prompt; logits would be 512 MiB.
        self.assertLess(long - short, 8 * (4096 - 64) * 64 * 4)


if __name__ == "__main__":
    absltest.main()
