"""Numbers and captions of the tables, and the curves' arithmetic."""

import csv
import io
import json
import math
import os
import pathlib
import tempfile
import unittest

from absl.testing import absltest, parameterized

from awm_jax.datasets import mmlongbench
from awm_jax.evaluation import cells, tables
from awm_jax.types import Question, Verdict

CAPTION = tables.Caption(
    "MMLongBench-Doc", "official rules", 15, 7, 1082, {"commit": "abc", "reader": "a|b"}
)


def summary(counts, invalid=0):
    verdicts = [Verdict(*cell, "", "") for cell, n in counts.items() for _ in range(n)]
    return cells.summarize([*verdicts, *[Verdict(0, 0, "", "", error="x")] * invalid])


# The paper's Table 2: 43 of 172 right answers have no answerable memory.
ROWS = (
    ("SFT", summary({(1, 1): 129, (1, 0): 43, (0, 1): 8, (0, 0): 320}, invalid=2)),
    ("a|b\nc", summary({(0, 0): 3})),
)


class TableTest(absltest.TestCase):
    def test_markdown(self):
        text = tables.to_markdown(ROWS, CAPTION)
        for part in ("official rules", "step budget: 15", "seed: 7", "1,082 questions", "abc"):
            self.assertIn(part, text.splitlines()[0])
        self.assertIn("| SFT | 500 | 34.4 | 27.4 | 43 / 172 | 25.0 | [19.1, 32.0] | 2 |\n", text)
        self.assertIn("| a\\|b c | 3 | 0.0 | 0.0 | 0 / 0 | \u2013 | [0.0, 100.0] | 0 |\n", text)

    def test_json_is_json_where_a_share_is_of_nothing(self):
        table = json.loads(tables.to_json(ROWS, CAPTION))
        self.assertEqual(table["caption"]["scorer"], "official rules")
        self.assertEqual(table["rows"][0]["p_mmc"], 0.25)
        self.assertIsNone(table["rows"][1]["p_mmc"])

    def test_csv_carries_the_caption(self):
        rows = list(csv.DictReader(io.StringIO(tables.to_csv(ROWS, CAPTION))))
        self.assertEqual([row["variant"] for row in rows], ["SFT", "a|b\nc"])
        self.assertEqual(rows[0]["scorer"], "official rules")
        self.assertEqual(float(rows[0]["p_mmc_low"]), ROWS[0][1].p_mmc_interval[0])

    def test_files(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        paths = tables.write_tables(folder, "table5", ROWS, CAPTION)
        self.assertEqual([path.suffix for path in paths], [".md", ".csv", ".json"])
        self.assertTrue(all(path.stat().st_size for path in paths))


class EvidenceGroupTest(parameterized.TestCase):
    @parameterized.parameters(
        ((), "none"),
        (("Pure-text (Plain-text)",), "Pure-text"),
        (("Generalized-text (Layout)",), "Layout"),
        (("Table", "Table"), "Table"),
        (("Table", "Generalized-text (Layout)"), "text-multi"),
        (("Table", "Chart"), "mixed visual+text"),
    )
    def test_partition(self, sources, expected):
        question = Question("q", "d", "?", "", "Str", evidence_sources=sources)
        self.assertEqual(tables.evidence_group(question), expected)

    def test_the_papers_counts(self):
        root = os.environ.get("AWM_RESEARCH_DATA")
        if not root:
            raise unittest.SkipTest("AWM_RESEARCH_DATA is not set")
        path = pathlib.Path(root) / "benchmarks" / "mmlongbench_samples.json"
        questions, _ = mmlongbench.load(path)
        groups = [tables.evidence_group(question) for question in questions]
        counts = {name: groups.count(name) for name in groups}
        self.assertEqual(counts["Pure-text"], 135)
        self.assertEqual(counts["Table"], 143)
        self.assertEqual(counts["Chart"], 107)
        self.assertEqual(counts["Figure"], 187)
        self.assertEqual(counts["Layout"], 32)


class CurvesTest(absltest.TestCase):
    def test_a_window_divides_sums(self):
        # Not the mean of 1/1, 0/0 and 1/3, but 2/4.
        found = tables._smoothed_ratio([1.0, 0.0, 1.0], [1.0, 0.0, 3.0], 3)
        self.assertEqual(found, [1.0, 1.0, 0.5])
        self.assertTrue(math.isnan(tables._smoothed_ratio([0.0], [0.0], 3)[0]))

    def test_png(self):
        names = ("cells/11", "cells/10", "cells/01", "cells/00", "frac_reward_zero_std")
        records = [{"step": step} | dict.fromkeys(names, 0.25) for step in range(3)]
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "curves.png"
        tables.write_curves(path, [("a", records), ("a", records), ("b", records[:1])])
        self.assertEqual(path.read_bytes()[:4], b"\x89PNG")

    def test_a_run_without_steps_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'b', 0"):
            tables.write_curves("unused.png", [("b", [])])


if __name__ == "__main__":
    absltest.main()
