"""What memories cite and copy, what the scoring mode changes, what people say of the scores."""

import csv
import dataclasses
import io
import math

from absl.testing import absltest, parameterized

from awm_jax.evaluation import audit, paper
from awm_jax.evaluation.tables import Caption
from awm_jax.judging import extraction, mmlongbench
from awm_jax.types import ANSWERED, Finding, Memory, Question, Trajectory, Verdict

CAPTION = Caption("data", "mmlongbench rules, official", 15, 0, 4)


def judged(gold, final, notes, scores, *, pages=(2,), id="q", answer_format="Str"):
    question = Question(id, "d", "q?", gold, answer_format, pages)
    memory = Memory(tuple(Finding(page, text) for page, text in notes))
    trajectory = Trajectory(question, 0, (), final, memory, ANSWERED)
    return trajectory, Verdict(*scores, "m", "s")


class ArtifactAuditTest(parameterized.TestCase):
    def test_by_hand(self):
        found = audit.artifact_audit(
            [
                # Cites gold; echoes the answer, which is gold.
                judged("4.7 %", "4.7%", [(2, "The answer is 4.7%.")], (1, 1)),
                # Cites gold beside another page; neither echo nor gold answer.
                judged("1,204", "12", [(2, "There are many."), (5, "Trends.")], (1, 0)),
                # Cites another page; holds gold in a sentence.
                judged("Asia Pacific", "Asia", [(5, "It is Asia  pacific, they say.")], (0, 1)),
                # Without gold pages; "17" is not in "2017".
                judged("17", "17", [(1, "In 2017.")], (1, 1), pages=()),
                judged("x", "x", [], (0, 0)),
                (judged("x", "x", [], (0, 0))[0], Verdict(0, 0, "", "s", error="no")),
            ]
        )
        self.assertEqual(
            dataclasses.asdict(found),
            {
                "memories": 4,
                "empty": 1,
                "with_gold_pages": 3,
                "citing_gold": 2,
                "citing_only_gold": 1,
                "findings": 5,
                "echoes": 1,
                "memories_echoing": 1,
                "with_gold_answer": 2,
                "filtered": 3,
                "filtered_positive": 1,
            },
        )
        self.assertEqual((found.filtered_rate, found.echo_rate), (1 / 3, 0.2))
        text = paper.to_markdown(paper.artifact_table([("Improved memory", found)]), CAPTION)
        self.assertIn("| 2 / 3 | 500 / 500 | 1 / 3 | 1 / 3 | 98 / 304 | 33.3 | 32.2 |", text)

    def test_the_papers_rate(self):
        nothing = dict.fromkeys((f.name for f in dataclasses.fields(audit.ArtifactAudit)), 0)
        found = audit.ArtifactAudit(**nothing | {"filtered": 304, "filtered_positive": 98})
        self.assertAlmostEqual(found.filtered_rate, 0.322, places=3)
        low, high = found.filtered_interval
        self.assertEqual((round(low, 3), round(high, 3)), (0.272, 0.377))
        self.assertTrue(math.isnan(audit.ArtifactAudit(**nothing).filtered_rate))

    @parameterized.parameters(
        ("The answer is 42.", "42", True),
        ("42", "42", True),
        ("On page 3 the answer 42 stands beside others.", "42", False),
        ("", "", False),
        ("anything", "", False),
    )
    def test_echo(self, finding, answer, expected):
        self.assertEqual(audit.is_echo(finding, answer), expected)


class ModeDifferencesTest(absltest.TestCase):
    def test_both_answers_of_each_rollout_are_counted(self):
        # Official: "12.7" is right for 12, strict not; "1,234" the other way round.
        pairs = [
            judged("12", "12.7", [], (1, 1), answer_format="Int"),
            judged("1234", "1,234", [], (0, 1), answer_format="Int"),
            (judged("1", "2", [], (0, 0))[0], Verdict(0, 0, "", "s", error="no")),
        ]
        said = audit.mode_differences(pairs, benchmark=mmlongbench)
        self.assertEqual(said, "2 of 4 (2 between right and wrong)")
        none = audit.mode_differences([], extract=extraction.extract_all, benchmark=mmlongbench)
        self.assertEqual(none, "0 of 0 (0 between right and wrong)")


class SheetTest(absltest.TestCase):
    def pairs(self):
        scores = [(1, 1)] * 200 + [(1, 0)] * 3 + [(0, 1)] * 40 + [(0, 0)] * 100
        return [judged("a", "=b", [], s, id=f"q{n}") for n, s in enumerate(scores)]

    def test_a_hundred_from_all_cells_whatever_the_order(self):
        sheet = audit.audit_sheet(self.pairs(), seed=1)
        self.assertEqual(sheet, audit.audit_sheet(self.pairs()[::-1], seed=1))
        self.assertNotEqual(sheet, audit.audit_sheet(self.pairs(), seed=2))
        rows = list(csv.DictReader(io.StringIO(sheet)))
        self.assertLen(rows, 100)
        self.assertEqual({row["which"] for row in rows}, {"final", "memory-only"})
        ids = [int(row["question_id"][1:]) for row in rows]
        self.assertLen([n for n in ids if 200 <= n < 203], 3)
        self.assertNotIn("memory-missing", sheet)
        # A spreadsheet must not run what a model wrote.
        self.assertEqual({row["answer"] for row in rows if row["which"] == "final"}, {"'=b"})

    def test_agreement(self):
        rows = list(csv.reader(io.StringIO(audit.audit_sheet(self.pairs(), seed=1, count=6))))
        score, human = audit.SHEET.index("score"), audit.SHEET.index("human_correct")
        for row, (value, mark) in zip(
            rows[1:],
            [("1", "yes"), ("0", "no"), ("1", "no"), ("0", "Yes"), ("0.5", "y"), ("1", "")],
            strict=True,
        ):
            row[score], row[human] = value, mark
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        found = audit.human_agreement(text.getvalue())
        self.assertEqual(
            (found.agree_right, found.agree_wrong, found.too_lenient, found.too_strict),
            (2, 1, 1, 1),
        )
        self.assertEqual((found.unmarked, found.marked), (1, 5))
        self.assertEqual(found.disagreements, (3, 4))
        # Agreement 0.6; chance 0.6 * 0.6 + 0.4 * 0.4 = 0.52.
        self.assertAlmostEqual(found.kappa, 0.08 / 0.48)
        text = paper.to_markdown(paper.agreement_table(found), CAPTION)
        self.assertIn("| scorer against people | 2 / 5 | 6 / 100 | 1 | 1 | 0.17 |", text)

    def test_a_sheet_that_cannot_be_read_is_refused(self):
        with self.assertRaisesRegex(ValueError, "line 2: human_correct is 'maybe'"):
            audit.human_agreement("example,score,human_correct\n1,1,maybe\n")
        with self.assertRaisesRegex(ValueError, "columns not there"):
            audit.human_agreement("a\n1\n")


if __name__ == "__main__":
    absltest.main()
