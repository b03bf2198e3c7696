"""The policy as the host sees it: prompts in, samples out, whatever stands beside them."""

import dataclasses
import functools
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

from awm_jax import policy
from awm_jax.models import encode, generate, hf, processor
from awm_jax.types import Message, Page, Prompt, Sample, ToolCall

DATA = pathlib.Path(__file__).parent / "data"
NEW = 6
SHAPES = dict(max_new_tokens=NEW, prompt_buckets=(112,), batch_buckets=(1, 4))
TOOLS = ({"type": "function", "function": {"name": "look"}},)


def setUpModule():
    jax.config.update("jax_default_matmul_precision", "highest")


def tearDownModule():
    jax.config.update("jax_default_matmul_precision", None)


def page(number, height=16, width=24):
    image = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    return Page("river.pdf", number, image, f"digest {number}")


def prompt(*content, seed=0, then=()):
    return Prompt((Message("user", content), *then), seed=(3, seed))


PROMPTS = (
    prompt("What is it?", seed=0),
    prompt("Page 1:", page(1), "Page 2:", page(2, 8, 8), "Which?", seed=1),
    prompt("Hi", seed=2),
    prompt("A longer question about the width of a river in a table.", page(1), seed=3),
)


def ids_of(sample):
    return np.concatenate([sample.prompt_ids, sample.token_ids])


class GenerateTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.processor = processor.load_processor(DATA / "tiny_processor")
        config = hf.load_config(DATA / "tiny_processor")
        cls.model = hf.init_model(config, jax.random.key(1))
        cls.features = policy.PageFeatures(cls.model, cls.model.params, cls.processor)
        cls.generate = staticmethod(cls.make())
        cls.samples = cls.generate(PROMPTS, temperature=1.0)

    @classmethod
    def make(cls, **options):
        options = SHAPES | {"page_features": cls.features, "policy_version": 5} | options
        return policy.make_generate(cls.model, cls.model.params, cls.processor, **options)

    def assertSameSample(self, found, expected):
        np.testing.assert_array_equal(found.prompt_ids, expected.prompt_ids)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
        self.assertEqual(found.finish_reason, expected.finish_reason)
        self.assertEqual(found.text, expected.text)

    def test_samples_say_all_that_training_needs(self):
        for asked, sample in zip(PROMPTS, self.samples, strict=True):
            self.assertBetween(len(sample.token_ids), 1, NEW)
            self.assertEqual(sample.log_probs.shape, sample.token_ids.shape)
            self.assertEqual(
                (sample.prompt_ids.dtype, sample.token_ids.dtype, sample.log_probs.dtype),
                (np.int32, np.int32, np.float32),
            )
            self.assertTrue((sample.log_probs < 0).all())
            shown = [part for part in asked.messages[0].content if isinstance(part, Page)]
            self.assertEqual([p.digest for p in sample.pages], [p.digest for p in shown])
            tokens = sum(
                self.processor.image_tokens(policy.page_grid(self.processor, p)) for p in shown
            )
            is_image = sample.prompt_ids == self.processor.image_token_id
            self.assertEqual(is_image.sum(), tokens)
            self.assertEqual(sample.policy_version, 5)

    def test_order_and_neighbours_change_nothing(self):
        for found, expected in zip(
            self.generate(PROMPTS[::-1], temperature=1.0)[::-1], self.samples, strict=True
        ):
            self.assertSameSample(found, expected)
        for index in (1, 2):
            (alone,) = self.generate([PROMPTS[index]], temperature=1.0)
            self.assertSameSample(alone, self.samples[index])

    def test_a_group_that_shares_its_prompt_reads_it_once(self):
        # Four rollouts of two prompts: the tower and the prefill see two, the samples are four.
        group = [dataclasses.replace(PROMPTS[i], seed=(3, s)) for i, s in ((1, 1), (3, 3))]
        others = [dataclasses.replace(each, seed=(4, 4)) for each in group]
        first, second, third, fourth = self.generate([*group, *others], temperature=1.0)
        self.assertSameSample(first, self.samples[1])
        self.assertSameSample(second, self.samples[3])
        np.testing.assert_array_equal(third.prompt_ids, first.prompt_ids)
        self.assertFalse(np.array_equal(third.token_ids, first.token_ids))
        self.assertFalse(np.array_equal(fourth.token_ids, second.token_ids))
        # The same ids with another page are another prompt.
        other = prompt("Page 1:", page(7), "Page 2:", page(2, 8, 8), "Which?", seed=1)
        mixed = self.generate([other, PROMPTS[1], other], temperature=0.0)
        alone = self.generate([PROMPTS[1]], temperature=0.0)
        np.testing.assert_array_equal(mixed[0].prompt_ids, mixed[1].prompt_ids)
        np.testing.assert_allclose(mixed[1].log_probs, alone[0].log_probs, atol=1e-4)
        self.assertGreater(np.abs(mixed[0].log_probs - alone[0].log_probs).max(), 1e-3)

    def test_the_seed_alone_makes_the_difference(self):
        same = [dataclasses.replace(PROMPTS[0], seed=seed) for seed in ((1,), (2,), (1,))]
        first, second, again = self.generate(same, temperature=1.0)
        self.assertSameSample(again, first)
        self.assertFalse(np.array_equal(first.token_ids, second.token_ids))
        first, second, _ = self.generate(same, temperature=0.0)
        self.assertSameSample(first, second)

    def test_log_probs_equal_a_forward_pass_with_the_pages(self):
        sample, ids = self.samples[1], ids_of(self.samples[1])
        patches, grids = zip(
            *(processor.process_image(p.image, self.processor.image) for p in sample.pages),
            strict=True,
        )
        logits = self.model.apply(
            self.model.params,
            ids[None],
            position_ids=policy.page_positions(self.processor, ids, sample.pages)[:, None],
            pixel_values=np.concatenate(patches),
            image_grid_thw=np.array(grids),
        )[0]
        banned = self.processor.banned(self.model.config.text.vocab_size)
        log_probs = jax.nn.log_softmax(np.where(banned[None], -np.inf, logits))
        where = np.arange(len(sample.prompt_ids), len(ids))
        np.testing.assert_allclose(sample.log_probs, log_probs[where - 1, ids[where]], atol=1e-4)

    def test_later_turns_extend_all_ids_so_far(self):
        sampled = self.samples[1]
        # Ids that no tokenizer would give for their text, cut short and ended.
        odd = np.array([40, 40, 41, 256 + 7, 42], np.int32)
        cut = dataclasses.replace(sampled, token_ids=odd, log_probs=np.zeros(5, np.float32))
        end = self.processor.stop_ids[0]
        ended = dataclasses.replace(cut, token_ids=np.append(odd, end).astype(np.int32))
        after = (Message("tool", ("Page 3:", page(3))),)
        first = PROMPTS[1].messages
        results = self.generate(
            [Prompt((*first, earlier, *after), TOOLS, (1, 1)) for earlier in (cut, ended)],
            temperature=1.0,
        )
        new = []
        for earlier, result in zip((cut, ended), results, strict=True):
            kept = ids_of(earlier)
            np.testing.assert_array_equal(result.prompt_ids[: len(kept)], kept)
            new += self.processor.decode([result.prompt_ids[len(kept) :]])
            self.assertEqual([p.number for p in result.pages], [1, 2, 3])
        self.assertEqual(new[0], "<|im_end|>" + new[1])
        self.assertStartsWith(
            new[1], "\n<|im_start|>user\n<tool_response>\nPage 3:<|vision_start|>"
        )
        self.assertEndsWith(new[1], "</tool_response><|im_end|>\n<|im_start|>assistant\n")
        # Both go on alike, since both contexts are the same now.
        np.testing.assert_array_equal(results[0].prompt_ids, results[1].prompt_ids)

        later = Prompt((*first, ended, *after, results[1], *after), TOOLS, (1, 2))
        (third,) = self.generate([later], temperature=1.0)
        kept = ids_of(results[1])
        np.testing.assert_array_equal(third.prompt_ids[: len(kept)], kept)
        self.assertEqual([p.number for p in third.pages], [1, 2, 3, 3])

    def test_calls_and_tools_are_rendered(self):
        call = ToolCall("look", {"at": "<|im_end|>"})
        asked = Prompt(
            (
                Message("user", ("Hi",)),
                Message("assistant", calls=(call,)),
                Message("tool", ("x",)),
            ),
            TOOLS,
        )
        # Too long to be sampled, and rendered all the same.
        (sample,) = self.generate([asked], temperature=0.0)
        self.assertEqual(sample.finish_reason, "context_full")
        (text,) = self.processor.decode([sample.prompt_ids])
        self.assertEqual(text, processor.render_chat(asked.messages, TOOLS))
        self.assertIn('{"name": "look", "arguments": {"at": "\\u003c|im_end|>"}}', text)

    def test_a_prompt_that_does_not_fit_harms_no_neighbour(self):
        long = prompt(*["word " * 200, page(9)], seed=9)
        found = self.generate([PROMPTS[0], long, PROMPTS[1]], temperature=1.0)
        self.assertSameSample(found[0], self.samples[0])
        self.assertSameSample(found[2], self.samples[1])
        self.assertEqual(found[1].finish_reason, "context_full")
        self.assertEqual(found[1].text, "")
        self.assertEmpty(found[1].token_ids)
        self.assertEmpty(found[1].log_probs)
        self.assertGreater(len(found[1].prompt_ids), 112)
        self.assertLen(found[1].pages, 1)
        (alone,) = self.generate([long], temperature=1.0)
        self.assertEqual(alone.finish_reason, "context_full")
        self.assertEmpty(self.generate([], temperature=1.0))

    def test_end_tokens_stay_in_the_ids_and_leave_the_text(self):
        # With everything else banned, the end is all that can be sampled.
        end = self.processor.stop_ids[0]
        others = tuple(i for i in range(300) if i not in self.processor.stop_ids[:1])
        silent = dataclasses.replace(
            self.processor, control_ids=others, stop_ids=self.processor.stop_ids[:1]
        )
        ends = policy.make_generate(self.model, self.model.params, silent, **SHAPES)
        (sample,) = ends(PROMPTS[:1], temperature=1.0)
        np.testing.assert_array_equal(sample.token_ids, [end])
        self.assertEqual((sample.text, sample.finish_reason), ("", "stop"))

    def test_programs_are_bounded_by_the_buckets(self):
        before = generate.program_count(), encode.program_count()
        many = [prompt("word " * n, seed=n) for n in range(10)]
        many += [prompt("word " * n, page(n % 3 + 1), seed=n) for n in range(5)]
        found = self.generate(many, temperature=1.0)
        self.assertEqual({s.finish_reason for s in found} - {"stop", "length"}, set())
        # Two sizes of batch; one decode program and two for the prompt, with images and without.
        self.assertLessEqual(generate.program_count() - before[0], 2 * 3)
        after = generate.program_count(), encode.program_count()
        self.generate(many[3:] + many[:2], temperature=0.5)
        self.assertEqual((generate.program_count(), encode.program_count()), after)

    def turns(self, generate, count=3, rollouts=3):
        """Samples of conversations of a few turns that are shown a page in each."""
        found = []
        open_ = [dataclasses.replace(PROMPTS[i % 2], seed=(3, i)) for i in range(rollouts)]
        for turn in range(count):
            samples = generate(open_, temperature=1.0)
            self.assertNotIn("context_full", [sample.finish_reason for sample in samples])
            found += samples
            after = Message("tool", (f"Page {turn}:", page(turn + 5, 8, 8)))
            open_ = [
                Prompt((*p.messages, sample, after), seed=(*p.seed, turn))
                for p, sample in zip(open_, samples, strict=True)
            ]
        return found

    def test_a_later_turn_reads_only_what_is_new(self):
        shapes = dict(prompt_buckets=(200,), batch_buckets=(4,))
        kept, forgetful = self.make(**shapes), self.make(**shapes)

        def read_anew(prompts, temperature):
            forgetful.release()
            return forgetful(prompts, temperature=temperature)

        found, expected = self.turns(kept), self.turns(read_anew)
        for a, b in zip(found, expected, strict=True):
            self.assertSameSample(a, b)
        # All but the last token of what went before was there; the rest was read once.
        before = sum(len(ids_of(sample)) - 1 for sample in found[:6])
        self.assertEqual(kept.metrics["cache/reused_tokens"], before)
        self.assertEqual(forgetful.metrics["cache/reused_tokens"], 0)
        whole = sum(len(sample.prompt_ids) - 1 for sample in found)
        # Two of the three rollouts begin alike.
        shared = len(found[0].prompt_ids) - 1
        self.assertEqual(kept.metrics["cache/read_tokens"], whole - before - shared)
        self.assertEqual(
            kept.metrics["cache/bytes"], 2 * 4 * np.prod(self.cache_shape(4, 200 + NEW))
        )

    def cache_shape(self, rows, slots):
        text = self.model.config.text
        return text.num_hidden_layers, rows, slots, text.num_key_value_heads, text.head_dim

    def test_rows_that_were_given_away_change_nothing(self):
        shapes = dict(prompt_buckets=(200,), decode_chunk=2)
        expected = self.turns(self.make(batch_buckets=(4,), **shapes), rollouts=5)
        few = self.make(batch_buckets=(2,), **shapes)
        for a, b in zip(self.turns(few, rollouts=5), expected, strict=True):
            self.assertSameSample(a, b)
        # Two rows for five conversations: two of them are still there at the next turn.
        self.assertGreater(few.metrics["cache/reused_tokens"], 0)
        many = self.make(batch_buckets=(2,), cache_rows=5, **shapes)
        for a, b in zip(self.turns(many, rollouts=5), expected, strict=True):
            self.assertSameSample(a, b)
        self.assertGreater(many.metrics["cache/reused_tokens"], few.metrics["cache/reused_tokens"])

    def test_pieces_of_a_prompt_are_as_the_whole(self):
        whole = self.make(prompt_buckets=(200,), batch_buckets=(4,))
        # Pieces end within images, whose DeepStack features are cut too.
        pieces = self.make(prompt_buckets=(200,), batch_buckets=(4,), prefill_chunk=7)
        for a, b in zip(self.turns(pieces), self.turns(whole), strict=True):
            self.assertSameSample(a, b)

    def test_a_cache_is_of_one_version_alone(self):
        generate = self.make()
        (sample,) = generate(PROMPTS[:1], temperature=1.0)
        after = Message("user", ("And?",))
        older = dataclasses.replace(sample, policy_version=4)
        generate([Prompt((*PROMPTS[0].messages, older, after))], temperature=1.0)
        self.assertEqual(generate.metrics["cache/reused_tokens"], 0)

    def test_the_same_turn_twice_is_two_conversations(self):
        generate = self.make(prompt_buckets=(200,), batch_buckets=(4,))
        (sample,) = generate(PROMPTS[:1], temperature=1.0)
        later = Prompt((*PROMPTS[0].messages, sample, Message("user", ("And?",))), seed=(7,))
        first, second = generate([later, later], temperature=1.0)
        (third,) = generate([later], temperature=1.0)
        self.assertSameSample(second, first)
        self.assertSameSample(third, first)

    def test_a_page_of_impossible_proportions_fails_its_conversation_alone(self):
        strip = prompt("Look:", page(8, 1, 201), seed=5)
        found, refused = self.generate([PROMPTS[0], strip], temperature=1.0)
        self.assertSameSample(found, self.samples[0])
        expected = "^error: page 8 of river.pdf: an image of 1 x 201 pixels"
        self.assertRegex(refused.finish_reason, expected)
        self.assertEmpty(refused.token_ids)
        self.assertEqual(refused.text, "")

    def test_a_sample_without_ids_cannot_be_continued(self):
        nothing = np.zeros(0, np.int32)
        served = Sample(nothing, nothing, nothing, "Hello", "stop")
        with self.assertRaisesRegex(ValueError, "a sample without token ids"):
            self.generate([prompt("Hi", then=(served,))], temperature=1.0)

    @parameterized.parameters(
        dict(prompt_buckets=()), dict(batch_buckets=(0,)), dict(decode_chunk=0)
    )
    def test_buckets_without_room_are_refused(self, **options):
        with self.assertRaisesRegex(ValueError, "expected positive sizes"):
            self.make(**options)


class PageFeaturesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.processor = processor.load_processor(DATA / "tiny_processor")
        config = hf.load_config(DATA / "tiny_processor")
        cls.model = hf.init_model(config, jax.random.key(1))
        # 24 patches are a size of their own, 36 are padded to 40; of either more than a batch.
        cls.pages = [page(n, 16 + 8 * (n % 2), 24) for n in range(10)]

    def make(self, **options):
        return policy.PageFeatures(self.model, self.model.params, self.processor, **options)

    def test_equal_to_the_tower_on_each_page_alone(self):
        @functools.partial(jax.jit, static_argnums=1)
        def tower(patches, grid):
            return self.model.image_features(self.model.params, patches, np.array([grid]))

        for each, features in zip(self.pages, self.make().encode(self.pages), strict=True):
            patches, grid = processor.process_image(each.image, self.processor.image)
            expected = tower(patches, grid)
            self.assertEqual(features.shape, (np.prod(grid) // 4, 3, 32))
            np.testing.assert_allclose(features[:, 0], expected.merged, atol=1e-5)
            np.testing.assert_allclose(features[:, 1], expected.deepstack[0], atol=1e-5)
            np.testing.assert_allclose(features[:, 2], expected.deepstack[1], atol=1e-5)

    def test_one_at_a_time_no_neighbour_changes_a_bit(self):
        together = self.make(at_once=1).encode(self.pages)
        for each, features in zip(self.pages, together, strict=True):
            np.testing.assert_array_equal(features, self.make(at_once=1)(each))
        with self.assertRaisesRegex(ValueError, "found 0 images at once"):
            self.make(at_once=0).encode(self.pages)

    def test_each_page_is_encoded_once(self):
        features = self.make()
        first = features.encode(self.pages[:3])
        again = features.encode([self.pages[2], self.pages[0], self.pages[0], self.pages[3]])
        # Compared as a bool: a failure would print the arrays.
        self.assertTrue(again[0] is first[2])
        self.assertTrue(again[1] is first[0] and again[2] is first[0])
        self.assertTrue(features(self.pages[3]) is again[3])
        self.assertEqual(features.counts, {"page_misses": 4, "page_hits": 4})

    def test_what_was_not_used_for_longest_is_forgotten(self):
        pages = [page(n, 16, 16) for n in range(4)]
        size = self.make()(pages[0]).nbytes
        features = self.make(capacity_bytes=2 * size)
        first, second = features(pages[0]), features(pages[1])
        self.assertTrue(features(pages[0]) is first)
        features(pages[2])
        self.assertTrue(features(pages[0]) is first)
        self.assertFalse(features(pages[1]) is second)
        # More than fits at once is still given.
        self.assertLen(features.encode(pages), 4)

    def test_sizes_are_few_and_hold_every_page(self):
        patches = np.arange(4, 20000, 4)
        sizes = np.array([encode.rounded_up(int(n)) for n in patches])
        self.assertTrue((sizes >= patches).all())
        self.assertTrue((sizes[4:] < 1.25 * patches[4:]).all())
        self.assertTrue((sizes % 4 == 0).all())
        self.assertLess(len(set(sizes)), 45)


class TextModelTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(DATA / "tiny_processor", folder, dirs_exist_ok=True)
            source = json.loads((folder / "config.json").read_text())["text_config"]
            source |= {"model_type": "qwen3", "rope_scaling": None}
            (folder / "config.json").write_text(json.dumps(source))
            cls.processor = processor.load_processor(folder)
            cls.model = hf.init_model(hf.load_config(folder), jax.random.key(2))
        cls.generate = staticmethod(
            policy.make_generate(
                cls.model, cls.model.params, cls.processor, enable_thinking=False, **SHAPES
            )
        )

    def test_a_reader_answers_without_thinking(self):
        first, second = self.generate([prompt("Hi"), prompt("Ho")], temperature=0.0)
        self.assertFalse(np.array_equal(first.prompt_ids, second.prompt_ids))
        (text,) = self.processor.decode([first.prompt_ids])
        self.assertEndsWith(text, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
        logits = self.model.apply(self.model.params, ids_of(first)[None])[0]
        banned = self.processor.banned(len(logits[0]))
        best = np.argmax(np.where(banned[None], -np.inf, logits), axis=-1)
        start = len(first.prompt_ids)
        np.testing.assert_array_equal(best[start - 1 : -1], first.token_ids)

    def test_pages_are_refused(self):
        with self.assertRaisesRegex(ValueError, "page 1 of river.pdf was shown to a text model"):
            self.generate([PROMPTS[1]], temperature=0.0)


if __name__ == "__main__":
    absltest.main()
