"""The scripted teacher plays the tiny world's real files: PDF, index, pages, tools, memory."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from awm_jax.agent.rollout import run_rollouts
from awm_jax.datasets import tiny_world
from awm_jax.documents import index, pdf
from awm_jax.types import Sample

EMPTY = np.zeros(0, np.int32)


class TeacherTest(absltest.TestCase):
    def test_the_teacher_breaks_no_rule_and_answers_right(self):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        questions = tiny_world.make_world(root / "world", "dev", seed=0, documents=3)
        documents, failures = pdf.open_documents(
            root / "world" / "documents", (question.document for question in questions)
        )
        self.assertEmpty(failures)
        client = index.open_client(root / "index")
        self.addCleanup(client.close)
        index.build_index(client, list(documents.values()))
        lessons = [
            tiny_world.teacher_turns(
                question, np.random.default_rng(0), generic_last=0.0, generic_earlier=0.0
            )
            for question in questions
        ]

        def teacher(prompts, *, temperature):
            samples = []
            for prompt in prompts:
                number, turn = prompt.seed
                calls = [json.dumps(vars(call)) for call in lessons[number][turn]]
                text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
                samples.append(Sample(EMPTY, EMPTY, EMPTY, text, "stop"))
            return samples

        trajectories = run_rollouts(
            [(question, 0, (number,)) for number, question in enumerate(questions)],
            teacher,
            search=index.make_search(client, list(documents.values())),
            render=pdf.make_render(documents, dpi=tiny_world.DPI),
        )
        for question, lesson, trajectory in zip(questions, lessons, trajectories, strict=True):
            violations = [each for turn in trajectory.turns for each in turn.violations]
            self.assertEmpty(violations, question)
            self.assertEqual(trajectory.status, "answered")
            self.assertLen(trajectory.turns, len(lesson))
            gold = tiny_world.gold_values(question)
            self.assertEqual(trajectory.final_answer, tiny_world.answer_text(gold))
            noted = [finding.source_page for finding in trajectory.memory.findings]
            self.assertEqual(tuple(noted), question.evidence_pages)
        self.assertEqual({len(lesson) for lesson in lessons}, {2, 3})


if __name__ == "__main__":
    absltest.main()
