"""Steps are done once, resumed under the same settings, and refuse all else."""

import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.datasets import steps
from awm_jax.types import Question


class StepsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.source = self.root / "source.txt"
        self.source.write_text("in")
        self.made = 0

    def do(self, fails=False, **settings):
        def make(folder):
            self.made += 1
            if fails:
                raise RuntimeError("killed")
            (folder / "out.txt").write_text("out")
            return {"lines": 1}

        return steps.do_step(
            self.root / "step",
            settings={"seed": 0, "edges": (0.5, 1.0), **settings},
            inputs={"source": self.source},
            outputs=("out.txt",),
            make=make,
        )

    def test_a_step_is_done_once(self):
        manifest, new = self.do()
        self.assertTrue(new)
        self.assertEqual(manifest["counts"], {"lines": 1})
        self.assertEqual(
            manifest["outputs"], {"out.txt": steps.file_digest(self.root / "step" / "out.txt")}
        )
        self.assertEqual(self.do(), (manifest, False))
        self.assertEqual(self.made, 1)

    def test_a_killed_step_goes_on_under_the_same_settings_alone(self):
        with self.assertRaises(RuntimeError):
            self.do(fails=True)
        with self.assertRaisesRegex(ValueError, "settings seed: found 0, now 1"):
            self.do(seed=1)
        self.assertTrue(self.do()[1])

    def test_other_inputs_are_refused(self):
        self.do()
        self.source.write_text("other")
        with self.assertRaisesRegex(ValueError, "inputs source: found"):
            self.do()

    def test_changed_outputs_are_refused(self):
        self.do()
        (self.root / "step" / "out.txt").write_text("edited")
        with self.assertRaisesRegex(ValueError, r"\['out.txt'\] are not as the step wrote them"):
            self.do()

    def test_absent_inputs_are_named(self):
        self.source.unlink()
        with self.assertRaisesRegex(ValueError, "source.txt.*steps before it first"):
            self.do()


class QuestionsTest(absltest.TestCase):
    def test_round_trip(self):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "q.jsonl"
        questions = [
            Question("a", "d.pdf", "Wer?\u2028Ich\n", ["x", 1], "List", (2, 1), ("Table",)),
            Question("b", "d.pdf", "What?", 4.5, "Float"),
        ]
        steps.write_questions(path, questions)
        self.assertEqual(steps.read_questions(path), questions)
        path.write_text('{"id": "a"}\n')
        with self.assertRaisesRegex(ValueError, "line 1: no question"):
            steps.read_questions(path)
        with self.assertRaisesRegex(ValueError, "absent.jsonl: no questions"):
            steps.read_questions(path.with_name("absent.jsonl"))


if __name__ == "__main__":
    absltest.main()
