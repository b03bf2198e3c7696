"""The controlled memory comparison, with one served model in all its parts."""

import json
import pathlib
import tempfile

import pymupdf
from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.commands import controlled
from awm_jax.evaluation.controlled import WRITER_SYSTEM
from awm_jax.types import ANSWERED, Finding, Memory, Question, Trajectory
from configs import controlled_mmlongbench
from tests.server_double import ServerDouble

QUESTION = Question("tana.pdf/0", "tana.pdf", "How wide is the Tana?", "4", "Int", (2,))


def reply(body):
    """The writer sees page 2; whoever answers goes by the notes."""
    system, user = (message["content"] for message in body["messages"])
    if system == WRITER_SYSTEM:
        return "[page 2] The Tana is 4 m wide."
    return "4" if "4 m wide" in str(user) else "Not answerable"


class ControlledTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.double = self.enterContext(ServerDouble(reply).running())
        (self.root / "documents").mkdir()
        with pymupdf.open() as document:
            for text in ("Contents", "The width is 4 m."):
                document.new_page(width=200, height=200).insert_text((20, 50), text)
            document.save(self.root / "documents" / "tana.pdf")
        sample = {
            "doc_id": "tana.pdf",
            "doc_type": "Guidebook",
            "question": QUESTION.text,
            "answer": "4",
            "evidence_pages": "[2]",
            "evidence_sources": "['Pure-text (Plain-text)']",
            "answer_format": "Int",
        }
        (self.root / "samples.json").write_text(json.dumps([sample]))
        generic = Memory((Finding(2, "The page is about a river."),))
        records.append_records(
            self.root / "given.jsonl",
            [
                records.Record(Trajectory(QUESTION, place, (), answer, generic, ANSWERED), (0,))
                for place, answer in enumerate(("4", "5"))
            ],
        )

    def run_config(self):
        config = controlled_mmlongbench.get_config()
        config.run_dir, config.data.root = str(self.root / "run"), str(self.root)
        config.trajectories = str(self.root / "given.jsonl")
        for name in ("policy", "reader", "writer"):
            config[name].checkpoint = self.double.url
            config[f"{name}_server"].retries = 0
            config[f"{name}_server"].model = self.double.model
        config.writer_server.key_variable = None
        config.lock()
        controlled.run(config)
        return json.loads((self.root / "run" / "summary.json").read_text())["rows"]

    def test_only_the_memory_makes_the_difference(self):
        empty, original, improved = self.run_config()
        self.assertEqual((empty["final_acc"], empty["mem_acc"]), (0.0, 0.0))
        # The agent's own answers: one of two is right, and its notes say nothing.
        self.assertEqual((original["final_acc"], original["mem_acc"]), (0.5, 0.0))
        self.assertEqual((improved["final_acc"], improved["mem_acc"]), (1.0, 1.0))
        for name in ("table3", "table8", "table9"):
            for kind in ("md", "csv", "json"):
                self.assertTrue((self.root / "run" / f"{name}.{kind}").exists())
        self.assertIn("Improved memory", (self.root / "run" / "table3.md").read_text())

    def test_memories_are_written_once_and_a_torn_line_is_asked_for_again(self):
        self.run_config()
        written = sum(b["messages"][0]["content"] == WRITER_SYSTEM for b in self.double.bodies())
        self.assertEqual(written, 1)
        self.run_config()
        path = self.root / "run" / "improved_memories.jsonl"
        path.write_text(path.read_text()[:-9])
        self.run_config()
        written = sum(b["messages"][0]["content"] == WRITER_SYSTEM for b in self.double.bodies())
        self.assertEqual(written, 2)
        self.assertLen(path.read_text().splitlines(), 1)

    def test_what_is_needed_is_said(self):
        with self.assertRaisesRegex(ValueError, "--config.trajectories=FILE"):
            controlled.run(controlled_mmlongbench.get_config())


if __name__ == "__main__":
    absltest.main()
