"""The data recipe at toy size, whole: questions, teacher, difficulty, split, SFT, groups."""

import json
import pathlib
import re
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.commands import recipe, sft
from awm_jax.datasets import steps, tiny_world
from awm_jax.evaluation import run as evaluation_run
from awm_jax.types import ToolCall
from configs import tiny_world_recipe, tiny_world_sft
from tests import server_double

ROOT = pathlib.Path(__file__).parents[2]


def call_text(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def served_teacher(questions):
    """A server's answer function: the script, which tells the turn by the memory it is shown."""
    by_text = {question.text: question for question in questions}

    def answer(body):
        shown = json.dumps(body["messages"], ensure_ascii=False)
        question = by_text[re.search(r"Question: (.*?)\\nWorking memory:", shown)[1]]
        turns = tiny_world.teacher_turns(
            question, np.random.default_rng(0), generic_last=0.0, generic_earlier=0.0
        )
        turn = len(re.findall(r"\[page \d+\]", shown)) + 1 if "<tool_response>" in shown else 0
        return "\n".join(map(call_text, turns[turn]))

    return answer


class RecipeCase(absltest.TestCase):
    """A folder for the runs of a class and a config at toy size."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    @classmethod
    def config(cls, run_dir, until="split", *, scripted=True):
        config = tiny_world_recipe.get_config()
        config.run_dir, config.until = str(cls.folder / run_dir), until
        for data, split in ((config.data, "train"), (config.evaluation_sets.test, "test")):
            data.split, data.documents, data.root = split, 3, str(cls.folder / split)
            # Of this seed no two questions have the same words.
            data.seed = 1
        config.questions.count, config.split.count = 10, 4
        config.difficulty.samples, config.groups.samples = 2, 4
        config.lock()
        if scripted:
            with config.unlocked():
                config.reader.kind = "rules"
                for seed, section in enumerate((config.difficulty, config.groups), start=1):
                    section.kind, section.script = (
                        "script",
                        config.teacher.script.copy_and_resolve_references(),
                    )
                    section.script.seed, section.script.wrong = seed, 0.5
        return config

    def counts(self, run):
        return {
            step: steps.read_manifest(self.folder / run / step)["counts"] for step in recipe.STEPS
        }


class ScriptedTest(RecipeCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        recipe.run(cls.config("all", until="groups"))

    def test_every_step_counts_what_it_makes(self):
        counts = self.counts("all")
        self.assertEqual((counts["questions"]["of"], counts["questions"]["kept"]), (12, 10))
        self.assertEqual(counts["teacher"]["statuses"], {"answered": 10})
        self.assertEqual(counts["difficulty"]["rollouts"], 20)
        self.assertEqual((counts["split"]["sft"], counts["split"]["pool"]), (4, 6))
        groups = counts["groups"]
        self.assertEqual((groups["rollouts"], groups["pool"]), (6 * 4, 6))
        self.assertEqual(groups["mixed"] + groups["always_right"] + groups["never_right"], 6)
        self.assertGreater(groups["mixed"], 0)

    def test_taught_and_pool_are_disjoint_and_groups_are_of_the_pool(self):
        folder = self.folder / "all"
        taught = records.read_records(folder / "split" / recipe.SFT)
        pool = [q.id for q in steps.read_questions(folder / "split" / recipe.POOL)]
        asked = steps.read_questions(folder / "questions" / recipe.QUESTIONS)
        self.assertCountEqual(
            [record.trajectory.question.id for record in taught] + pool, [q.id for q in asked]
        )
        kept = steps.read_questions(folder / "groups" / recipe.QUESTIONS)
        self.assertContainsSubset([question.id for question in kept], pool)
        for question in kept:
            self.assertTrue((folder / "groups" / "documents" / question.document).is_file())
        right = [record.trajectory.final_answer for record in taught]
        self.assertEqual(
            right,
            [tiny_world.answer_text(tiny_world.gold_values(r.trajectory.question)) for r in taught],
        )

    def test_what_goes_in_is_what_came_out(self):
        manifests = {step: steps.read_manifest(self.folder / "all" / step) for step in recipe.STEPS}
        for step in ("teacher", "difficulty"):
            self.assertEqual(
                manifests["split"]["inputs"][step], manifests[step]["outputs"][recipe.TRAJECTORIES]
            )
        self.assertEqual(
            manifests["groups"]["inputs"]["questions"], manifests["split"]["outputs"][recipe.POOL]
        )

    def test_a_killed_step_goes_on_to_the_same_files(self):
        run = evaluation_run.evaluate

        def killed(*args, judge, **kwargs):
            calls = []

            def judge_twice(trajectories):
                calls.append(trajectories)
                if len(calls) > 2:
                    raise KeyboardInterrupt
                return judge(trajectories)

            return run(*args, judge=judge_twice, **kwargs)

        config = self.config("killed", until="groups")
        config.at_once = 3
        with (
            mock.patch.object(recipe, "evaluate", killed),
            self.assertRaises(KeyboardInterrupt),
        ):
            recipe.run(config)
        self.assertLen(
            records.read_records(self.folder / "killed" / "teacher" / recipe.TRAJECTORIES), 6
        )
        recipe.run(config)
        for step in recipe.STEPS:
            found, expected = (
                steps.read_manifest(self.folder / name / step) for name in ("killed", "all")
            )
            self.assertEqual(found["outputs"], expected["outputs"])

    def test_other_settings_are_refused(self):
        config = self.config("all")
        config.split.count = 5
        with self.assertRaisesRegex(ValueError, "settings split.*'count': 4.*'count': 5"):
            recipe.run(config)

    def test_a_document_of_an_evaluation_set_is_refused(self):
        config = self.config("leak", until="questions")
        config.evaluation_sets.test = config.data
        with self.assertRaisesRegex(ValueError, "10 questions are about documents of an eval"):
            recipe.run(config)

    def test_a_served_teacher_that_fails_is_asked_again(self):
        questions = tiny_world.load(self.folder / "train")
        self.assertLen({question.text for question in questions}, 12, "choose another world")
        double = server_double.ServerDouble(served_teacher(questions))
        config = self.config("served", until="teacher")
        config.questions.count = 12
        with config.unlocked():
            config.teacher.kind, config.teacher.max_tokens = "server", 256
            config.teacher.tools, config.teacher.extra = "text", {}
            config.teacher.server = {"model": server_double.MODEL, "retries": 0, "base_url": ""}
        with double.running():
            config.teacher.server.base_url = double.url
            double.script.append("500")
            with self.assertRaisesRegex(ValueError, "1 of 12 rollouts failed"):
                recipe.run(config)
            asked = len(double.requests)
            recipe.run(config)
        self.assertLess(len(double.requests) - asked, 4)
        counts = steps.read_manifest(self.folder / "served" / "teacher")["counts"]
        self.assertEqual((counts["right"], counts["failed"]), (12, 0))


class WholeTest(RecipeCase):
    def test_from_questions_to_the_groups_of_a_fine_tuned_policy(self):
        config = self.config("whole", scripted=False)
        config.difficulty.checkpoint = str(ROOT / config.difficulty.checkpoint)
        # The frozen reader has tests of its own, and costs seconds to compile.
        config.reader.kind = "rules"
        config.groups.checkpoint = str(self.folder / "sft" / "policy")
        recipe.run(config)
        tuning = tiny_world_sft.get_config()
        tuning.run_dir = str(self.folder / "sft")
        tuning.trajectories = (str(self.folder / "whole" / "split" / recipe.SFT),)
        tuning.data.root = str(self.folder / "train")
        tuning.policy.checkpoint = str(ROOT / tuning.policy.checkpoint)
        tuning.held_out, tuning.epochs = 0, 1
        sft.run(tuning)
        config.until = "groups"
        recipe.run(config)
        counts = self.counts("whole")
        self.assertEqual(counts["difficulty"]["rollouts"], 20)
        self.assertEqual(counts["groups"]["rollouts"], 6 * 4)


if __name__ == "__main__":
    absltest.main()
