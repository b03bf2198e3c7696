# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Testing your own reward
#
# A reward is a small function that decides everything. Before it meets a model, it can be tested
# like any other function: by hand, as an identity, at its edges, and in what GRPO makes of it.
# The last is where rewards surprise, and where the exact law of `awm_jax.rl.simulation` helps: it
# turns "the advantages look right" into an assertion without tolerance for luck.
#
# As an example, a reward of five levels for a task with partial credit. Replace it with yours.

# %%
import sys
import unittest

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from awm_jax.rl import advantages, simulation

LEVELS = np.array([-1.0, -0.1, 0.0, 0.5, 2.0], np.float32)


def my_reward(correct_parts, memory_answerable):
    """`correct_parts` 0..2 and whether the memory is answerable -> reward, any shape."""
    parts, memory = jnp.asarray(correct_parts), jnp.asarray(memory_answerable, bool)
    wrong = jnp.where(memory, LEVELS[1], LEVELS[0])
    partly = LEVELS[2]
    right = jnp.where(memory, LEVELS[4], LEVELS[3])
    return jnp.where(parts == 0, wrong, jnp.where(parts == 1, partly, right))


# %% [markdown]
# ## By hand, jitted and not
#
# `chex.variants` runs a test once under `jit` and once without. Compilers may reassociate
# arithmetic; a test of a reward should see both.


# %%
class MyRewardTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(
        (0, False, -1.0), (0, True, -0.1), (1, True, 0.0), (2, False, 0.5), (2, True, 2.0)
    )
    def test_by_hand(self, parts, memory, expected):
        found = self.variant(my_reward)(jnp.array([parts]), jnp.array([memory]))
        np.testing.assert_allclose(found, [expected], rtol=1e-6)

    def test_keeps_any_shape(self):
        found = my_reward(jnp.zeros((3, 8), int), jnp.zeros((3, 8), bool))
        chex.assert_shape(found, (3, 8))

    def test_memory_never_hurts(self):
        parts = jnp.arange(3)
        with_memory = my_reward(parts, jnp.ones(3, bool))
        without = my_reward(parts, jnp.zeros(3, bool))
        self.assertTrue((with_memory >= without).all())


# %% [markdown]
# ## What GRPO makes of it
#
# Say what you want *as a statement about advantages*, for a mixture of outcomes that you expect,
# and assert it of the exact law. Here: while most rollouts fail, a partly right answer must be
# encouraged; once most succeed, it must not be.

# %%
EARLY = np.array([0.70, 0.15, 0.10, 0.03, 0.02])
LATE = np.array([0.05, 0.05, 0.20, 0.20, 0.50])


class MyAdvantagesTest(chex.TestCase):
    def test_partly_right_is_a_stepping_stone(self):
        early = simulation.exact_advantages(EARLY, cells=LEVELS)
        late = simulation.exact_advantages(LATE, cells=LEVELS)
        self.assertGreater(early.cell_mean[2], 0.0)
        self.assertLess(late.cell_mean[2], 0.0)

    def test_better_cells_have_better_advantages(self):
        for mixture in (EARLY, LATE):
            law = simulation.exact_advantages(mixture, cells=LEVELS)
            self.assertTrue((np.diff(law.cell_mean) > 0).all())

    def test_full_success_is_never_discouraged(self):
        law = simulation.exact_advantages(LATE, cells=LEVELS)
        self.assertTrue((law.values[4] >= 0.0).all())

    def test_simulation_agrees(self):
        law = simulation.exact_advantages(EARLY, cells=LEVELS)
        drawn = simulation.simulate_advantages(
            jax.random.key(0), jnp.array(EARLY), cells=jnp.array(LEVELS), group_count=4_000
        )
        np.testing.assert_allclose(drawn.cell_mean, law.cell_mean, atol=0.1)


# %% [markdown]
# ## The edges that bite
#
# Every rollout equal, one rollout left, a judge that failed: a group must give exactly nothing, not
# a small something that the epsilon blows up.


# %%
class EdgesTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_every_level_alone_gives_exactly_zero(self):
        groups = np.repeat(LEVELS[:, None], 8, axis=1)
        found = self.variant(advantages.group_advantages)(groups)
        np.testing.assert_array_equal(found, np.zeros_like(groups))

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_failed_judge_changes_nobody_else(self):
        fn = self.variant(advantages.group_advantages)
        rewards = np.array([[2.0, 0.0, np.nan, -1.0]], np.float32)
        found = fn(rewards, ~np.isnan(rewards))
        np.testing.assert_array_equal(found[0, 2], 0.0)
        np.testing.assert_allclose(found[:, [0, 1, 3]], fn(rewards[:, [0, 1, 3]]), rtol=1e-6)


# %% [markdown]
# Run them. In a repository these classes would live in a `*_test.py` file; `pytest` finds them
# there.

# %%
loader = unittest.TestLoader()
suite = unittest.TestSuite(
    loader.loadTestsFromTestCase(case) for case in (MyRewardTest, MyAdvantagesTest, EdgesTest)
)
outcome = unittest.TextTestRunner(stream=sys.stdout).run(suite)
if not outcome.wasSuccessful():
    raise AssertionError("a test of the notebook failed")
