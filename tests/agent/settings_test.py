"""Gold pages given to the agent; one turn from shown pages: the first, or those that match."""

import dataclasses
import json

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.agent import settings
from awm_jax.agent.prompts import DIRECT_SYSTEM
from awm_jax.types import Memory, Message, Page, Question, Sample, ToolCall

QUESTION = Question("q0", "rivers.pdf", "How wide is the Cam?", "42", "Int")
EMPTY = np.zeros(0, np.int32)


def render(document, number):
    return Page(document, number, np.zeros((2, 2, 3), np.uint8), f"{document}/{number}")


def search(document, query, top_k):
    if document == "lost.pdf":
        raise OSError("not indexed")
    return [7, 3, 5, 1][:top_k]


class EvidenceGivenTest(absltest.TestCase):
    def test_every_search_finds_the_gold_pages_of_its_own_question(self):
        def generate(prompts, *, temperature):
            # The second message cites the gold page of its own question.
            said = []
            for prompt in prompts:
                task, turn = prompt.seed
                search = ToolCall("search_pages", {"query": "anything"})
                note = ToolCall("update_memory", {"source_page": 2 + task, "finding": "a"})
                calls = [search] if turn == 0 else [note, ToolCall("answer", {"answer": "42"})]
                text = "".join(f"<tool_call>{json.dumps(vars(call))}" for call in calls)
                said.append(Sample(EMPTY, EMPTY, EMPTY, text, "stop"))
            return said

        tasks = [
            (dataclasses.replace(QUESTION, id="q0", evidence_pages=(2,)), 0, (0,)),
            (dataclasses.replace(QUESTION, id="q1", evidence_pages=(7, 3)), 0, (1,)),
        ]
        trajectories = settings.evidence_given(tasks, generate, render=render)
        shown = [t.turns[0].observation[::2] for t in trajectories]
        self.assertEqual(shown, [("Page 2:",), ("Page 7:", "Page 3:")])
        self.assertEqual([t.status for t in trajectories], ["answered"] * 2)
        self.assertEqual([t.memory.text for t in trajectories], ["[page 2] a", "[page 3] a"])

    def test_questions_without_gold_pages_are_named(self):
        with self.assertRaisesRegex(ValueError, "q0"):
            settings.evidence_given([(QUESTION, 0, ())], self.fail, render=render)


class OneTurnTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.prompts = []
        self.reply = (" 42\n", "stop")

    def generate(self, prompts, *, temperature):
        self.prompts += prompts
        text, reason = self.reply
        return [Sample(EMPTY, EMPTY, EMPTY, text, reason) for _ in prompts]

    def rag(self, question=QUESTION):
        [trajectory] = settings.rag(
            [(question, 2, (4,))], self.generate, search=search, render=render
        )
        return trajectory

    def shown(self):
        system, user = self.prompts[0].messages
        self.assertEqual(system, Message("system", (DIRECT_SYSTEM,)))
        self.assertEqual(user.content[-1], "Question: How wide is the Cam?")
        return [part.number for part in user.content if isinstance(part, Page)]

    def test_rag_shows_the_best_pages_and_takes_the_reply(self):
        trajectory = self.rag()
        self.assertEqual(self.shown(), [7, 3, 5])
        self.assertEqual(self.prompts[0].tools, ())
        self.assertEqual(self.prompts[0].seed, (4, 0))
        self.assertEqual((trajectory.status, trajectory.final_answer), ("answered", "42"))
        self.assertEqual((trajectory.memory, trajectory.rollout), (Memory(), 2))
        self.assertLen(trajectory.turns, 1)

    @parameterized.parameters((5, 120, 5), (5, 2, 2), (200, 120, 120))
    def test_direct_shows_the_first_pages(self, page_count, max_pages, expected):
        [trajectory] = settings.direct(
            [(QUESTION, 0, ())],
            self.generate,
            page_count=lambda document: page_count,
            render=render,
            max_pages=max_pages,
        )
        self.assertEqual(self.shown(), list(range(1, expected + 1)))
        self.assertEqual(trajectory.final_answer, "42")

    @parameterized.parameters(
        ("<think>43?</think>\n42", "stop", "answered", "42"),
        ("<think>43? 42", "length", "step_budget", ""),
        ("", "stop", "step_budget", ""),
        ("", "context_full", "context_full", ""),
    )
    def test_ends(self, text, reason, status, answer):
        self.reply = (text, reason)
        trajectory = self.rag()
        self.assertEqual((trajectory.status, trajectory.final_answer), (status, answer))
        self.assertTrue(trajectory.valid)

    def test_a_search_that_breaks_is_a_tool_error_of_its_rollout_alone(self):
        lost = Question("q1", "lost.pdf", "How wide?", "42", "Int")
        tasks = [(lost, 0, ()), (QUESTION, 0, ())]
        trajectories = settings.rag(tasks, self.generate, search=search, render=render)
        self.assertEqual([t.status for t in trajectories], ["tool_error", "answered"])
        self.assertRegex(trajectories[0].error, "lost.pdf.*not indexed")
        self.assertLen(self.prompts, 1)


if __name__ == "__main__":
    absltest.main()
