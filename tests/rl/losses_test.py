import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from awm_jax.rl import losses

OPTIONS = (
    ("token", {}),
    ("sequence", {"aggregate": "sequence"}),
    ("fixed_length", {"aggregate": "fixed_length", "fixed_length": 10}),
    ("gspo", {"ratio": "sequence", "aggregate": "sequence"}),
    ("dual_clip", {"dual_clip": 1.5}),
)


def _batch(rows=8, time=6, seed=0):
    """Log-probs of a policy that moved a little, ragged rows, garbage under the mask."""
    rng = np.random.default_rng(seed)
    old = -rng.random((rows, time)).astype(np.float32)
    new = old + rng.normal(0.0, 0.3, old.shape).astype(np.float32)
    mask = np.arange(time)[None] < rng.integers(1, time + 1, rows)[:, None]
    advantages = rng.normal(size=rows).astype(np.float32)
    return new, old, advantages, mask


@functools.partial(
    jax.jit, static_argnames=("aggregate", "ratio", "fixed_length", "dual_clip", "importance_cap")
)
def _compiled(log_probs, *rest, **options):
    def total(log_probs):
        loss, _ = losses.clipped_policy_loss(log_probs, *rest, **options)
        return loss.total, loss

    gradient, loss = jax.grad(total, has_aux=True)(log_probs)
    return loss, gradient


def _value_and_gradient(batch, **options):
    return _compiled(*batch, **options)


def _rows(batch, chosen):
    return tuple(x[chosen] for x in batch)


class ClippedPolicyLossTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(
        # ratio, advantage -> loss, share cut below, share cut above; bounds 0.8 and 1.28.
        ("inside", 1.1, 1.0, -1.1, 0, 0),
        ("cut_above", 1.5, 1.0, -1.28, 0, 1),
        ("kept_above", 1.5, -1.0, 1.5, 0, 0),
        ("cut_below", 0.5, -1.0, 0.8, 1, 0),
        ("kept_below", 0.5, 1.0, -0.5, 0, 0),
    )
    def test_by_hand(self, ratio, advantage, expected, cut_low, cut_high):
        log_probs = jnp.log(jnp.array([[ratio]]))
        loss, metrics = self.variant(losses.clipped_policy_loss)(
            log_probs, jnp.zeros((1, 1)), jnp.array([advantage]), jnp.ones((1, 1), bool)
        )
        np.testing.assert_allclose(loss, (expected, 1.0), rtol=1e-6)
        self.assertEqual(metrics["clip_low_share"].mean, cut_low)
        self.assertEqual(metrics["clip_high_share"].mean, cut_high)

    def test_dual_clip_bounds_a_negative_advantage_alone(self):
        log_probs = jnp.log(jnp.array([[5.0], [5.0], [2.0]]))
        loss, metrics = losses.clipped_policy_loss(
            log_probs,
            jnp.zeros((3, 1)),
            jnp.array([-1.0, 1.0, -1.0]),
            jnp.ones((3, 1), bool),
            dual_clip=3.0,
        )
        np.testing.assert_allclose(loss.total, 3.0 - 1.28 + 2.0, rtol=1e-6)
        np.testing.assert_allclose(metrics["dual_clip_share"], (1.0, 3.0))

    @parameterized.named_parameters(*OPTIONS)
    def test_on_policy_gradient_is_reinforce(self, options):
        new, _, advantages, mask = _batch()
        loss, gradient = _value_and_gradient((new, None, advantages, mask), **options)
        weights = np.ones_like(new)
        if "aggregate" in options and options["aggregate"] == "sequence":
            weights = weights / mask.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            gradient, -advantages[:, None] * weights * mask, rtol=1e-5, atol=1e-7
        )
        np.testing.assert_allclose(
            loss.total, -(advantages[:, None] * weights * mask).sum(), rtol=1e-5
        )

    @parameterized.named_parameters(*OPTIONS)
    def test_gradient_is_the_finite_difference(self, options):
        # This seed has no ratio within a step of a bound, where the loss has a kink.
        batch = _batch(rows=3, time=3, seed=5)
        _, gradient = _value_and_gradient(batch, **options)
        step = 1e-2
        for place in np.ndindex(batch[0].shape):
            totals = []
            for sign in (1, -1):
                moved = batch[0].copy()
                moved[place] += sign * step
                totals.append(float(_value_and_gradient((moved, *batch[1:]), **options)[0].total))
            slope = (totals[0] - totals[1]) / (2 * step)
            np.testing.assert_allclose(gradient[place], slope, atol=2e-3)

    def test_sequence_ratio_by_hand(self):
        # Two rows of one trajectory: mean log ratio (0.3 + 0.1 + 0.2) / 3 = 0.2.
        log_probs = jnp.array([[0.3, 0.1], [0.2, 9.0]])
        mask = jnp.array([[True, True], [True, False]])
        loss, _ = losses.clipped_policy_loss(
            log_probs,
            jnp.zeros((2, 2)),
            jnp.ones(2),
            mask,
            ratio="sequence",
            aggregate="sequence",
            trajectory=jnp.array([7, 7]),
        )
        np.testing.assert_allclose(loss, (-np.exp(0.2), 1.0), rtol=1e-6)

    @parameterized.named_parameters(*OPTIONS)
    def test_garbage_under_the_mask_has_no_gradient(self, options):
        new, old, advantages, mask = _batch()
        loss, gradient = _value_and_gradient((new, old, advantages, mask), **options)
        for garbage in (np.nan, np.inf, -np.inf, 1e30):
            dirty_new, dirty_old = np.where(mask, new, garbage), np.where(mask, old, -garbage)
            dirty, dirty_gradient = _value_and_gradient(
                (dirty_new, dirty_old, advantages, mask), **options
            )
            np.testing.assert_array_equal(dirty, loss)
            np.testing.assert_array_equal(dirty_gradient, gradient)

    @parameterized.parameters(100.0, -100.0)
    def test_absurd_ratio_has_a_finite_gradient(self, log_ratio):
        log_probs = jnp.full((2, 1), log_ratio)
        _, gradient = _value_and_gradient(
            (log_probs, np.zeros((2, 1)), np.array([1.0, -1.0]), np.ones((2, 1), bool))
        )
        self.assertTrue(np.isfinite(gradient).all())

    @parameterized.named_parameters(*OPTIONS)
    def test_micro_batches_add_up(self, options):
        batch = _batch()
        whole, gradient = _value_and_gradient(batch, **options)
        for size in (1, 2, 4):
            parts = [
                _value_and_gradient(_rows(batch, slice(i, i + size)), **options)
                for i in range(0, 8, size)
            ]
            added = np.sum([part for part, _ in parts], axis=0)
            np.testing.assert_allclose(added, whole, rtol=1e-5)
            np.testing.assert_allclose(np.concatenate([g for _, g in parts]), gradient, rtol=1e-5)

    @parameterized.named_parameters(*OPTIONS)
    def test_a_trajectory_may_span_rows(self, options):
        new, old, advantages, mask = _batch(rows=4, time=6)
        whole, gradient = _value_and_gradient((new, old, advantages, mask), **options)

        def halved(x):
            return x.reshape(8, 3)

        split = (halved(new), halved(old), np.repeat(advantages, 2), halved(mask))
        trajectory = np.repeat(np.array([30, 10, 40, 20]), 2)
        # A row of padding belongs to no trajectory and may carry any advantage.
        padded = [
            np.concatenate([x, np.full_like(x[:1], fill)])
            for x, fill in zip(split, (np.nan, np.nan, np.nan, False), strict=True)
        ]
        found, split_gradient = _value_and_gradient(
            tuple(padded), trajectory=np.append(trajectory, -1), **options
        )
        np.testing.assert_allclose(found, whole, rtol=1e-5)
        np.testing.assert_allclose(split_gradient[:8].reshape(4, 6), gradient, rtol=1e-5)

    @parameterized.named_parameters(*OPTIONS)
    def test_a_masked_trajectory_changes_nobody_else(self, options):
        batch = _batch()
        without, gradient = _value_and_gradient(_rows(batch, slice(0, 7)), **options)
        mask = batch[3].copy()
        mask[7] = False
        with_it, full_gradient = _value_and_gradient((*batch[:3], mask), **options)
        np.testing.assert_allclose(with_it, without, rtol=1e-6)
        np.testing.assert_allclose(full_gradient[:7], gradient, rtol=1e-6)
        np.testing.assert_array_equal(full_gradient[7], np.zeros(6))

    def test_nothing_to_train_on_is_zero(self):
        new, old, advantages, mask = _batch()
        loss, _ = losses.clipped_policy_loss(new, old, advantages, np.zeros_like(mask))
        self.assertEqual((loss.total, loss.weight, loss.mean), (0.0, 0.0, 0.0))

    @parameterized.named_parameters(*OPTIONS)
    def test_devices_give_the_same_number(self, options):
        if jax.device_count() < 8:
            self.skipTest(f"needs 8 devices, found {jax.device_count()}")
        batch = _batch()
        whole, _ = losses.clipped_policy_loss(*batch, **options)
        mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
        spread = [jax.device_put(x, NamedSharding(mesh, P("rows"))) for x in batch]
        fn = functools.partial(losses.clipped_policy_loss, **options)
        np.testing.assert_allclose(jax.jit(fn)(*spread)[0], whole, rtol=1e-5)
        by_hand = jax.jit(
            jax.shard_map(
                lambda *rows: jax.lax.psum(fn(*rows)[0], "rows"),
                mesh=mesh,
                in_specs=P("rows"),
                out_specs=P(),
            )
        )
        np.testing.assert_allclose(by_hand(*batch), whole, rtol=1e-5)

    def test_importance_weight_is_capped_and_detached(self):
        new, old, advantages, mask = _batch()
        sampler = old - np.log(np.where(np.arange(6) % 2, 5.0, 0.5))[None].astype(np.float32)
        sampler = np.where(mask, sampler, np.nan)
        _, plain = _value_and_gradient((new, old, advantages, mask))
        _, weighted = _value_and_gradient(
            (new, old, advantages, mask), sampler_log_probs=sampler, importance_cap=2.0
        )
        expected = np.where(np.arange(6) % 2, 2.0, 0.5)[None] * plain
        np.testing.assert_allclose(weighted, expected, rtol=1e-5)
        _, metrics = losses.clipped_policy_loss(
            new, old, advantages, mask, sampler_log_probs=sampler
        )
        np.testing.assert_allclose(metrics["importance_weight_range"], (0.5, 5.0), rtol=1e-5)

    def test_metrics_of_micro_batches_merge(self):
        batch = _batch()
        fn = functools.partial(losses.clipped_policy_loss, sampler_log_probs=batch[1] - 0.1)
        _, whole = fn(*batch)
        parts = []
        for chosen in (slice(0, 3), slice(3, 8)):
            new, old, advantages, mask = _rows(batch, chosen)
            _, metrics = losses.clipped_policy_loss(
                new, old, advantages, mask, sampler_log_probs=old - 0.1
            )
            parts.append(metrics)
        chex.assert_trees_all_close(losses.merge(*parts), whole, rtol=1e-5)

    @parameterized.parameters(
        ({"aggregate": "mean"}, "aggregate must be \"token\".*found 'mean'"),
        ({"ratio": "word"}, "ratio must be \"token\".*found 'word'"),
        ({"aggregate": "fixed_length"}, "fixed_length=None"),
        ({"fixed_length": 5}, "aggregate='token'"),
    )
    def test_wrong_options_are_named(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            losses.clipped_policy_loss(*_batch(), **options)


class KlPenaltyTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(("k1", 0.5), ("k2", 0.125), ("k3", np.exp(-0.5) - 1 + 0.5))
    def test_by_hand(self, estimator, expected):
        fn = self.variant(functools.partial(losses.kl_penalty, estimator=estimator))
        penalty, metrics = fn(
            jnp.array([[-1.0, np.nan]]), jnp.array([[-1.5, 0.0]]), jnp.array([[True, False]])
        )
        np.testing.assert_allclose(penalty, (expected, 1.0), rtol=1e-5)
        np.testing.assert_allclose(metrics["kl"].mean, np.exp(-0.5) - 0.5, rtol=1e-5)

    def _expected_gradient(self, estimator, off_policy):
        """By enumerating a vocabulary of five: gradient of the KL, and the estimator's mean."""
        rng = np.random.default_rng(0)
        logits, reference, sampling = (jnp.asarray(rng.normal(size=5), jnp.float32) for _ in "abc")
        ref, old = jax.nn.log_softmax(reference), jax.nn.log_softmax(sampling)

        def kl(logits):
            log_probs = jax.nn.log_softmax(logits)
            return (jnp.exp(log_probs) * (log_probs - ref)).sum()

        def sampled(logits, token):
            log_probs = jax.nn.log_softmax(logits)
            penalty, _ = losses.kl_penalty(
                log_probs[token][None, None],
                ref[token][None, None],
                jnp.ones((1, 1), bool),
                estimator=estimator,
                old_log_probs=old[token][None, None] if off_policy else None,
            )
            return penalty.total

        per_token = jax.vmap(jax.grad(sampled), (None, 0))(logits, jnp.arange(5))
        probabilities = jnp.exp(old) if off_policy else jax.nn.softmax(logits)
        return probabilities @ per_token, jax.grad(kl)(logits)

    def test_k2_has_the_gradient_of_the_kl(self):
        found, true = self._expected_gradient("k2", off_policy=False)
        np.testing.assert_allclose(found, true, atol=1e-6)

    def test_k1_has_none_and_k3_another(self):
        found, true = self._expected_gradient("k1", off_policy=False)
        np.testing.assert_allclose(found, np.zeros(5), atol=1e-6)
        found, true = self._expected_gradient("k3", off_policy=False)
        self.assertGreater(np.abs(found - true).max(), 0.1 * np.abs(true).max())

    @parameterized.parameters("k1", "k2", "k3")
    def test_weighted_off_policy_all_have_the_gradient_of_the_kl(self, estimator):
        found, true = self._expected_gradient(estimator, off_policy=True)
        np.testing.assert_allclose(found, true, atol=1e-6)

    def test_groups_without_spread_have_exactly_no_gradient(self):
        new, ref, _, mask = _batch()
        has_spread = jnp.arange(8) % 2 == 0

        def total(log_probs, has_spread):
            return losses.kl_penalty(log_probs, ref, mask, has_spread=has_spread)[0].total

        every = jax.grad(total)(new, jnp.ones(8, bool))
        some = jax.grad(total)(new, has_spread)
        np.testing.assert_array_equal(some, np.where(has_spread[:, None], every, 0.0))
        penalty, _ = losses.kl_penalty(new, ref, mask, has_spread=has_spread)
        self.assertEqual(penalty.weight, mask.sum())

    def test_garbage_under_the_mask_has_no_gradient(self):
        new, ref, _, mask = _batch()

        def total(log_probs, ref):
            return losses.kl_penalty(log_probs, ref, mask)[0].total

        clean = jax.grad(total)(new, ref)
        dirty = jax.grad(total)(np.where(mask, new, np.nan), np.where(mask, ref, np.inf))
        np.testing.assert_array_equal(dirty, clean)

    def test_unknown_estimator_is_named(self):
        new, ref, _, mask = _batch()
        with self.assertRaisesRegex(ValueError, "k1.*k2.*k3.*found 'k4'"):
            losses.kl_penalty(new, ref, mask, estimator="k4")


class PartsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("token", {}),
        ("sequence", {"aggregate": "sequence"}),
        ("fixed_length", {"aggregate": "fixed_length", "fixed_length": 10}),
    )
    def test_the_whole_objective_of_micro_batches_adds_up(self, options):
        """1 x 8, 2 x 4 and 8 x 1 rows of unequal length: one number, one gradient."""
        new, old, advantages, mask = _batch()
        has_spread, ref = np.arange(8) % 3 > 0, old - 0.2

        @jax.jit
        def summed(log_probs, *rows):
            old, ref, advantages, mask, has_spread = rows

            def objective(log_probs):
                policy, _ = losses.clipped_policy_loss(log_probs, old, advantages, mask, **options)
                kl, _ = losses.kl_penalty(log_probs, ref, mask, has_spread=has_spread, **options)
                entropy, _ = losses.entropy_bonus(
                    -log_probs, mask, has_spread=has_spread, **options
                )
                loss = losses.combine(policy, (0.1, kl), (-0.01, entropy))
                return loss.total, loss

            gradient, loss = jax.grad(objective, has_aux=True)(log_probs)
            return loss, gradient

        rows = (new, old, ref, advantages, mask, has_spread)
        whole, gradient = summed(*rows)
        for size in (1, 4):
            parts = [summed(*_rows(rows, slice(i, i + size))) for i in range(0, 8, size)]
            np.testing.assert_allclose(np.sum([x for x, _ in parts], axis=0), whole, rtol=1e-5)
            np.testing.assert_allclose(
                np.concatenate([x for _, x in parts]), gradient, rtol=1e-5, atol=1e-7
            )

    def test_entropy_of_groups_without_spread_has_exactly_no_gradient(self):
        values, _, _, mask = _batch()
        has_spread = jnp.arange(8) % 2 == 0

        def total(entropy):
            return losses.entropy_bonus(entropy, mask, has_spread=has_spread)[0].total

        np.testing.assert_array_equal(jax.grad(total)(values), mask * has_spread[:, None])
        _, metrics = losses.entropy_bonus(values, mask, has_spread=has_spread)
        self.assertEqual(metrics["entropy"].weight, mask.sum())

    def test_terms_combine_over_one_weight(self):
        new, old, advantages, mask = _batch()
        policy, _ = losses.clipped_policy_loss(new, old, advantages, mask)
        kl, _ = losses.kl_penalty(new, old, mask)
        entropy, metrics = losses.entropy_bonus(jnp.where(mask, 2.0, jnp.nan), mask)
        combined = losses.combine(policy, (0.1, kl), (-0.01, entropy))
        np.testing.assert_allclose(
            combined.mean, policy.mean + 0.1 * kl.mean - 0.01 * 2.0, rtol=1e-5
        )
        np.testing.assert_allclose(metrics["entropy"].mean, 2.0)

    def test_advantage_metrics_count_groups_and_rollouts(self):
        rewards = jnp.array([[1.0, 0.0], [1.0, 1.0], [5.0, jnp.nan]])
        valid = jnp.array([[True, True], [True, True], [True, False]])
        metrics = losses.advantage_metrics(
            jnp.array([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]),
            rewards,
            valid,
            jnp.array([True, False, False]),
        )
        np.testing.assert_allclose(metrics["reward"], (8.0, 5.0))
        np.testing.assert_allclose(metrics["zero_spread_share"], (2.0, 3.0))
        np.testing.assert_allclose(metrics["valid_share"], (5.0, 6.0))
        np.testing.assert_allclose(metrics["advantage_range"], (-1.0, 1.0))

    def test_advantage_metrics_without_a_valid_rollout_are_finite(self):
        nothing = jnp.full((2, 2), jnp.nan)
        metrics = losses.advantage_metrics(
            jnp.zeros((2, 2)), nothing, jnp.zeros((2, 2), bool), jnp.zeros(2, bool)
        )
        np.testing.assert_array_equal(metrics["advantage_range"], (0.0, 0.0))
        self.assertEqual(metrics["reward"].mean, 0.0)
        self.assertEqual(metrics["zero_spread_share"].mean, 1.0)

    def test_policy_gradient_by_enumeration(self):
        """The loss's expected gradient is that of expected reward, over all two-token strings."""
        logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)), jnp.float32)
        strings = np.array(list(itertools.product(range(3), repeat=2)))
        rewards = jnp.asarray(np.random.default_rng(2).normal(size=9), jnp.float32)

        def log_probs(logits):
            return jnp.take_along_axis(jax.nn.log_softmax(logits), strings.T, axis=1).T

        def expected_reward(logits):
            return (jnp.exp(log_probs(logits).sum(axis=1)) * rewards).sum()

        def loss(logits):
            chance = jax.lax.stop_gradient(jnp.exp(log_probs(logits).sum(axis=1)))
            found, _ = losses.clipped_policy_loss(
                log_probs(logits), None, rewards * chance, jnp.ones((9, 2), bool)
            )
            return found.total

        np.testing.assert_allclose(
            jax.grad(loss)(logits), -jax.grad(expected_reward)(logits), atol=1e-6
        )


if __name__ == "__main__":
    absltest.main()
