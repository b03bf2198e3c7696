"""Three memories, everything else the same."""

import functools

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.evaluation import controlled, paper
from awm_jax.judging import rule_reader, training_scorer
from awm_jax.types import (
    ANSWERED,
    TOOL_ERROR,
    Finding,
    Memory,
    Page,
    Question,
    Sample,
    Trajectory,
    Verdict,
)


def question(id="q", pages=(2, 5)):
    return Question(id, "d.pdf", "What was the rate?", "4.7", "Float", pages)


def sample(text, finish_reason="stop"):
    nothing = np.zeros(0, np.int32)
    return Sample(nothing, nothing, np.zeros(0, np.float32), text, finish_reason)


def render(document, number):
    return Page(document, number, np.zeros((2, 2, 3), np.uint8), str(number))


class MemoryTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("lines", "[page 2] a b\n- page 5: c", (2, 5), ((2, "a b"), (5, "c"))),
        ("another_page", "[page 3] a\n[page 5] b", (2, 5), ((5, "b"),)),
        ("too_long", f"[page 2] {'w ' * 50}", (2,), ((2, " ".join("w" * 40)),)),
        (
            "one_page",
            "The rate was 4.7.\n\n- It fell.",
            (2,),
            ((2, "The rate was 4.7."), (2, "It fell.")),
        ),
        ("no_page", "The rate was 4.7.", (2, 5), ()),
        ("nothing", "", (2,), ()),
    )
    def test_reply(self, reply, pages, expected):
        found = controlled.parse_memory(reply, pages)
        self.assertEqual(tuple((f.source_page, f.text) for f in found.findings), expected)

    def test_the_writer_sees_the_gold_pages_and_a_failure_is_none(self):
        seen = []

        def generate(prompts, *, temperature):
            seen.extend(prompts)
            return [sample("[page 2] 4.7"), sample("no page"), sample("[page 2] x", "error")]

        with self.assertLogs(level="WARNING") as logs:
            found = controlled.improved_memories(
                generate, [question(), question(), question()], render, seed=(0,)
            )
        self.assertEqual(found, [Memory((Finding(2, "4.7"),)), None, None])
        self.assertIn("2 of 3 improved memories", logs.output[0])
        content = seen[0].messages[1].content
        self.assertEqual([c.number for c in content if isinstance(c, Page)], [2, 5])
        with self.assertRaisesRegex(ValueError, r"no evidence pages .* \['x'\]"):
            controlled.improved_memories(generate, [question("x", ())], render, seed=(0,))


class CompareTest(absltest.TestCase):
    def test_only_the_memory_differs(self):
        generic = Memory((Finding(2, "The chart shows trends."),))
        original = [
            (Trajectory(question(str(n)), 0, (), "4.7", generic, ANSWERED), Verdict(1, 0, "", "s"))
            for n in range(2)
        ]
        improved = [Memory((Finding(2, "The rate was 4.7."),)), None]
        judge = functools.partial(training_scorer.judge, read=rule_reader.read_memories)
        found = controlled.compare(
            original, improved, answer=rule_reader.read_memories, judge=judge
        )
        self.assertEqual(found.original, original)
        self.assertEqual([v.answer_score for _, v in found.empty], [0.0, 0.0])
        (better, verdict), (failed, no_verdict) = found.improved
        self.assertEqual((better.final_answer, verdict.memory_score), ("4.7", 1.0))
        self.assertEqual(failed.status, TOOL_ERROR)
        self.assertTrue(no_verdict.error)
        self.assertEqual([row["n"] for row in paper.table3(found).rows], [2, 2, 1])
        self.assertEqual(paper.table9(found).rows[1]["after"], 1)
        anew = controlled.compare(
            original, improved, answer=rule_reader.read_memories, judge=judge, answer_anew=True
        )
        self.assertEqual([v.answer_score for _, v in anew.original], [0.0, 0.0])

    def test_a_memory_for_each_rollout(self):
        with self.assertRaisesRegex(ValueError, "found 1 memories for 0 rollouts"):
            controlled.compare([], [None], answer=lambda items: [], judge=lambda t: [])


if __name__ == "__main__":
    absltest.main()
