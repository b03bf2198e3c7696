"""BM25 by hand, and the vectors' form."""

import math
import os
import pathlib

from absl.testing import absltest, parameterized

from awm_jax.datasets import mmlongbench
from awm_jax.documents import embed, pdf

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA", "")


def score(page: embed.SparseVector, query: embed.SparseVector) -> float:
    weights = dict(zip(*query, strict=True))
    return sum(weights.get(i, 0.0) * value for i, value in zip(*page, strict=True))


class TermsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("The CATS' 1,234.5 m2", ["the", "cat", "1234.5", "m", "2"]),
        ("Studies of glass, bus, gas", ["study", "of", "glass", "bus", "gas"]),
        ("eﬃcient naïve Straße", ["efficient", "naive", "strasse"]),
        ("retrie-\n  val pre-1990", ["retrieval", "pre", "1990"]),
        ("東京 2020", ["東", "京", "2020"]),
        ("", []),
        ("--- !? _", []),
    )
    def test_by_hand(self, text, expected):
        self.assertEqual(embed.terms(text), expected)


class EmbedPagesTest(absltest.TestCase):
    def test_dot_product_is_bm25_by_hand(self):
        pages = embed.embed_pages(["apple apple pear", "pear plum plum", "fig"], k1=1.2, b=0.75)
        # Three pages, lengths 3, 3, 1 with mean 7/3. "apple" is on one page, twice; "pear" on two.
        norm = 1.2 * (0.25 + 0.75 * 3 / (7 / 3))
        apple = math.log(1 + 2.5 / 1.5) * 2 * 2.2 / (2 + norm)
        pear = math.log(1 + 1.5 / 2.5) * 1 * 2.2 / (1 + norm)
        query = embed.embed_query("Apples, apple or a pear?")
        self.assertAlmostEqual(score(pages[0], query), 2 * apple + pear)
        self.assertAlmostEqual(score(pages[1], query), pear)
        self.assertEqual(score(pages[2], query), 0)

    def test_vectors_have_the_form_that_qdrant_takes(self):
        (indices, values), empty = embed.embed_pages(["some words on a page " * 3, " \n"])
        self.assertEqual(indices, sorted(set(indices)))
        self.assertTrue(all(0 <= index < 2**32 for index in indices))
        self.assertTrue(all(value > 0 for value in values))
        self.assertEqual(empty, ([], []))
        self.assertEqual(embed.embed_pages(["", ""]), [([], []), ([], [])])
        self.assertEqual(embed.embed_query("?"), ([], []))

    def test_question_words_count_only_where_there_are_no_others(self):
        self.assertEqual(embed.embed_query("What does the GDP of which"), embed.embed_query("gdp"))
        self.assertLen(embed.embed_query("Who is the Who?")[0], 3)

    def test_a_page_without_text_does_not_shorten_the_mean(self):
        with_empty = embed.embed_pages(["a b", "c d e f", ""], b=0.75)
        # idf counts the empty page, the mean length (3) does not.
        norm = 1.2 * (0.25 + 0.75 * 2 / 3)
        self.assertAlmostEqual(with_empty[0][1][0], math.log(1 + 2.5 / 1.5) * 2.2 / (1 + norm))


@absltest.skipUnless(RESEARCH_DATA, "AWM_RESEARCH_DATA is not set")
class RecallTest(absltest.TestCase):
    def test_the_question_finds_its_evidence_on_the_benchmark(self):
        root = pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_dev"
        questions, _ = mmlongbench.load(root)
        documents, _ = pdf.open_documents(root / "documents", [q.document for q in questions])
        vectors = {id: embed.embed_pages(d.page_texts) for id, d in documents.items()}
        recalls = []
        for question in questions:
            texts = documents[question.document].page_texts
            gold = set(question.evidence_pages)
            if question.answer_format == "None" or not gold:
                continue
            if not all(texts[page - 1].strip() for page in gold):
                continue
            query = embed.embed_query(question.text)
            scores = [score(page, query) for page in vectors[question.document]]
            ranked = sorted(range(1, len(texts) + 1), key=lambda page: (-scores[page - 1], page))
            recalls.append(len(gold & set(ranked[:3])) / len(gold))
        self.assertLen(recalls, 89)
        # 0.57, 0.65 and 0.48 with PyMuPDF 2.0; versions differ in the text they extract.
        self.assertGreaterEqual(sum(recalls) / len(recalls), 0.54)
        self.assertGreaterEqual(sum(r > 0 for r in recalls) / len(recalls), 0.62)
        self.assertGreaterEqual(sum(r == 1 for r in recalls) / len(recalls), 0.45)


if __name__ == "__main__":
    absltest.main()
