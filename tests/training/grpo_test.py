"""One GRPO step: rewards to advantages to an update, and what must not move it."""

import functools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from awm_jax.models import hf
from awm_jax.rl import losses
from awm_jax.rl.rewards import CellRewards
from awm_jax.training import batch as batch_lib
from awm_jax.training import grpo, state
from awm_jax.types import (
    ANSWERED,
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


class UpdateTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        cls.frozen = {"visual": cls.model.params["visual"]}
        cls.trained = {k: v for k, v in cls.model.params.items() if k != "visual"}

    def make(self, optimizer, **loss):
        return grpo.make_update(
            self.model,
            self.frozen,
            optimizer,
            functools.partial(losses.clipped_policy_loss, **loss),
            banned=jnp.zeros(self.model.config.text.vocab_size, bool),
            temperature=1.0,
            chunk_size=64,
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
