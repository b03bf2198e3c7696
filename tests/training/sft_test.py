"""Recorded trajectories to training sequences: which tokens, and what is refused."""

import dataclasses
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from absl.testing import absltest, parameterized

from awm_jax.agent.rollout import RolloutSettings, run_rollouts
from awm_jax.models import processor as processors
from awm_jax.training import batch, sft
from awm_jax.types import Message, Page, Question, Sample, ToolCall

TINY = pathlib.Path(__file__).parents[2] / "experiments" / "tiny_world" / "policy"
EMPTY = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
QUESTION = Question("q", "d.pdf", "What is the depth of Avon?", "47", "Int", (2,))
# One control token each; every other character is a token of its own.
CONTROL = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def call(name, **arguments):
    return processors.render_call(name, arguments)


SEARCH = call("search_pages", query="depth of Avon")
NOTE = call("update_memory", source_page=2, finding="depth of Avon is 47")
ANSWER = call("answer", answer="47")


def page(document, number):
    return Page(document, number, np.full((64, 64, 3), 10 * number, np.uint8), str(number))


def recorded(*texts, context="memory"):
    """What the agent makes of these messages, pages 2 and 3 found by each search."""
    said = iter(texts)
    (trajectory,) = run_rollouts(
        [(QUESTION, 0, ())],
        lambda prompts, *, temperature: [Sample(*EMPTY, next(said), "stop")],
        search=lambda document, query, count: [2, 3],
        render=page,
        settings=RolloutSettings(context=context),
    )
    return trajectory


