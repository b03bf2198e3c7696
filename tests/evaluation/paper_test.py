"""The paper's tables: their shapes, its numbers, and what follows from them."""

import csv
import io
import json
import os
import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.datasets import mmlongbench
from awm_jax.evaluation import paper
from awm_jax.evaluation.cells import summarize
from awm_jax.evaluation.tables import Caption
from awm_jax.types import ANSWERED, Memory, Question, Trajectory, Verdict

CAPTION = Caption("data", "mmlongbench rules, official", 15, 0, 4)
RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA")


def judged(cells, *, sources=("Table",)):
    """`cells` counts rollouts by (answer, memory) score."""
    pairs = []
    for scores, count in cells.items():
        for _ in range(count):
            question = Question(f"q{len(pairs)}", "d", "q", "a", "Str", (1,), sources)
            trajectory = Trajectory(question, 0, (), "a", Memory(), ANSWERED)
            pairs.append((trajectory, Verdict(*scores, "", "s")))
    return pairs


def the_papers_comparison():
    """Rollouts with exactly the counts of the paper's Tables 8 and 9."""
    original = judged({(1, 1): 104, (1, 0): 77, (0, 1): 47, (0, 0): 272})
    after = [1] * 88 + [0] * 16 + [1] * 48 + [0] * 29 + [1] * 29 + [0] * 18 + [1] * 59 + [0] * 213
    improved = [
        (trajectory, Verdict(place < 222, score, "", "s"))
        for place, ((trajectory, _), score) in enumerate(zip(original, after, strict=True))
    ]
    empty = [
        (trajectory, Verdict(place < 14, place < 13, "", "s"))
        for place, (trajectory, _) in enumerate(original)
    ]
    return paper.Controlled(empty, original, improved)


class TablesTest(absltest.TestCase):
    def assertEqualsThePaper(self, table):
        for row in table.rows:
            printed = table.of_paper(row)
            self.assertNotEmpty(printed, row)
            for key, value in printed.items():
                kind = next(column.kind for column in table.columns if column.key == key)
                self.assertEqual(paper._text(row[key], kind), paper._text(value, kind), (row, key))

    def test_the_papers_counts_give_the_papers_tables(self):
        controlled = the_papers_comparison()
        for table in (paper.table3, paper.table8, paper.table9):
            self.assertEqualsThePaper(table(controlled))

    def test_the_intervals_are_those_that_the_paper_prints(self):
        text = paper.to_markdown(paper.table8(the_papers_comparison()), CAPTION)
        for interval in ("[1.7, 4.6]", "[32.1, 40.5]", "[40.1, 48.8]"):
            self.assertEqual(text.count(interval), 2)

    def test_table2_of_the_papers_counts(self):
        full = summarize(v for _, v in judged({(1, 1): 129, (1, 0): 43, (0, 0): 328}))
        table = paper.table2([("Full multi-turn", full)])
        text = paper.to_markdown(table, CAPTION)
        self.assertIn("| 43 / 172 | 43 / 172 | 25.0 | 25.0 | [19.1, 32.0] |", text)
        self.assertIn("181 / 500", text)

    def test_table9_leaves_out_what_has_no_judgement(self):
        original = judged({(1, 1): 2})
        improved = [(original[0][0], Verdict(0, 0, "", "s", error="x")), original[1]]
        table = paper.table9(paper.Controlled([], original, improved))
        self.assertEqual(table.rows[-1]["n"], 1)
        self.assertIn("1 rollouts without", table.notes[0])

    def test_table4_keeps_the_papers_rows_and_adds_others(self):
        summary = summarize(v for _, v in judged({(1, 1): 1, (0, 0): 1}))
        table = paper.table4({"+ AWM-GRPO": {"mmlongbench": summary}, "ours": {}})
        self.assertLen(table.rows, 15)
        text = paper.to_markdown(table, CAPTION)
        self.assertIn("| + AWM-GRPO | Qwen3-VL | 4B | GRPO | 50.0 | 53.9 | \u2013 | 60.1 |", text)
        self.assertIn("does not say why", text)

    def test_table7_is_in_the_papers_order(self):
        ans = judged({(1, 1): 3, (1, 0): 1})
        awm = judged({(1, 1): 4}) + judged({(0, 0): 1}, sources=())
        table = paper.table7(ans, awm)
        self.assertEqual([row["source"] for row in table.rows], ["Table", "none"])
        first = table.rows[0]
        self.assertEqual((first["p_mmc_ans"], first["p_mmc_awm"]), (0.25, 0.0))
        self.assertEqual(table.of_paper(first)["p_mmc_awm"], 0.239)

    def test_every_form_holds_ours_and_the_papers(self):
        table = paper.table5([("SFT", summarize(v for _, v in judged({(1, 0): 1, (1, 1): 3})))])
        (line,) = csv.DictReader(io.StringIO(paper.to_csv(table, CAPTION)))
        self.assertEqual((line["p_mmc"], line["paper_p_mmc"]), ("0.25", "0.177"))
        self.assertEqual((line["mmc_part"], line["mmc_whole"]), ("1", "4"))
        content = json.loads(paper.to_json(table, CAPTION))
        self.assertEqual(content["rows"][0]["paper_final_acc"], 0.408)
        self.assertEqual(content["caption"]["scorer"], CAPTION.scorer)
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        names = [path.name for path in paper.write(folder, table, CAPTION)]
        self.assertEqual(names, ["table5.md", "table5.csv", "table5.json"])

    def test_nothing_measured_is_a_dash(self):
        text = paper.to_markdown(paper.table6([("+ AWM-GRPO", summarize([]))]), CAPTION)
        self.assertIn("| 0 | 733 | \u2013 | 48.0 |", text)
        self.assertIsNone(
            json.loads(paper.to_json(paper.table6([("x", summarize([]))]), CAPTION))["rows"][0][
                "p_mmc"
            ]
        )

    def test_figure4(self):
        points = [(280, summarize(v for _, v in judged({(1, 1): 1}))), (40, summarize([]))]
        table = paper.figure4(points)
        self.assertEqual([row["step"] for row in table.rows], [40, 280])
        self.assertEqual(table.of_paper(table.rows[1]), {"mem_acc": 0.435})
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "figure4.png"
        paper.plot_figure4(path, [("run", points)])
        self.assertEqual(path.read_bytes()[:4], b"\x89PNG")
        with self.assertRaisesRegex(ValueError, "found no checkpoint"):
            paper.plot_figure4(path, [("run", [])])

    def test_the_marginal_gap_cancels_where_p_mmc_does_not(self):
        summary = summarize(v for _, v in judged({(1, 0): 5, (0, 1): 5}))
        self.assertEqual(paper.marginal_gap(summary), 0)
        self.assertEqual(summary.p_mmc, 1)


