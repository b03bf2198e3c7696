"""Anybody's trajectories, whole: from five lines of JSON to the table, the page and every line."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.commands import diagnose, diagnosis_display
from tests.server_double import ServerDouble

FIVE = (
    # Right, but the note is too generic to answer from.
    {"id": "a", "question": "What was the rate in 2020?", "gold": "4.7%", "final_answer": "4.7%"}
    | {"memory": "The chart shows trends."},
    {"id": "b", "question": "How many employees in 2019?", "gold": 1204, "final_answer": "1204"}
    | {"memory": [{"page": 2, "text": "In 2019 there were 1204 employees."}]},
    # Wrong, although the memory has it.
    {"id": "c", "question": "Who signed the letter?", "gold": "Maria Lopez", "final_answer": "Ann"}
    | {"memory": "The letter is signed by Maria Lopez."},
    {"id": "d", "question": "Which plan is best?", "gold": "Gold plan", "final_answer": "Silver"}
    | {"memory": None},
    # The run failed: no judgement.
    {"id": "e", "question": "Who?", "gold": "x", "final_answer": None, "memory": "", "error": "x"},
)


class DiagnoseTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, *lines, name="runs.jsonl"):
        path = self.folder / name
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts))
        return str(path)

    def diagnose(self, *arguments):
        """Exit status and what was printed."""
        console, said = diagnosis_display.console, io.StringIO()
        console.file, before = said, console.file
        try:
            with contextlib.redirect_stderr(said):
                status = diagnose.main([*arguments, "--out", str(self.folder / "out")])
        finally:
            console.file = before
        return status, said.getvalue()

    def summary(self):
        return json.loads((self.folder / "out" / "summary.json").read_text())

    def test_five_lines_and_no_model(self):
        status, said = self.diagnose(self.write(*FIVE), "--reader", "rule")
        self.assertEqual(status, 0)
        (row,) = self.summary()["rows"]
        cells = ("supported_correct", "missing_correct", "answering_error", "unresolved_error")
        self.assertEqual([row[cell] for cell in cells], [1, 1, 1, 1])
        self.assertEqual((row["invalid"], row["p_mmc"]), (1, 0.5))
        self.assertIn("rule-based demo reader (no model)", row_of_caption := self.caption())
        self.assertIn("rule-based extraction", row_of_caption)
        for part in ("P_mmc 50.0 %", "[9.5, 90.5]", "The chart shows trends.", "1 without a"):
            self.assertIn(part, said)
        judged = (self.folder / "out" / "judged.jsonl").read_text().splitlines()
        self.assertEqual(
            [json.loads(line)["cell"] for line in judged],
            [
                "memory-missing correct",
                "memory-supported correct",
                "answering error",
                "unresolved error",
                None,
            ],
        )
        page = (self.folder / "out" / "report.html").read_text()
        self.assertEqual(page.count('<details class="rollout'), 5)

    def caption(self):
        return self.summary()["caption"]["scorer"]

    def test_lines_that_cannot_be_read_are_said_and_kept(self):
        path = self.write(*FIVE[:2], '{"question": "What?" "gold": 1}', {"question": "Who?"})
        status, said = self.diagnose(path, "--reader", "rule")
        self.assertEqual(status, 0)
        self.assertIn("2 records left out", said)
        self.assertRegex(said, r"line 3\s+not JSON")
        self.assertRegex(said, r"line 4\s+no gold answer")
        kept = (self.folder / "out" / "unreadable.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["line"] for line in kept], [3, 4])
        self.assertEqual(self.summary()["left_out"], {"runs": 2})
        self.assertIn("line 3: not JSON", (self.folder / "out" / "report.html").read_text())
        # A second run without bad lines leaves none behind.
        self.diagnose(self.write(*FIVE[:2]), "--reader", "rule")
        self.assertFalse((self.folder / "out" / "unreadable.jsonl").exists())

    def test_a_served_reader_and_extractor(self):
        def answer(body):
            text = body["messages"][-1]["content"]
            if "Analysis:" in text:
                said = text.rpartition("Analysis:")[2].strip()
                return f"Extracted answer: {said}\nAnswer format: String"
            self.assertEqual(body["chat_template_kwargs"], {"enable_thinking": False})
            return "1204" if "1204" in text else "Not answerable"

        double = ServerDouble(answer)
        with double.running():
            status, said = self.diagnose(
                self.write(*FIVE[:2]),
                *("--reader", double.url, "--extractor", double.url, "--extractor_model", "double"),
            )
        self.assertEqual(status, 0, said)
        self.assertIn(f"extractor: double at {double.url}, mmlongbench extraction", self.caption())
        self.assertIn(f"reader: double at {double.url}", self.caption())
        (row,) = self.summary()["rows"]
        self.assertEqual((row["supported_correct"], row["missing_correct"]), (1, 1))

    def test_a_reader_that_fails_is_no_wrong_answer(self):
        double = ServerDouble(lambda body: "Not answerable")
        double.script.extend(["", "400"])
        with double.running(), self.assertLogs(level="WARNING"):
            status, said = self.diagnose(self.write(FIVE[0]), "--reader", double.url)
        self.assertEqual(status, 1)
        (row,) = self.summary()["rows"]
        self.assertEqual((row["n"], row["invalid"]), (0, 1))

    def test_two_runs_are_compared(self):
        better = [FIVE[0] | {"memory": "The 2020 rate was 4.7%."}, *FIVE[1:]]
        status, said = self.diagnose(
            self.write(*FIVE, name="before.jsonl"),
            self.write(*better, name="after.jsonl"),
            *("--reader", "rule"),
        )
        self.assertEqual(status, 0)
        change = self.summary()["changes"]["p_mmc"]
        self.assertEqual((change["first"], change["second"]), (0.5, 0.0))
        self.assertIn("memory-missing correct \u2192 memory-supported correct", said)
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn("was memory-missing correct</span>", page)
        self.assertIn("In <bdi>before</bdi>: memory-missing correct", page)

    def test_longdocurls_rules(self):
        # A list of which half is there: 0.5 by these rules, 0 by MMLongBench-Doc's.
        line = {"question": "Which?", "gold": ["apple", "pear"], "final_answer": "['apple']"}
        lines = [line | {"memory": None}, FIVE[1] | {"answer_format": "Integer"}]
        self.diagnose(self.write(*lines), "--reader", "rule", "--benchmark", "longdocurl")
        (row,) = self.summary()["rows"]
        self.assertEqual((row["n"], row["final_acc"]), (2, 0.75))
        self.assertIn("longdocurl rules, official", self.caption())

    def test_nothing_in_a_record_reaches_the_terminal_as_a_command(self):
        hostile = FIVE[0] | {"question": "What \x1b[2J\u202e\ud800 rate?", "memory": "\x9b31m"}
        status, said = self.diagnose(self.write(hostile), "--reader", "rule")
        self.assertEqual(status, 0)
        self.assertNotRegex(said, "[\x1b\x9b\u202e\ud800]")

    def test_two_readers(self):
        lines = [FIVE[0] | {"memory_answer": "4.7%"}, FIVE[1] | {"memory_answer": "1204"}, FIVE[3]]
        status, said = self.diagnose(
            self.write(*lines), "--reader", "rule", "--second_reader", "recorded"
        )
        self.assertEqual(status, 0)
        second = self.summary()["second_reader"]
        # The third one has no recorded answer, which is no judgement.
        self.assertEqual((second["memories"], second["p_mmc"]), (2, [0.5, 0.0]))
        self.assertIn("P_mmc 50.0 % and 0.0 %", said)
        self.assertIn("they agree on 1 of 2", said)

    def test_artifacts_and_a_sheet_for_people(self):
        self.diagnose(self.write(*FIVE), "--reader", "rule")
        sheet = (self.folder / "out" / "audit_sheet.csv").read_text().splitlines()
        self.assertLen(sheet, 1 + 4)
        self.assertIn("| runs |", (self.folder / "out" / "artifact_audit.md").read_text())

    def test_answers_of_a_reader_that_are_in_the_file(self):
        lines = [FIVE[1] | {"memory_answer": "1204"}, FIVE[0]]
        self.diagnose(self.write(*lines), "--reader", "recorded")
        (row,) = self.summary()["rows"]
        self.assertEqual((row["supported_correct"], row["invalid"]), (1, 1))

    def test_what_cannot_be_done_is_said(self):
        path = self.write(*FIVE)
        for arguments, message in (
            (("nowhere.jsonl", "--reader", "rule"), "nowhere.jsonl: cannot be read"),
            ((path, "--reader", "nowhere"), "--reader nowhere: expected a URL"),
            ((path, path, path, "--reader", "rule"), "found 3 files"),
            ((path, "--reader", "rule", "--extractor", "x"), "extractor x: expected"),
        ):
            status, said = self.diagnose(*arguments)
            self.assertEqual(status, 2)
            self.assertIn(message, said)
        others = self.write(FIVE[0] | {"id": "z"}, name="others.jsonl")
        status, said = self.diagnose(path, others, "--reader", "rule")
        self.assertEqual(status, 2)
        self.assertRegex(said, r"no question in common.*\('', 'a'\) and \('', 'z'\)")
        status, said = self.diagnose(self.write("{}"), "--reader", "rule")
        self.assertEqual(status, 1)
        self.assertIn("line 1", said)

    def test_results_are_not_written_beside_the_input(self):
        path = self.write(*FIVE, name="judged.jsonl")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = diagnose.main([path, "--reader", "rule", "--out", str(self.folder)])
        self.assertEqual(status, 2)
        self.assertRegex(said.getvalue(), "is or holds the input .*judged.jsonl")
        self.assertLen((self.folder / "judged.jsonl").read_text().splitlines(), len(FIVE))

    def test_no_input_lies_where_results_go(self):
        path = self.write(*FIVE)
        out = self.folder / "out"
        out.mkdir()
        # A result would be written through the link, into the records.
        (out / "judged.jsonl").symlink_to(path)
        (self.folder / "documents").mkdir()
        for arguments, found in (
            ((path, "--reader", "rule", "--out", str(out)), "runs.jsonl"),
            (
                (path, "--reader", "rule", "--out", str(self.folder / "documents"))
                + ("--documents", f"{self.folder}/out/../documents"),
                "documents",
            ),
        ):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                status = diagnose.main(arguments)
            self.assertEqual(status, 2)
            self.assertRegex(said.getvalue(), f"is or holds the input .*{found}")
        self.assertLen(pathlib.Path(path).read_text().splitlines(), len(FIVE))

    def test_another_file_with_the_same_stem_does_not_overwrite_the_results(self):
        self.enterContext(contextlib.chdir(self.folder))
        for name in ("a", "b"):
            (self.folder / name).mkdir()
            self.write(*FIVE, name=f"{name}/runs.jsonl")
        console, said = diagnosis_display.console, io.StringIO()
        self.addCleanup(setattr, console, "file", console.file)
        console.file = said
        self.enterContext(contextlib.redirect_stderr(said))
        self.assertEqual(diagnose.main(["a/runs.jsonl", "--reader", "rule"]), 0)
        self.assertEqual(diagnose.main(["a/runs.jsonl", "--reader", "rule"]), 0)
        self.assertEqual(diagnose.main(["b/runs.jsonl", "--reader", "rule"]), 2)
        self.assertEqual(diagnose.main(["a/runs.jsonl", "b/runs.jsonl", "--reader", "rule"]), 0)
        self.assertIn("name another folder with --out", said.getvalue())


if __name__ == "__main__":
    absltest.main()
