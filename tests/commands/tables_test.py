"""The paper's tables from files of records."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.commands import tables
from awm_jax.types import ANSWERED, Finding, Memory, Question, Trajectory, Verdict


class TablesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name, *scores):
        """Records whose (answer score, memory score) are given, of one question each."""
        made = []
        for place, (answer, memory) in enumerate(scores):
            question = Question(f"d/{place}", "d", "How wide?", "4", "Int", (1,), ("Table",))
            notes = Memory((Finding(1, "It is 4 m wide."),))
            trajectory = Trajectory(question, 0, (), "4" if answer else "5", notes, ANSWERED)
            made.append(records.Record(trajectory, (0, place), Verdict(answer, memory, "4", "s")))
        records.append_records(self.folder / name, made)
        return self.folder / name

    def run_command(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = tables.main([*arguments, "--out", str(self.folder / "out")])
        return status, said.getvalue()

    def rows(self, name):
        return json.loads((self.folder / "out" / f"{name}.json").read_text())["rows"]

    def test_every_table_that_the_records_allow(self):
        answer = self.write("answer.jsonl", (1.0, 0.0), (1.0, 1.0))
        awm = self.write("awm.jsonl", (1.0, 1.0), (1.0, 1.0))
        status, _ = self.run_command(
            f"--full=+ Answer-GRPO={answer}",
            f"--full=+ AWM-GRPO={awm}",
            f"--given=+ AWM-GRPO={awm}",
            f"--longdocurl=+ AWM-GRPO={answer}",
            f"--method=VLM + RAG Top-3 (no memory)={answer}",
            f"--checkpoint=20={answer}",
            f"--checkpoint=40={awm}",
        )
        self.assertEqual(status, 0)
        self.assertEqual([row["p_mmc"] for row in self.rows("table5")], [0.5, 0.0])
        self.assertEqual([row["variant"] for row in self.rows("table6")], ["+ AWM-GRPO"])
        self.assertEqual(
            [row["setting"] for row in self.rows("table2")], ["Full multi-turn", "EP-given"]
        )
        by_method = {row["method"]: row for row in self.rows("table4")}
        self.assertEqual(by_method["+ AWM-GRPO"]["longdocurl"], 1.0)
        self.assertEqual(by_method["VLM + RAG Top-3 (no memory)"]["mmlongbench"], 1.0)
        [by_source] = self.rows("table7")
        self.assertEqual((by_source["source"], by_source["p_mmc_ans"]), ("Table", 0.5))
        self.assertEqual([row["mem_acc"] for row in self.rows("figure4")], [0.5, 1.0])
        self.assertTrue((self.folder / "out" / "figure4.png").exists())
        self.assertIn("answer.jsonl", (self.folder / "out" / "table5.md").read_text())

    def test_the_benchmarks_own_report(self):
        sample = {
            "doc_id": "d",
            "doc_type": "Brochure",
            "question": "How wide?",
            "answer": "4",
            "evidence_pages": "[1]",
            "evidence_sources": "['Table']",
            "answer_format": "Int",
        }
        (self.folder / "samples.json").write_text(json.dumps([sample]))
        path = self.write("sft.jsonl", (1.0, 0.0), (0.0, 0.0))
        status, _ = self.run_command(
            f"--full=SFT={path}", f"--samples={self.folder / 'samples.json'}"
        )
        self.assertEqual(status, 0)
        groups = {
            row["group"]: row["accuracy"]
            for row in self.rows("official_report/SFT/official_report")
        }
        self.assertEqual((groups["Overall"], groups["Document: Brochure"]), (0.5, 0.5))

    def test_longdocurls_own_report(self):
        sample = {
            "question_id": "d/0",
            "doc_no": "d",
            "total_pages": 9,
            "start_end_idx": [1, 9],
            "question_type": "extract",
            "question": "How wide?",
            "answer": 4,
            "evidence_pages": [1],
            "evidence_sources": ["Table"],
            "answer_format": "Integer",
            "task_tag": "Understanding",
        }
        lines = [json.dumps(sample), json.dumps(sample | {"question_id": "d/1"})]
        (self.folder / "all.jsonl").write_text("\n".join(lines))
        path = self.write("sft.jsonl", (1.0, 0.0))
        status, _ = self.run_command(
            f"--longdocurl=SFT={path}", f"--longdocurl_questions={self.folder / 'all.jsonl'}"
        )
        self.assertEqual(status, 0)
        rows = {row["group"]: row for row in self.rows("longdocurl_report/SFT/longdocurl_report")}
        self.assertEqual(
            (rows["Understanding"]["accuracy"], rows["Understanding"]["mean"]), (0.5, 1.0)
        )

    def test_a_sheet_that_people_filled_in(self):
        sheet = "\ufeffexample,score,human_correct\n1,1.0,yes\n2,0.5,no\n3,0.0,\n"
        (self.folder / "audit_sheet.csv").write_text(sheet, encoding="utf-8")
        status, said = self.run_command(f"--audit_sheet={self.folder / 'audit_sheet.csv'}")
        self.assertEqual(status, 0, said)
        [row] = self.rows("manual_audit")
        self.assertEqual((row["too_lenient"], row["too_strict"]), (1, 0))

    def test_what_cannot_be_read_is_said(self):
        path = self.write("a.jsonl", (1.0, 0.0))
        for argument, expected in (
            (f"--full={path}", "expected NAME=FILE"),
            ("--full=SFT=nowhere.jsonl", "no such file: nowhere.jsonl"),
            (f"--checkpoint=last={path}", "expected the training step"),
        ):
            status, said = self.run_command(argument)
            self.assertEqual(status, 2)
            self.assertIn(expected, said)
        status, said = self.run_command()
        self.assertIn("no records", said)


if __name__ == "__main__":
    absltest.main()
