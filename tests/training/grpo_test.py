"""One GRPO step: rewards to advantages to an update, and what must not move it."""

import functools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from awm_jax.models import hf, lora
from awm_jax.rl import losses
from awm_jax.rl.rewards import CellRewards
from awm_jax.training import batch as batch_lib
from awm_jax.training import grpo, state
from awm_jax.types import (
    ANSWERED,
    STEP_BUDGET,
    TOOL_ERROR,
    Finding,
    Memory,
    Question,
    Sample,
    Trajectory,
    Turn,
    Verdict,
)

DATA = pathlib.Path(__file__).parents[1] / "data"
QUESTION = Question("q", "d.pdf", "What?", "4", "Int")
NORMALISE = {
    "group_size": 4,
    "cells": CellRewards(),
    "epsilon": 1e-6,
    "ddof": 0,
    "scale_by_std": True,
}


def trajectory(token_ids=(5, 6), status=ANSWERED, log_prob=-1.0):
    log_probs = np.full(len(token_ids), log_prob, np.float32)
    sample = Sample(np.array([1, 2, 3]), np.array(token_ids), log_probs, "", "stop")
    memory = Memory((Finding(1, "two words"),))
    turn = Turn(0, sample, (), (), ("searched twice",), memory)
    return Trajectory(QUESTION, 0, (turn,), "4", memory, status)


def verdict(answer, memory, error=""):
    return Verdict(float(answer), float(memory), "", "rules", error)


class OutcomeTest(absltest.TestCase):
    def test_cells_by_hand(self):
        # Rewards 2, 0, -0.1, -1: mean 0.225, deviation 1.09630.
        verdicts = [verdict(1, 1), verdict(1, 0), verdict(0, 1), verdict(0, 0)]
        found = grpo.outcome([trajectory()] * 4, verdicts, **NORMALISE)
        np.testing.assert_allclose(found.rewards, [[2, 0, -0.1, -1]], rtol=1e-6)
        np.testing.assert_allclose(
            found.advantages, [[1.61909, -0.20524, -0.29645, -1.11740]], rtol=1e-4
        )
        self.assertTrue(found.trained.all())

    def test_what_the_policy_could_not_help_leaves_the_group(self):
        verdicts = [verdict(1, 1), verdict(1, 0), verdict(0, 0), verdict(0, 0, error="judge: 500")]
        statuses = [ANSWERED, ANSWERED, TOOL_ERROR, ANSWERED]
        found = grpo.outcome([trajectory(status=s) for s in statuses], verdicts, **NORMALISE)
        np.testing.assert_array_equal(found.valid, [[True, True, False, False]])
        np.testing.assert_allclose(found.advantages, [[1, -1, 0, 0]], rtol=1e-5)

    def test_a_group_without_spread_is_not_trained(self):
        found = grpo.outcome([trajectory()] * 4, [verdict(0, 1)] * 4, **NORMALISE)
        np.testing.assert_array_equal(found.advantages, np.zeros((1, 4)))
        self.assertFalse(found.trained.any())
        sequences, left_out = grpo.trained_sequences([trajectory()] * 4, found)
        self.assertEqual((sequences, left_out), ([], 8))

    def test_an_update_takes_its_own_groups_and_counts_their_tokens_alone(self):
        spread = [verdict(1, 1), verdict(0, 0), verdict(0, 0), verdict(0, 0)]
        trajectories = [trajectory()] * 12
        found = grpo.outcome(trajectories, [*spread, *[verdict(0, 1)] * 4, *spread], **NORMALISE)
        sequences, left_out = grpo.trained_sequences(trajectories, found, groups=[1, 2])
        self.assertEqual([s[0].trajectory for s, _ in sequences], [8, 9, 10, 11])
        self.assertEqual(left_out, 8)


class MinibatchesTest(parameterized.TestCase):
    def test_every_epoch_deals_all_groups_anew(self):
        parts = grpo.minibatches(6, epochs=2, minibatches=3, seed=(0, 4))
        self.assertEqual([len(part) for part in parts], [2] * 6)
        for epoch in (parts[:3], parts[3:]):
            self.assertCountEqual(sum(epoch, []), range(6))
        self.assertNotEqual(parts[:3], parts[3:])
        self.assertEqual(parts, grpo.minibatches(6, epochs=2, minibatches=3, seed=(0, 4)))

    def test_in_one_part_the_order_stays(self):
        self.assertEqual(grpo.minibatches(3, epochs=1, minibatches=1, seed=()), [[0, 1, 2]])

    @parameterized.parameters((0, 1), (1, 0), (1, 4))
    def test_refusals(self, epochs, minibatches):
        with self.assertRaisesRegex(ValueError, "mini-batches for 6 groups"):
            grpo.minibatches(6, epochs=epochs, minibatches=minibatches, seed=())


