"""1-based evidence, 0-based image names, and lines as they should never be."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from awm_jax.datasets import longdocurl, report
from awm_jax.documents import pdf

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA", "")


def record(**changes) -> dict:
    fields = {
        "question_id": "q1",
        "doc_no": "4127644",
        "total_pages": 98,
        "start_end_idx": [8, 37],
        "question": "Which?\u2028And where?",
        "answer": ["a", "b"],
        "evidence_pages": [15, 16],
        "evidence_sources": ["Text", "Layout"],
        "answer_format": "List",
        "task_tag": "Locating",
    }
    return fields | changes


class LoadTest(parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def load(self, *lines, **arguments):
        lines = [x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for x in lines]
        path = self.folder() / "LongDocURL.jsonl"
        path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
        return longdocurl.load(path, **arguments)

    def test_a_question_as_the_data_set_has_it(self):
        (question,), found = self.load(record())
        self.assertEqual((question.id, question.document), ("q1", "4127644"))
        self.assertEqual(question.text, "Which?\u2028And where?")
        self.assertEqual(question.answer, ["a", "b"])
        self.assertEqual(question.evidence_pages, (15, 16))
        self.assertEqual(found.windows, {"q1": (8, 37)})
        self.assertEmpty(found.problems)

    @parameterized.named_parameters(
        ("beyond_the_record", {"evidence_pages": [99]}, {}, [report.EVIDENCE_OUT_OF_RANGE]),
        ("beyond_the_file", {}, {"4127644": 15}, [report.EVIDENCE_OUT_OF_RANGE]),
        ("outside", {"evidence_pages": [7, 8]}, {}, [report.EVIDENCE_OUTSIDE_WINDOW]),
        ("twice", {"evidence_sources": ["Figure"] * 2}, {}, [report.SOURCES_REPEATED]),
        ("zero", {"evidence_pages": [0]}, {}, [report.EVIDENCE_NOT_A_PAGE]),
    )
    def test_oddities(self, changes, page_counts, kinds):
        _, found = self.load(record(**changes), page_counts=page_counts)
        self.assertEqual([problem.kind for problem in found.problems], kinds)

    @parameterized.named_parameters(
        ("cut_off", '{"question_id": "q0", ', "Expecting|Illegal"),
        ("no_object", "[]", "expected an object, found list"),
        ("no_keys", "{}", "keys not there"),
        ("truth", record(answer=True), "'answer': 'bool'"),
        ("number", record(doc_no=4127644), "'doc_no': 'int'"),
        ("window", record(start_end_idx=[8]), r"found \[8\]"),
        ("path", record(doc_no="a/b"), "expected the name of a file"),
    )
    def test_a_bad_line_is_left_out_and_the_rest_loads(self, line, message):
        questions, found = self.load(line, record())
        self.assertLen(questions, 1)
        (problem,) = found.problems
        self.assertEqual((problem.index, problem.kind), (0, report.BAD_RECORD))
        self.assertRegex(problem.found, message)

    def test_a_repeated_id_is_left_out(self):
        questions, found = self.load(record(), record(question="Another?"))
        self.assertLen(questions, 1)
        self.assertEqual(found.counts, {report.BAD_RECORD: 1})

    def test_a_folder_needs_one_file(self):
        with self.assertRaisesRegex(ValueError, "expected one .jsonl file, found"):
            longdocurl.load(self.folder())


@absltest.skipUnless(RESEARCH_DATA, "AWM_RESEARCH_DATA is not set")
class BenchmarkFilesTest(absltest.TestCase):
    def test_the_sample_loads_and_its_evidence_page_is_the_image_before(self):
        root = pathlib.Path(RESEARCH_DATA) / "benchmarks/longdocurl_sample"
        questions, found = longdocurl.load(root)
        self.assertLen(questions, 3)
        self.assertEqual(found.missing_documents, ("4055915", "4151603"))
        (question,) = [q for q in questions if q.document == "4127644"]
        document = pdf.open_page_images(root / "pages", question.document)
        names = [pdf.page_image_path(document, page).name for page in question.evidence_pages]
        self.assertEqual(names, ["4127644_14.png", "4127644_15.png"])


if __name__ == "__main__":
    absltest.main()