def character_processor():
    vocab = {token: i for i, token in enumerate((*CONTROL, *map(chr, range(10, 127))))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(list(CONTROL))
    return processors.Processor(tokenizer, None, None, (1,), 0, (0,))


class ChatTokensTest(absltest.TestCase):
    def test_trained_tokens_counted_by_hand(self):
        messages = (
            Message("user", ("Hi",)),
            Sample(*EMPTY, "No.", "stop"),
            Message("tool", ("Call a tool.",)),
            Sample(*EMPTY, '<tool_call>\n{"name": "answer", "arguments": {"answer": "4"}}\n'
                   "</tool_call>", "stop"),
        )  # fmt: skip
        ids, trained, pages = sft.chat_tokens(
            messages, (), [False, True], processor=character_processor()
        )
        # Two tags, two line ends, the JSON's 48 characters, the end token.
        self.assertEqual(trained.sum(), 2 + 2 + 48 + 1)
        self.assertTrue(trained[-53:].all())
        self.assertEqual(ids[-1], 1)
        self.assertEqual(pages, ())

    def test_parts_tokenized_apart_are_the_whole_chat(self):
        processor = processors.load_processor(TINY)
        (sequence,) = sft.lesson(
            recorded(SEARCH, NOTE + "\n" + ANSWER, context="full"),
            0,
            processor=processor,
            render=page,
            settings=RolloutSettings(context="full"),
        )
        (text,) = processor.decode([sequence.token_ids])
        text = text.replace(processors.IMAGE * 4, processors.IMAGE)
        (ids,) = processor.encode([text], [[(1, 4, 4), (1, 4, 4)]])
        np.testing.assert_array_equal(sequence.token_ids, ids)
        self.assertEqual(text.count("<|im_start|>assistant\n<tool_call>"), 2)


class LessonTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.processor = processors.load_processor(TINY)

    def lesson(self, trajectory, **settings):
        return sft.lesson(
            trajectory,
            3,
            processor=self.processor,
            render=page,
            settings=RolloutSettings(**settings),
        )

    def taught(self, sequence):
        return self.processor.decode([sequence.token_ids[sequence.trained]])[0]

    def test_a_context_a_sequence_and_assistant_messages_alone(self):
        search, answer = self.lesson(recorded(SEARCH, NOTE + "\n" + ANSWER))
        self.assertEqual(self.taught(search), SEARCH + "<|im_end|>")
        self.assertEqual(self.taught(answer), f"{NOTE}\n{ANSWER}<|im_end|>")
        self.assertEqual([p.number for p in answer.pages], [2, 3])
        self.assertEqual((search.pages, search.trajectory), ((), 3))
        np.testing.assert_array_equal(answer.old_log_probs, np.zeros(len(answer.token_ids)))

    def test_the_policys_context_decides_whatever_the_teachers_was(self):
        trajectory = recorded(SEARCH, NOTE, ANSWER, context="full")
        (whole,) = self.lesson(trajectory, context="full")
        self.assertEqual(self.taught(whole).count("<|im_end|>"), 3)
        self.assertLen(self.lesson(trajectory, context="memory"), 2)

    def test_prompts_are_those_that_the_policy_reads(self):
        trajectory = recorded(SEARCH, NOTE, ANSWER)
        prompts, _ = sft._replay(trajectory, page, RolloutSettings())
        found = self.lesson(trajectory)
        for prompt, sequence in zip(prompts[:2], found, strict=True):
            text = processors.render_chat(prompt.messages, prompt.tools)
            grids = [(1, 4, 4)] * text.count(processors.IMAGE)
            (ids,) = self.processor.encode([text], [grids])
            np.testing.assert_array_equal(sequence.token_ids[: len(ids)], ids)
            self.assertEqual(sequence.trained.argmax(), len(ids))

    def test_mistakes_stay_in_view_and_are_not_trained(self):
        mistake = call("answer", answer="12")
        *_, last = self.lesson(recorded(SEARCH, mistake, "<|im_end|> hm", NOTE, ANSWER))
        (text,) = self.processor.decode([last.token_ids])
        self.assertIn(mistake, text)
        self.assertIn("< |im_end|> hm", text)
        self.assertEqual(self.taught(last), f"{NOTE}<|im_end|>{ANSWER}<|im_end|>")

    def test_thoughts_and_sloppy_json_are_taught_as_the_format_wants(self):
        sloppy = "<think>Hm.</think>I look.<tool_call>{'name': 'search_pages', 'arguments': "
        sloppy += "{'query': 'depth of Avon', 'doc': 1}}"
        first, _ = self.lesson(recorded(sloppy, NOTE + ANSWER))
        self.assertEqual(self.taught(first), f"I look.\n{SEARCH}<|im_end|>")

    def test_a_template_that_drops_calls_is_an_error(self):
        trajectory = recorded(SEARCH, NOTE + ANSWER)
        with (
            mock.patch.object(processors, "render_call", lambda name, arguments: ""),
            self.assertRaisesRegex(ValueError, "do not lead through it"),
        ):
            self.lesson(trajectory)

    def test_a_tokenizer_that_drops_calls_is_an_error(self):
        class Dropping(processors.Processor):
            def encode(self, texts, grids):
                return super().encode([t.replace("answer", "?") for t in texts], grids)

        fields = {f.name: getattr(self.processor, f.name) for f in dataclasses.fields(Dropping)}
        with self.assertRaisesRegex(ValueError, "tokens do not hold the calls"):
            sft.lesson(
                recorded(SEARCH, NOTE + ANSWER), 0, processor=Dropping(**fields), render=page
            )

    def test_what_does_not_come_to_the_same_end_is_refused(self):
        trajectory = recorded(SEARCH, NOTE + ANSWER)
        with self.assertRaisesRegex(ValueError, "final answer: recorded '48', played again '47'"):
            self.lesson(dataclasses.replace(trajectory, final_answer="48"))
        with self.assertRaisesRegex(ValueError, "at most 3"):
            self.lesson(trajectory, max_words=3)
        with self.assertRaisesRegex(ValueError, "recorded 'answered', played again 'step_budget'"):
            self.lesson(dataclasses.replace(trajectory, turns=trajectory.turns[:1]))

    def test_a_trajectory_without_an_answer_is_refused(self):
        with self.assertRaisesRegex(ValueError, "ended with malformed"):
            self.lesson(recorded("one", "two", "three"))

    def test_letters_that_the_tokenizer_composes_count_as_the_same(self):
        spelt = call("update_memory", source_page=2, finding="Cafe\u0301")
        composed = ToolCall("update_memory", {"source_page": 2, "finding": "Caf\u00e9"})
        trajectory = recorded(SEARCH, spelt + ANSWER)
        self.assertEqual(sft._canonical(trajectory.turns[1].calls[0]), sft._canonical(composed))

    def test_oversized_names_what_does_not_fit(self):
        sequences = self.lesson(recorded(SEARCH, NOTE + ANSWER))
        small = batch.PackShape(1, 4096, 7, 2, 2)
        found = sft.oversized(sequences, small, image_token_id=self.processor.image_token_id)
        self.assertRegex(
            "; ".join(found), "8 image tokens, at most 7; .* trained tokens, at most 4"
        )


class LossTest(absltest.TestCase):
    def test_cross_entropy_by_hand_and_garbage_under_the_mask(self):
        log_probs = jnp.log(jnp.array([[0.5, 0.25], [0.5, jnp.nan]]))
        mask = jnp.array([[True, True], [True, False]])

        def total(x):
            loss, _ = sft.cross_entropy(x, None, None, mask)
            return loss.total, loss.weight

        gradient, weight = jax.grad(total, has_aux=True)(log_probs)
        # -log(1/2) - log(1/4) - log(1/2) = 4 log 2.
        self.assertAlmostEqual(float(total(log_probs)[0]), 4 * np.log(2), places=5)
        self.assertEqual(weight, 3)
        np.testing.assert_array_equal(gradient, [[-1, -1], [-1, 0]])

    def test_the_rate_rises_and_falls(self):
        rate = sft.schedule(
            updates=100, learning_rate=1.0, final_learning_rate=0.1, warmup_share=0.1
        )
        np.testing.assert_allclose(
            [rate(0), rate(10), rate(55), rate(100)], [1 / 11, 1.0, 0.55, 0.1], rtol=1e-5
        )
        with self.assertRaisesRegex(ValueError, "warmup_share"):
            sft.schedule(updates=1, learning_rate=1.0, final_learning_rate=0.1, warmup_share=1.0)


if __name__ == "__main__":
    absltest.main()
