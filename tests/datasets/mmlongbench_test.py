"""Records as published, and as they should never be."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from awm_jax.datasets import mmlongbench, report

SUBSETS = pathlib.Path(__file__).parents[2] / "experiments/benchmark_judging/subsets"
RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA", "")


def record(**changes) -> dict:
    fields = {
        "doc_id": "a.pdf",
        "doc_type": "Guidebook",
        "question": " Which?\n",
        "answer": "42 ",
        "evidence_pages": "[3, 5]",
        "evidence_sources": "['Chart', 'Table']",
        "answer_format": "Int",
    }
    return fields | changes


class BenchmarkTestCase(parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def load(self, *records, **arguments):
        path = self.folder() / "samples.json"
        path.write_text(json.dumps(records))
        return mmlongbench.load(path, **arguments)


class LoadTest(BenchmarkTestCase):
    def test_a_question_as_the_data_set_has_it(self):
        (question,), found = self.load(record())
        self.assertEqual(question.text, " Which?\n")
        self.assertEqual(question.answer, "42 ")
        self.assertEqual(question.evidence_pages, (3, 5))
        self.assertEqual(question.evidence_sources, ("Chart", "Table"))
        self.assertRegex(question.id, "^0000-[0-9a-f]{8}$")
        self.assertEmpty(found.problems)
        self.assertEqual(found.answer_formats, {"Int": 1})
        self.assertEqual(found.document_types, {"a.pdf": "Guidebook"})

    @parameterized.named_parameters(
        ("zero", "[0]", (), [report.EVIDENCE_NOT_A_PAGE]),
        ("beyond", "[3, 23, 24]", (3, 23), [report.EVIDENCE_OUT_OF_RANGE]),
        ("last", "[23]", (23,), []),
        ("repeated", "[1, 1]", (1,), [report.EVIDENCE_REPEATED]),
        ("unsorted", "[5, 3]", (3, 5), [report.EVIDENCE_UNSORTED]),
        ("none", "[]", (), [report.EVIDENCE_MISSING]),
        ("words", "[3, 'four']", (), [report.EVIDENCE_UNREADABLE]),
        ("truth", "[True]", (), [report.EVIDENCE_UNREADABLE]),
        ("broken", "[3, 5", (), [report.EVIDENCE_UNREADABLE]),
        ("code", "__import__('os').abort()", (), [report.EVIDENCE_UNREADABLE]),
        ("deep", "[" * 5000 + "]" * 5000, (), [report.EVIDENCE_UNREADABLE]),
    )
    def test_evidence(self, pages, expected, kinds):
        (question,), found = self.load(record(evidence_pages=pages), page_counts={"a.pdf": 23})
        self.assertEqual(question.evidence_pages, expected)
        self.assertEqual([problem.kind for problem in found.problems], kinds)
        invalid = bool(set(kinds) & set(report.INVALID_EVIDENCE))
        self.assertEqual(question.id in found.invalid_evidence, invalid)

    def test_without_page_counts_only_the_lower_end_is_known(self):
        (question,), found = self.load(record(evidence_pages="[1418]"))
        self.assertEqual(question.evidence_pages, (1418,))
        self.assertEmpty(found.problems)

    def test_unanswerable_has_no_evidence(self):
        unanswerable = record(answer="Not answerable", answer_format="None")
        _, found = self.load(unanswerable)
        self.assertEqual(
            found.counts, {report.EVIDENCE_UNEXPECTED: 1, report.SOURCES_UNEXPECTED: 1}
        )
        self.assertEmpty(found.invalid_evidence)

    @parameterized.named_parameters(
        ("a_list", [1], "expected an object, found list"),
        ("no_answer", {"doc_id": "a.pdf"}, "keys not there"),
        ("a_number", record(answer=42), r"expected strings, found others at \['answer'\]"),
        ("another_format", record(answer_format="Bool"), "unknown answer format 'Bool'"),
        ("a_way_out", record(doc_id="../../etc/passwd"), "expected the name of a file"),
        ("half_a_letter", record(question="\ud800"), "surrogates not allowed"),
    )
    def test_a_bad_record_is_left_out_and_the_rest_loads(self, bad, message):
        questions, found = self.load(bad, record())
        self.assertLen(questions, 1)
        self.assertStartsWith(questions[0].id, "0001-")
        (problem,) = found.problems
        self.assertEqual((problem.index, problem.kind), (0, report.BAD_RECORD))
        self.assertRegex(problem.found, message)
        self.assertIn("2 records\n  record left out: 1", str(found))

    def test_missing_documents_are_counted_where_there_is_a_folder(self):
        root = self.folder()
        (root / "samples.json").write_text(json.dumps([record(), record(doc_id="b.pdf")]))
        (root / "documents").mkdir()
        (root / "documents/b.pdf").touch()
        questions, found = mmlongbench.load(root)
        self.assertLen(questions, 2)
        self.assertEqual(found.missing_documents, ("a.pdf",))
        self.assertEqual(found.counts, {report.MISSING_DOCUMENT: 1})

    def test_the_same_question_twice_has_two_ids(self):
        questions, _ = self.load(record(), record())
        self.assertLen({question.id for question in questions}, 2)

    @parameterized.parameters("{", "{}", "[" * 100_000)
    def test_another_file_is_refused(self, content):
        path = self.folder() / "samples.json"
        path.write_text(content)
        with self.assertRaisesRegex(ValueError, "samples.json: expected"):
            mmlongbench.load(path)


class SubsetTest(BenchmarkTestCase):
    def load_many(self, count):
        return self.load(*(record(question=f"Question {place}?") for place in range(count)))

    def test_the_same_questions_whatever_their_order(self):
        questions, found = self.load_many(20)
        chosen = mmlongbench.fixed_subset(questions, found, size=5)
        again = mmlongbench.fixed_subset(questions[::-1], found, size=5)
        self.assertLen(chosen, 5)
        self.assertEqual({q.id for q in chosen}, {q.id for q in again})
        other = mmlongbench.fixed_subset(questions, found, size=5, seed=1)
        self.assertNotEqual({q.id for q in chosen}, {q.id for q in other})
        with self.assertRaisesRegex(ValueError, "found 20 .* expected 21"):
            mmlongbench.fixed_subset(questions, found, size=21)

    def test_only_answerable_questions_with_pages_that_can_be_shown(self):
        questions, found = self.load(
            record(evidence_pages="[1, 2]"),
            record(evidence_pages="[0]"),
            record(evidence_pages="[]"),
            record(evidence_pages="[1, 2, 3]"),
            record(answer="Not answerable", answer_format="None"),
        )
        self.assertEqual(mmlongbench.evidence_given(questions, found), questions[:1])
        more = mmlongbench.evidence_given(questions, found, most_pages=None)
        self.assertEqual(more, [questions[0], questions[3]])


@absltest.skipUnless(RESEARCH_DATA, "AWM_RESEARCH_DATA is not set")
class BenchmarkFilesTest(absltest.TestCase):
    def test_the_published_lists_are_what_the_rules_choose(self):
        questions, found = mmlongbench.load(
            pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_samples.json"
        )
        for name, chosen in (
            ("mmlongbench_500", mmlongbench.fixed_subset(questions, found)),
            ("mmlongbench_ep_given", mmlongbench.evidence_given(questions, found)),
        ):
            published = json.loads((SUBSETS / f"{name}.json").read_text())
            self.assertEqual(published["ids"], [question.id for question in chosen])
            self.assertEqual(published["sha256_of_samples_json"], found.digest)

    def test_all_questions_load_with_the_published_counts(self):
        path = pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_samples.json"
        questions, found = mmlongbench.load(path)
        self.assertLen(questions, 1082)
        self.assertEqual(
            found.answer_formats, {"Int": 299, "Str": 250, "None": 223, "Float": 159, "List": 151}
        )
        self.assertEqual(sum(q.answer != mmlongbench.NOT_ANSWERABLE for q in questions), 859)
        self.assertLen(found.document_types, 135)
        self.assertLen(set(found.document_types.values()), 7)
        self.assertLen({question.id for question in questions}, 1082)
        self.assertEqual(
            found.counts,
            {
                report.EVIDENCE_MISSING: 12,
                report.EVIDENCE_NOT_A_PAGE: 3,
                report.EVIDENCE_REPEATED: 2,
                report.EVIDENCE_UNSORTED: 3,
                report.EVIDENCE_UNEXPECTED: 7,
                report.SOURCES_MISSING: 19,
                report.SOURCES_UNEXPECTED: 9,
            },
        )

    def test_the_development_questions_load_with_their_documents(self):
        root = pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_dev"
        questions, found = mmlongbench.load(root)
        self.assertLen(questions, 134)
        self.assertEmpty(found.missing_documents)
        self.assertNotIn(report.BAD_RECORD, found.counts)


if __name__ == "__main__":
    absltest.main()
