"""The sampler: against HF's greedy tokens, the trainer's log-probs, and itself in other batches."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.models import generate, hf
from awm_jax.models.attention import KVCache
from awm_jax.rl.log_probs import token_log_probs

DATA = pathlib.Path(__file__).parents[1] / "data"
NEW = 12
SEEDS = [(5, 0), (5, 1), (5, 2)]


def setUpModule():
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


class SampleTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        cls.golden = golden = np.load(DATA / "tiny_qwen3_vl.npz")
        cls.prompts = golden["right.input_ids"].astype(np.int32)
        cls.positions = golden["right.position_ids"].astype(np.int32)
        cls.lengths = golden["right.attention_mask"].sum(axis=1).astype(np.int32)
        cls.grids = golden["image_grid_thw"]
        cls.features = cls.model.image_features(
            cls.model.params, golden["pixel_values"].astype(np.float32), cls.grids
        )
        cls.vocab = cls.model.config.text.vocab_size
        cls.no_ban = np.zeros(cls.vocab, bool)
        # Among others those that stand for images, and the one that stops.
        cls.ban = np.isin(np.arange(cls.vocab), [0, 192, 193, 194, 195, *range(180, 190)])

    def sample(self, seeds=SEEDS, rows=slice(None), padding=0, continues=None, **options):
        """Samples the golden's rows; `rows` must keep all images or none."""
        options = {"stop_ids": (0,), "banned": self.ban, "temperature": 1.0} | options
        prompts = np.pad(self.prompts[rows], ((0, 0), (0, padding)))
        shows_images = np.any(prompts == self.model.config.image_token_id)
        return jax.tree.map(
            np.asarray,
            generate.sample(
                self.model,
                self.model.params,
                prompts,
                self.lengths[rows],
                np.pad(self.positions[:, rows], ((0, 0), (0, 0), (0, padding))),
                self.features if shows_images else None,
                generate.row_keys(seeds),
                rows=continues,
                max_new_tokens=NEW,
                **options,
            ),
        )

    def test_greedy_tokens_equal_those_of_transformers(self):
        self.assertNotIn(0, self.golden["greedy"])
        found = self.sample(temperature=0.0, banned=self.no_ban)
        np.testing.assert_array_equal(found.token_ids, self.golden["greedy"])
        np.testing.assert_array_equal(found.lengths, [NEW] * 3)
        self.assertFalse(found.finished.any())

    def trainer_log_probs(self, samples, temperature):
        """What a forward pass over prompt and sample finds, without a cache."""
        time = self.prompts.shape[1] + NEW
        ids, mask = np.zeros((3, time), np.int32), np.zeros((3, time), np.int32)
        for row, length in enumerate(self.lengths):
            whole = np.concatenate([self.prompts[row, :length], samples.token_ids[row]])
            ids[row, : len(whole)], mask[row, : len(whole)] = whole, 1
        # Without the ban, a sampled image id would be counted as an image here.
        hidden = self.model.hidden(
            self.model.params,
            ids,
            attention_mask=mask,
            image_features=self.features,
            image_grid_thw=self.grids,
        )
        where = self.lengths[:, None] + np.arange(NEW)[None]
        return token_log_probs(
            jnp.take_along_axis(hidden, where[:, :, None] - 1, axis=1),
            self.model.output_embedding(self.model.params),
            np.take_along_axis(ids, where, axis=1),
            chunk_size=16,
            temperature=temperature,
            banned=self.ban,
        )

    @parameterized.parameters(
        dict(temperature=1.0),
        dict(temperature=0.6),
        dict(temperature=0.6, top_p=0.8, top_k=20),
        dict(temperature=0.0),
    )
    def test_log_probs_equal_the_trainers(self, **options):
        found = self.sample(**options)
        expected = self.trainer_log_probs(found, options["temperature"] or 1.0)
        np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)
        self.assertLess(found.log_probs.min(), -1.0)

    def test_raw_log_probs_are_the_models_own(self):
        found = self.sample(temperature=0.6, top_k=20)
        ban, self.ban = self.ban, self.no_ban
        self.addCleanup(setattr, self, "ban", ban)
        expected = self.trainer_log_probs(found, 1.0)
        np.testing.assert_allclose(found.raw_log_probs, expected, atol=1e-4)
        self.assertGreater(np.abs(found.raw_log_probs - found.log_probs).max(), 0.1)

    def test_a_row_does_not_depend_on_batch_or_padding(self):
        together = self.sample()
        padded = self.sample(padding=9)
        np.testing.assert_array_equal(padded.token_ids, together.token_ids)
        np.testing.assert_allclose(padded.log_probs, together.log_probs, atol=1e-4)
        # The second prompt is the one without images.
        alone = self.sample(rows=[1], seeds=SEEDS[1:2])
        np.testing.assert_array_equal(alone.token_ids[0], together.token_ids[1])
        crowd = self.sample(rows=[1] * 5, seeds=[(9,), (8,), SEEDS[1], (7,), SEEDS[1]])
        for row in (2, 4):
            np.testing.assert_array_equal(crowd.token_ids[row], together.token_ids[1])
        self.assertLen({tuple(row) for row in crowd.token_ids}, 4)

    def test_a_shared_prompt_is_as_one_of_its_own(self):
        together = self.sample()
        places = np.array([1, 0, -1, 1, 2], np.int32)
        seeds = [SEEDS[1], SEEDS[0], (), (9,), SEEDS[2]]
        found = self.sample(seeds=seeds, continues=places)
        for row, expected in ((0, 1), (1, 0), (4, 2)):
            np.testing.assert_array_equal(found.token_ids[row], together.token_ids[expected])
            np.testing.assert_allclose(
                found.log_probs[row], together.log_probs[expected], atol=1e-4
            )
        np.testing.assert_array_equal(found.lengths, [NEW, NEW, 0, NEW, NEW])
        self.assertFalse(np.array_equal(found.token_ids[3], found.token_ids[0]))

    def test_a_stop_id_ends_its_row_alone(self):
        free = self.sample()
        stop = int(free.token_ids[0, 4])
        first = [int(np.argmax(row == stop)) if stop in row else NEW - 1 for row in free.token_ids]
        found = self.sample(stop_ids=(stop,))
        np.testing.assert_array_equal(found.lengths, [place + 1 for place in first])
        np.testing.assert_array_equal(found.finished, [stop in row for row in free.token_ids])
        self.assertTrue(found.finished[0])
        self.assertFalse(found.finished.all())
        for row, length in enumerate(found.lengths):
            np.testing.assert_array_equal(
                found.token_ids[row, :length], free.token_ids[row, :length]
            )
            np.testing.assert_allclose(
                found.log_probs[row, :length], free.log_probs[row, :length], atol=1e-5
            )

    def test_all_rows_done_ends_the_loop(self):
        found = self.sample(stop_ids=(7,), banned=np.arange(self.vocab) != 7)
        np.testing.assert_array_equal(found.lengths, [1] * 3)
        # What would come next was never sampled.
        np.testing.assert_array_equal(found.token_ids[:, 1:], 0)

    def test_a_row_of_no_tokens_samples_nothing(self):
        lengths = self.lengths
        self.lengths = np.array([0, lengths[1]], np.int32)
        self.addCleanup(setattr, self, "lengths", lengths)
        found = self.sample(rows=[0, 1], seeds=SEEDS[:2])
        np.testing.assert_array_equal(found.lengths, [0, NEW])

    def test_banned_ids_are_never_sampled(self):
        only = np.arange(self.vocab) != 7
        found = self.sample(banned=only)
        np.testing.assert_array_equal(found.token_ids, 7)
        np.testing.assert_array_equal(found.log_probs, 0.0)

    @parameterized.parameters(
        dict(temperature=1.0),
        dict(temperature=0.5),
        dict(temperature=1.0, top_k=4),
        dict(temperature=1.0, top_p=0.6),
        dict(temperature=0.7, top_p=0.7, top_k=9),
        dict(temperature=1.0, min_p=0.2),
        dict(temperature=0.7, top_k=9, min_p=0.1),
    )
    def test_frequencies_are_the_probabilities(self, temperature, top_p=1.0, top_k=0, min_p=0.0):
        count = 8192
        logits = np.random.default_rng(3).normal(size=20) * 1.5
        scaled = np.where(np.arange(20) == 2, -np.inf, logits / temperature)
        expected = np.exp(scaled - scaled.max())
        # By the definitions: the top k, of them the fewest that reach p together.
        order = np.argsort(-expected)[: top_k or 20]
        kept = np.zeros(20, bool)
        for place, token in enumerate(order):
            kept[token] = True
            if expected[order[: place + 1]].sum() >= top_p * expected[order].sum():
                break
        expected = np.where(kept & (expected >= min_p * expected.max()), expected, 0)
        expected /= expected.sum()

        tokens = sample_once(
            logits,
            [(row,) for row in range(count)],
            banned=np.arange(20) == 2,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
        )
        found = np.bincount(tokens, minlength=20) / count
        np.testing.assert_array_equal(found[expected == 0], 0)
        # Four standard deviations of a count.
        spread = np.sqrt(expected * (1 - expected) / count)
        np.testing.assert_array_less(np.abs(found - expected), 4 * spread + 1e-9)

    def test_programs_are_compiled_once_a_shape(self):
        seeds = [(row,) for row in range(7)]
        before = generate.program_count()
        sample_once(np.zeros(9), seeds, banned=np.zeros(9, bool), temperature=1.0)
        self.assertEqual(generate.program_count(), before + 2)
        sample_once(np.ones(9), seeds[::-1], banned=np.arange(9) == 3, temperature=0.3)
        sample_once(np.ones(9), seeds, banned=np.zeros(9, bool), temperature=0.0)
        self.assertEqual(generate.program_count(), before + 2)
        sample_once(np.ones(9), seeds[:6], banned=np.zeros(9, bool), temperature=0.0)
        self.assertEqual(generate.program_count(), before + 4)

    @parameterized.parameters(
        (dict(temperature=-1.0), "temperature -1.0"),
        (dict(temperature=float("nan")), "temperature nan"),
        (dict(top_p=0.0), "top_p 0.0"),
        (dict(top_k=-1), "top_k -1"),
        (dict(min_p=1.5), "min_p 1.5"),
        (dict(seeds=[(1,)]), r"expected \(\(3,\), \(3, 3, 25\), \(3,\)\)"),
    )
    def test_what_cannot_be_sampled_is_refused(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            self.sample(**options)


class FixedLogits:
    """A model that says the same whatever it reads."""

    def init_cache(self, batch, slots, dtype):
        keys = jnp.zeros((1, batch, slots, 1, 1), dtype)
        return KVCache(keys, keys, jnp.zeros((batch, slots), bool), jnp.zeros(batch, jnp.int32))

    def hidden(self, params, input_ids, *, attention_mask, cache, **_):
        index = cache.index + attention_mask.sum(axis=1, dtype=jnp.int32)
        return jnp.ones((*input_ids.shape, 1)), cache._replace(index=index)

    def output_embedding(self, params):
        return params["logits"]


FIXED_LOGITS = FixedLogits()


def sample_once(logits, seeds, **options):
    """One token a row from the same logits."""
    scale = np.zeros(1, np.float32)
    count = len(seeds)
    samples = generate.sample(
        FIXED_LOGITS,
        {"language_model": {"norm": {"scale": scale}}, "logits": jnp.float32(logits)[:, None]},
        np.zeros((count, 1), np.int32),
        np.ones(count, np.int32),
        np.zeros((3, count, 1), np.int32),
        None,
        generate.row_keys(seeds),
        max_new_tokens=1,
        stop_ids=(1,),
        **options,
    )
    return np.asarray(samples.token_ids[:, 0])


class RowKeysTest(parameterized.TestCase):
    def test_folded_in_order_and_by_nothing_else(self):
        found = generate.row_keys([(1, 2, 3), (), (4,)])
        fold, root = jax.random.fold_in, jax.random.key(0)
        expected = [fold(fold(fold(root, 1), 2), 3), root, fold(root, 4)]
        for key, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(wanted))
        (key,) = generate.row_keys([()])
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(root))

    def test_all_parts_of_a_seed_count(self):
        seeds = [(0,), (0, 0), (1,), (0, 1), (1, 0), (2**32 - 1,)]
        data = np.asarray(jax.random.key_data(generate.row_keys(seeds)))
        self.assertLen({tuple(row) for row in data}, len(seeds))

    @parameterized.parameters(-1, 2**32)
    def test_an_integer_that_would_be_cut_is_refused(self, number):
        with self.assertRaisesRegex(ValueError, "expected integers from 0 to 4294967295"):
            generate.row_keys([(1, number)])


if __name__ == "__main__":
    absltest.main()