class StepMetricsTest(absltest.TestCase):
    def test_shares_are_of_valid_rollouts(self):
        verdicts = [verdict(1, 1), verdict(1, 0), verdict(0, 1), verdict(0, 0, error="judge: 500")]
        trajectories = [trajectory()] * 4
        metrics = grpo.step_metrics(
            trajectories, verdicts, grpo.outcome(trajectories, verdicts, **NORMALISE)
        )
        self.assertAlmostEqual(metrics["cells/11"], 1 / 3)
        self.assertAlmostEqual(metrics["cells/00"], 0.0)
        self.assertAlmostEqual(metrics["p_mmc"], 1 / 2)
        self.assertEqual(metrics["judge/failures"], 1)
        # Rewards 2, 0, -0.1: mean 0.63333, deviation 0.96724.
        self.assertAlmostEqual(metrics["advantage/max"], 1.41295, places=4)
        self.assertAlmostEqual(metrics["advantage/min"], -0.75817, places=4)
        self.assertAlmostEqual(metrics["advantage/std"], 1.0, places=4)
        # The memory of the rollout whose scorer failed was read all the same.
        self.assertEqual((metrics["judge/reader_passes"], metrics["judge/scorer_passes"]), (4, 4))
        self.assertEqual(metrics["agent/finding_words"], 2)
        self.assertEqual(metrics["agent/protocol_violations"], 1)
        self.assertEqual(metrics["stop/answered"], 1)

    def test_lengths_are_told_as_trl_tells_them(self):
        trajectories = [trajectory(), trajectory((5, 6, 7, 8)), trajectory((5,) * 9, STEP_BUDGET)]
        trajectories += [trajectory((5,), STEP_BUDGET)]
        verdicts = [verdict(1, 1)] * 4
        metrics = grpo.step_metrics(
            trajectories, verdicts, grpo.outcome(trajectories, verdicts, **NORMALISE)
        )
        found = {k.split("/")[1]: v for k, v in metrics.items() if k.startswith("completions/")}
        self.assertEqual(
            found,
            {
                "mean_length": 4,
                "min_length": 1,
                "max_length": 9,
                "clipped_ratio": 0.5,
                "mean_terminated_length": 3,
                "min_terminated_length": 2,
                "max_terminated_length": 4,
            },
        )


class UpdateTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        cls.frozen = {"visual": cls.model.params["visual"]}
        cls.trained = {k: v for k, v in cls.model.params.items() if k != "visual"}

    def make(self, optimizer, frozen=None, join=grpo.joined, **loss):
        return grpo.make_update(
            self.model,
            self.frozen if frozen is None else frozen,
            optimizer,
            functools.partial(losses.clipped_policy_loss, **loss),
            banned=jnp.zeros(self.model.config.text.vocab_size, bool),
            temperature=1.0,
            chunk_size=64,
            join=join,
        )

    def batches(self, advantages, rows):
        pairs = [
            (batch_lib.training_sequences(trajectory(tuple(range(5, 8 + k))), k), advantage)
            for k, advantage in enumerate(advantages)
        ]
        features = (1 + len(self.model.config.vision.deepstack_visual_indexes),)
        return list(
            batch_lib.pack(
                pairs,
                batch_lib.PackShape(rows, 12, 4, 2 * rows, 4),
                position_ids=lambda ids, pages: np.stack([np.arange(len(ids))] * 3),
                page_features=None,
                feature_shape=(*features, self.model.config.text.hidden_size),
                image_token_id=self.model.config.image_token_id,
                pad_id=0,
            )
        )

    def step(self, optimizer, advantages, rows, left_out=0, **loss):
        update = self.make(optimizer, **loss)
        begin = state.initial_state(self.trained, optimizer)
        return grpo.update_state(update, begin, self.batches(advantages, rows), left_out)

    @parameterized.parameters("token", "sequence")
    def test_micro_batches_add_up(self, aggregate):
        advantages = [1.0, -0.5, 0.25, -1.0]
        whole, of_whole = self.step(optax.sgd(1.0), advantages, 4, aggregate=aggregate)
        parts, of_parts = self.step(optax.sgd(1.0), advantages, 1, aggregate=aggregate)
        self.assertGreater(of_whole["grad_norm"], 1e-3)
        self.assertLen(self.batches(advantages, 4), 1)
        self.assertLen(self.batches(advantages, 1), 4)
        chex.assert_trees_all_close(whole.params, parts.params, atol=1e-5)
        self.assertAlmostEqual(of_whole["loss"], of_parts["loss"], places=5)

    def test_tokens_left_out_count_in_the_average(self):
        _, alone = self.step(optax.sgd(1.0), [1.0, -1.0], 2)
        # 3 + 4 tokens are trained; 7 more halve the mean.
        _, beside = self.step(optax.sgd(1.0), [1.0, -1.0], 2, left_out=7)
        self.assertAlmostEqual(beside["grad_norm"] / alone["grad_norm"], 0.5, places=5)

    def test_without_a_batch_only_the_step_counts(self):
        optimizer = optax.adamw(1.0)
        begin = state.initial_state(self.trained, optimizer)
        after, metrics = grpo.update_state(self.make(optimizer), begin, [], left_out=9)
        self.assertEqual((int(after.step), metrics), (1, {}))
        chex.assert_trees_all_equal(after.params, self.trained)

    def test_adapters_alone_are_trained(self):
        optimizer = optax.sgd(1.0)
        base = {**self.frozen, **self.trained}
        adapters = lora.init_adapters(
            self.trained, jax.random.key(0), rank=2, projections=("q_proj",)
        )
        join = functools.partial(lora.merge, alpha=4.0)
        update = self.make(optimizer, base, join)
        begin = state.initial_state(adapters, optimizer)
        after, metrics = grpo.update_state(update, begin, self.batches([1.0, -1.0], 2), 0)
        self.assertGreater(metrics["grad_norm"], 0)
        moved = jax.tree_util.tree_map_with_path(
            lambda path, new, old: (jax.tree_util.keystr(path), bool((new != old).any())),
            join(base, after.params),
            base,
        )
        for path, has_moved in jax.tree.leaves(moved, is_leaf=lambda x: isinstance(x, tuple)):
            self.assertEqual(has_moved, "'q_proj'" in path and "kernel" in path, path)

    def test_what_is_not_finite_leaves_the_state_as_it_was(self):
        optimizer = optax.adamw(1.0)
        update = self.make(optimizer)
        begin = state.initial_state(self.trained, optimizer)
        (batch,) = self.batches([1.0], 1)
        broken = batch._replace(advantages=np.full_like(batch.advantages, np.inf))
        with self.assertRaisesRegex(grpo.NotFinite, "step 0: the loss or a gradient"):
            grpo.update_state(update, begin, [broken], 0)
        chex.assert_trees_all_equal(begin.params, self.trained)
        after, _ = grpo.update_state(update, begin, [batch], 0)
        self.assertEqual(int(after.step), 1)

    def test_a_positive_advantage_raises_the_tokens_probability(self):
        optimizer = optax.sgd(0.1)
        update = self.make(optimizer)
        begin = state.initial_state(self.trained, optimizer)
        (batch,) = self.batches([1.0], 1)

        def log_prob(params):
            ids = jnp.array([[1, 2, 3, 5, 6, 7]])
            logits = self.model.apply({**self.frozen, **params}, ids)
            log_probs = jax.nn.log_softmax(logits[0, 2:5])
            return log_probs[jnp.arange(3), ids[0, 3:]].sum()

        before = log_prob(begin.params)
        exact = batch._replace(old_log_probs=np.zeros_like(batch.old_log_probs))
        exact.old_log_probs[0, :3] = before / 3
        after, _ = grpo.update_state(update, begin, [exact], 0)
        self.assertGreater(log_prob(after.params), before)

    def test_one_program_serves_every_step(self):
        optimizer = optax.sgd(0.01)
        update = self.make(optimizer)
        begin = state.initial_state(self.trained, optimizer)
        for advantages in ([1.0, -1.0], [0.5, 0.5, -2.0], [1.0]):
            begin, _ = grpo.update_state(update, begin, self.batches(advantages, 2), 1)
        self.assertEqual(update.compiled(), {"accumulate": 1, "apply": 1})


if __name__ == "__main__":
    absltest.main()
