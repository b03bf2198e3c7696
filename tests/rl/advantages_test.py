import functools

import chex
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from awm_jax.rl import advantages

REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [2.0, 0.0, -0.1, -1.0]], np.float32)
# None is a dyadic fraction, so that the mean of several is rounded.
CONSTANTS = np.array([-0.1, 0.7, 1000.1, 1e-38, 3.4e38, -np.pi, np.inf], np.float32)
# Any float32: random bit patterns, subnormal numbers among them.
_BITS = np.random.default_rng(0).integers(0, 2**32, 256, dtype=np.uint32)
_BITS[:16] &= 0x807FFFFF
ANY = np.concatenate([CONSTANTS, _BITS.view(np.float32)[~np.isnan(_BITS.view(np.float32))]])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=True)
JITTED = jax.jit(advantages.group_advantages, static_argnames=("ddof", "scale_by_std", "axis_name"))


def _reference(rewards, valid, *, epsilon=1e-6, ddof=0, scale_by_std=True):
    """The formula of section 3.1 in float64, one group after the other."""
    result = np.zeros(rewards.shape)
    for group, (row, kept) in enumerate(zip(rewards, valid, strict=True)):
        values = row[kept].astype(np.float64)
        if len(set(values)) < 2:
            continue
        centred = values - values.mean()
        scale = values.std(ddof=ddof) + epsilon if scale_by_std else 1.0
        result[group, kept] = centred / scale
    return result


def _random_groups(seed=0, groups=16, size=8):
    rng = np.random.default_rng(seed)
    rewards = rng.choice([2.0, 0.0, -0.1, -1.0], (groups, size)).astype(np.float32)
    valid = rng.random((groups, size)) < 0.7
    return np.where(valid, rewards, np.nan).astype(np.float32), valid


class GroupAdvantagesTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(
        # Mean 1/2; deviation 1/2 over n, sqrt(4 * 1/4 / 3) = 0.57735 over n - 1.
        ("paper", 0, True, [1.0, -1.0, -1.0, 1.0]),
        ("sample_deviation", 1, True, [0.866025, -0.866025, -0.866025, 0.866025]),
        ("dr_grpo", 0, False, [0.5, -0.5, -0.5, 0.5]),
    )
    def test_by_hand(self, ddof, scale_by_std, expected):
        fn = self.variant(
            functools.partial(
                advantages.group_advantages, ddof=ddof, scale_by_std=scale_by_std, epsilon=0.0
            )
        )
        np.testing.assert_allclose(fn(REWARDS)[0], expected, rtol=1e-5)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(
        ("paper", {}),
        ("trl", {"ddof": 1, "epsilon": 1e-4}),
        ("dr_grpo", {"scale_by_std": False}),
    )
    def test_agrees_with_float64_loop(self, options):
        rewards, valid = _random_groups()
        fn = self.variant(functools.partial(advantages.group_advantages, **options))
        np.testing.assert_allclose(
            fn(rewards, valid), _reference(rewards, valid, **options), atol=2e-6
        )

    def test_constant_group_is_exactly_zero_at_every_size_jitted(self):
        groups = [np.repeat(ANY[:, None], size, axis=1) for size in range(2, 65)]
        fn = jax.jit(lambda groups: [advantages.group_advantages(group) for group in groups])
        for found in fn(groups):
            self.assertTrue((np.asarray(found) == 0).all(), found.shape)

    def test_constant_group_is_exactly_zero_at_every_size_eager(self):
        rewards = np.repeat(np.tile(ANY, 63)[:, None], 64, axis=1)
        valid = np.arange(64)[None] < np.repeat(np.arange(2, 65), len(ANY))[:, None]
        np.testing.assert_array_equal(
            advantages.group_advantages(rewards, valid), np.zeros(rewards.shape)
        )
        for size in (3, 7, 8, 64):
            found = advantages.group_advantages(rewards[:, :size])
            np.testing.assert_array_equal(found, np.zeros(found.shape))

    @hypothesis.settings(max_examples=30, deadline=None)
    @hypothesis.given(value=FLOATS, kept=hnp.arrays(bool, 64), epsilon=st.sampled_from([0.0, 1e-6]))
    def test_constant_group_of_any_float_and_validity(self, value, kept, epsilon):
        rewards = np.where(kept, np.float32(value), np.float32("nan"))[None]
        for fn in (advantages.group_advantages, JITTED):
            found = np.asarray(fn(rewards, kept[None], epsilon=epsilon))
            np.testing.assert_array_equal(found, np.zeros((1, 64)))
            found = np.asarray(fn(np.full((1, 8), value, np.float32), epsilon=epsilon))
            np.testing.assert_array_equal(found, np.zeros((1, 8)))

    @hypothesis.settings(max_examples=30, deadline=None)
    @hypothesis.given(
        rewards=hnp.arrays(np.float32, (2, 8), elements=st.floats(-100, 100, width=32)),
        order=st.permutations(range(8)),
    )
    def test_order_within_a_group_does_not_matter(self, rewards, order):
        found = np.asarray(JITTED(rewards, epsilon=1e-2))
        moved = np.asarray(JITTED(rewards[:, order], epsilon=1e-2))
        np.testing.assert_allclose(moved, found[:, order], atol=1e-4)
        self.assertLess(np.abs(found.sum(axis=1)).max(), 1e-3)

    @chex.variants(with_jit=True, without_jit=True)
    def test_invalid_rollouts_change_nobody_else(self):
        rewards = np.array([[1.0, 0.0, np.nan, 2.0, np.inf]], np.float32)
        valid = np.array([[True, True, False, True, False]])
        fn = self.variant(advantages.group_advantages)
        found = fn(rewards, valid)
        np.testing.assert_allclose(
            found[:, [0, 1, 3]], fn(rewards[:, [0, 1, 3]]), rtol=1e-6, atol=1e-7
        )
        np.testing.assert_array_equal(found[:, [2, 4]], [[0.0, 0.0]])

    @parameterized.parameters(0, 1)
    def test_fewer_than_two_valid_is_zero(self, ddof):
        valid = np.array([[False] * 4, [True, False, False, False]])
        found = advantages.group_advantages(REWARDS, valid, ddof=ddof)
        np.testing.assert_array_equal(found, np.zeros((2, 4)))

    def test_valid_nan_is_loud(self):
        rewards = np.array([[np.nan, 1.0, 2.0]], np.float32)
        self.assertTrue(np.isnan(advantages.group_advantages(rewards)).all())

    @parameterized.parameters(True, False)
    def test_gradient_is_finite_beside_nan_and_without_spread(self, scale_by_std):
        rewards = np.array([[1.0, 3.0, np.nan, 2.0], [1.0, 1.0, np.nan, 1.0]], np.float32)
        valid = ~np.isnan(rewards)

        def weighted(rewards):
            weights = jnp.arange(8.0).reshape(2, 4)
            found = advantages.group_advantages(
                rewards, valid, scale_by_std=scale_by_std, epsilon=0.0
            )
            return (weights * found).sum()

        gradient = jax.grad(weighted)(rewards)
        self.assertTrue(np.isfinite(gradient).all())
        np.testing.assert_array_equal(gradient[:, 2], [0.0, 0.0])
        step = 1e-3
        for member in (0, 1, 3):
            up, down = rewards.copy(), rewards.copy()
            up[0, member] += step
            down[0, member] -= step
            slope = (weighted(up) - weighted(down)) / (2 * step)
            np.testing.assert_allclose(gradient[0, member], slope, atol=2e-3)

    def test_group_spread(self):
        rewards = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, np.nan], [np.nan, 3.0]], np.float32)
        valid = np.array([[True, True], [True, True], [True, False], [False, False]])
        np.testing.assert_array_equal(
            advantages.group_spread(rewards, valid), [False, True, False, False]
        )

    def test_wrong_rank_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "rank"):
            advantages.group_advantages(REWARDS[0])


class LeaveOneOutTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_is_reward_minus_mean_of_the_others(self):
        rewards, valid = _random_groups(seed=1)
        found = np.asarray(self.variant(advantages.leave_one_out_advantages)(rewards, valid))
        for group, member in np.ndindex(rewards.shape):
            others = valid[group].copy()
            others[member] = False
            expected = 0.0
            if valid[group, member] and others.any():
                expected = rewards[group, member] - rewards[group, others].mean()
            np.testing.assert_allclose(found[group, member], expected, atol=1e-6)

    def test_constant_group_is_zero(self):
        found = advantages.leave_one_out_advantages(np.full((1, 7), -0.1, np.float32))
        np.testing.assert_array_equal(found, np.zeros((1, 7)))


class SegmentAdvantagesTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters((0, True), (1, True), (0, False))
    def test_equals_groups_in_any_order(self, ddof, scale_by_std):
        rewards, valid = _random_groups(seed=2)
        expected = advantages.group_advantages(
            rewards, valid, ddof=ddof, scale_by_std=scale_by_std
        ).reshape(-1)
        ids = np.repeat(np.arange(16), 8)
        order = np.random.default_rng(0).permutation(128)
        fn = self.variant(
            functools.partial(
                advantages.segment_advantages,
                num_groups=16,
                ddof=ddof,
                scale_by_std=scale_by_std,
            )
        )
        found = fn(rewards.reshape(-1)[order], ids[order], valid.reshape(-1)[order])
        np.testing.assert_allclose(found, expected[order], atol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_constant_groups_of_every_size_are_exactly_zero(self):
        sizes = np.arange(2, 65)
        ids = np.repeat(np.arange(len(sizes)), sizes)
        fn = self.variant(functools.partial(advantages.segment_advantages, num_groups=len(sizes)))
        for values in ANY[: 4 * len(sizes)].reshape(4, len(sizes)):
            found = fn(values[ids], ids)
            np.testing.assert_array_equal(found, np.zeros(len(ids)))

    def test_ragged_constant_and_padding_are_zero(self):
        rewards = np.array([-0.1, 1.0, -0.1, 3.0, -0.1, 9.0, 9.0], np.float32)
        ids = np.array([0, 1, 0, 1, 0, -1, 2])
        found = advantages.segment_advantages(rewards, ids, num_groups=2)
        np.testing.assert_allclose(found, [0, -1, 0, 1, 0, 0, 0], atol=1e-5)
        np.testing.assert_array_equal(found[jnp.array([0, 2, 4, 5, 6])], np.zeros(5))


class DevicesTest(chex.TestCase):
    """A group spread over eight devices has the advantages it has on one."""

    def setUp(self):
        super().setUp()
        if jax.device_count() < 8:
            self.skipTest(f"needs 8 devices, found {jax.device_count()}")
        self.rewards, self.valid = _random_groups(seed=3, size=16)
        self.rewards[0], self.valid[0] = -0.1, True
        self.mesh = jax.make_mesh((8,), ("members",), axis_types=(AxisType.Auto,))

    @parameterized.named_parameters(
        ("group", advantages.group_advantages),
        ("leave_one_out", advantages.leave_one_out_advantages),
    )
    def test_shard_map(self, fn):
        spread = jax.jit(
            jax.shard_map(
                functools.partial(fn, axis_name="members"),
                mesh=self.mesh,
                in_specs=P(None, "members"),
                out_specs=P(None, "members"),
            )
        )(self.rewards, self.valid)
        np.testing.assert_allclose(spread, fn(self.rewards, self.valid), atol=1e-6)
        np.testing.assert_array_equal(spread[0], np.zeros(16))

    def test_pmap(self):
        fn = functools.partial(advantages.group_advantages, axis_name="members")
        by_device = [x.reshape(16, 8, 2).swapaxes(0, 1) for x in (self.rewards, self.valid)]
        spread = jax.pmap(fn, axis_name="members")(*by_device)
        spread = np.asarray(spread).swapaxes(0, 1).reshape(16, 16)
        expected = advantages.group_advantages(self.rewards, self.valid)
        np.testing.assert_allclose(spread, expected, atol=1e-6)
        np.testing.assert_array_equal(spread[0], np.zeros(16))

    def test_segments_and_spread(self):
        ids = np.repeat(np.arange(16), 16)
        flat = (self.rewards.reshape(-1), ids, self.valid.reshape(-1))
        order = np.random.default_rng(0).permutation(256)
        fn = functools.partial(advantages.segment_advantages, num_groups=16)
        spread = jax.jit(
            jax.shard_map(
                functools.partial(fn, axis_name="members"),
                mesh=self.mesh,
                in_specs=P("members"),
                out_specs=P("members"),
            )
        )(*(x[order] for x in flat))
        np.testing.assert_allclose(spread, fn(*flat)[order], atol=1e-6)
        has_spread = jax.jit(
            jax.shard_map(
                functools.partial(advantages.group_spread, axis_name="members"),
                mesh=self.mesh,
                in_specs=P(None, "members"),
                out_specs=P(),
            )
        )(self.rewards, self.valid)
        np.testing.assert_array_equal(has_spread, advantages.group_spread(self.rewards, self.valid))


if __name__ == "__main__":
    absltest.main()