class OfficialReportTest(absltest.TestCase):
    def test_by_hand(self):
        def question(id, answer, pages, sources):
            return Question(id, "d", "q", answer, "Str", pages, sources)

        items = [
            (question("a", "x", (1,), ("Table", "Chart")), "x", 1.0),
            (question("b", "y", (1, 2), ("Table",)), "Not answerable", 0.0),
            (question("c", "Not answerable", (), ()), "Not answerable", 1.0),
            (question("d", "Not answerable", (), ()), "not answerable", 1.0),
        ]
        table = paper.official_report(items, {"d": "Brochure"})
        found = {row["group"]: (row["n"], row["accuracy"]) for row in table.rows}
        # Recall 1/2; two answers are not literally "Not answerable", so precision 1/2.
        self.assertEqual(
            found,
            {
                "Overall": (4, 0.75),
                "Overall F1": (4, 0.5),
                "Single-page": (1, 1.0),
                "Cross-page": (1, 0.0),
                "Unanswerable": (2, 1.0),
                "Source: Table": (2, 0.5),
                "Source: Chart": (1, 1.0),
                "Document: Brochure": (4, 0.75),
            },
        )

    @absltest.skipUnless(RESEARCH_DATA, "AWM_RESEARCH_DATA is not set")
    def test_counts_of_the_benchmark(self):
        path = pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_samples.json"
        questions, found = mmlongbench.load(path)
        counts = paper.source_counts(questions)
        self.assertEqual((counts["text-multi"], counts["mixed visual+text"]), (62, 183))
        self.assertEqual(counts["none"], 233)
        table = paper.official_report([(q, "", 0.0) for q in questions], found.document_types)
        sizes = {row["group"]: row["n"] for row in table.rows}
        by_source = sorted(n for group, n in sizes.items() if group.startswith("Source"))
        self.assertEqual(by_source, [119, 178, 218, 304, 305])
        self.assertEqual(sizes["Unanswerable"], 223)


if __name__ == "__main__":
    absltest.main()
