"""LongDocURL's own report, by hand and against the official script's way of counting."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.datasets import longdocurl
from awm_jax.evaluation import longdocurl_report


def record(id, task, kind, pages, sources):
    return {
        "question_id": id,
        "doc_no": "4127644",
        "total_pages": 98,
        "start_end_idx": [1, 30],
        "question": "Which?",
        "answer": "a",
        "evidence_pages": pages,
        "evidence_sources": sources,
        "answer_format": "String",
        "task_tag": task,
        "question_type": kind,
    }


RECORDS = (
    record("extracted", "Understanding", "extract", [3], ["Text"]),
    # One kind of element, named twice: the official script counts it twice, as cross-element.
    record("doubled", "Understanding", "extract", [3, 4], ["Figure", "Figure"]),
    record("computed", "Reasoning", "calculate", [5], ["Table", "Others"]),
    record("located", "Locating", "topic2title", [6, 7], ["Layout"]),
    record("pageless", "Reasoning", "count", [], ["Text"]),
)


class OfficialReportTest(absltest.TestCase):
    def groups(self, *records):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "all.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        return longdocurl.load(path)[1].groups

    def test_by_hand(self):
        items = [("extracted", 1.0), ("doubled", 0.5), ("located", 0.0), ("located", 1.0)]
        table = longdocurl_report.official_report(items, self.groups(*RECORDS))
        found = {
            row["group"]: (row["n"], row["scored"], row["accuracy"], row["mean"])
            for row in table.rows
            if row["scored"]
        }
        self.assertEqual(
            found,
            {
                # Two rollouts of "located" count by their mean, two questions have no score.
                "Overall": (5, 3, 0.4, 2 / 3),
                "Understanding": (2, 2, 0.75, 0.75),
                "Locating": (1, 1, 0.5, 0.5),
                "Text": (2, 1, 0.5, 1.0),
                "Layout": (1, 1, 0.5, 0.5),
                "Figure": (2, 2, 0.5, 0.5),
                "Single-page": (2, 1, 0.5, 1.0),
                "Multi-page": (2, 2, 0.5, 0.5),
                "Cross-element": (2, 1, 0.25, 0.5),
                "Understanding, Single-page, Text": (1, 1, 1.0, 1.0),
                "Understanding, Multi-page, Figure": (2, 2, 0.5, 0.5),
                "Locating, Cross-title": (1, 1, 0.5, 0.5),
            },
        )
        unscored = {row["group"]: row["n"] for row in table.rows if not row["scored"]}
        self.assertEqual(unscored, {"Reasoning": 2, "Table": 1, "Reasoning, Single-page, Table": 1})

    def test_a_file_without_tasks_has_the_other_groups(self):
        bare = {k: v for k, v in RECORDS[0].items() if k not in ("task_tag", "question_type")}
        odd = bare | {"question_id": "odd", "task_tag": ["x"], "question_type": {}}
        odd["evidence_sources"] = [["x"], "Text"]
        self.assertEqual(
            self.groups(bare, odd),
            {"extracted": ("Text", "Single-page"), "odd": ("Text", "Single-page", "Cross-element")},
        )

    def test_questions_of_another_file_are_refused(self):
        with self.assertRaisesRegex(ValueError, "1 scored questions are not in .* 'other'"):
            longdocurl_report.official_report([("other", 1.0)], self.groups(RECORDS[0]))


if __name__ == "__main__":
    absltest.main()
