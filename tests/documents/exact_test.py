"""MaxSim by hand; searches over one vector a page and one a token."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from awm_jax.documents import embed_served, exact
from awm_jax.types import Document, Page

FRUIT = Document("fruit.pdf", "fruit.pdf", ("plum", "pear plum", "pear", "pear"), "digest")
VECTORS = {"plum": [1.0, 0.0], "pear": [0.0, 1.0]}


def embedder(*, multi=False, reads="text", asked=None, fails_on=None):
    """Words as vectors, their sum where there is one a page; a page's image is its number."""

    def vectors(text):
        array = np.array([VECTORS[word] for word in text.split()], np.float32)
        return array if multi else array.sum(0)

    def embed_page(page):
        text = page if isinstance(page, str) else FRUIT.page_texts[page.image[0, 0, 0] - 1]
        if asked is not None:
            asked.append(text)
        if text == fails_on:
            raise ConnectionError("down")
        return vectors(text)

    return embed_served.Embedder("words", 2, multi, reads, embed_page, vectors, concurrency=3)


def render(document, number):
    return Page(document, number, np.full((1, 1, 3), number, np.uint8), f"{number}")


def not_rendered(document, number):
    raise AssertionError("a text embedder needs no image")


class SimilarityTest(absltest.TestCase):
    def test_by_hand(self):
        query = np.array([[1.0, 0.0], [0.6, -0.8]], np.float32)
        page = np.array([[0.0, 1.0], [-1.0, 0.0], [0.8, 0.6]], np.float32)
        # The first token's best is 0.8, of the third; the second's are -0.8, -0.6 and 0.
        self.assertAlmostEqual(exact.similarity(query, page), 0.8, places=6)
        self.assertAlmostEqual(exact.similarity(query[1:], page[:2]), -0.6, places=6)
        self.assertAlmostEqual(exact.similarity(query[1], page[0]), -0.8, places=6)
        with self.assertRaisesRegex(ValueError, r"query \[2\] and page \[3, 2\]"):
            exact.similarity(query[0], page)


class SearchTest(absltest.TestCase):
    def test_one_vector_a_page_and_one_a_token(self):
        single = exact.make_vector_search(embedder(), [FRUIT], render=not_rendered)
        self.assertEqual(single("fruit.pdf", "pear", 9), (2, 3, 4, 1))
        for reads, draw in (("text", not_rendered), ("image", render)):
            multi = embedder(multi=True, reads=reads)
            search = exact.make_vector_search(multi, [FRUIT], render=draw)
            self.assertEqual(search("fruit.pdf", "plum pear", 3), (2, 1, 3))

    def test_goes_on_where_it_was_interrupted(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        failing = embed_served.kept(embedder(fails_on="pear"), folder)
        with self.assertRaisesRegex(ConnectionError, "down"):
            exact.make_vector_search(failing, [FRUIT], render=not_rendered)
        asked = []
        again = embed_served.kept(embedder(asked=asked), folder)
        search = exact.make_vector_search(again, [FRUIT], render=not_rendered)
        self.assertEqual(set(asked), {"pear"})
        self.assertEqual(search("fruit.pdf", "plum", 2), (1, 2))

    def test_wrong_calls_are_named(self):
        search = exact.make_vector_search(embedder(), [FRUIT], render=not_rendered)
        with self.assertRaisesRegex(ValueError, "no document 'x.pdf' among the 1"):
            search("x.pdf", "pear", 1)
        with self.assertRaisesRegex(ValueError, "k=0"):
            search("fruit.pdf", "pear", 0)
        with self.assertRaisesRegex(ValueError, r"same id: \['fruit.pdf'\]"):
            exact.make_vector_search(embedder(), [FRUIT, FRUIT], render=not_rendered)


if __name__ == "__main__":
    absltest.main()
