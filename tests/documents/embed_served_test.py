"""Requests as the services document them, vectors of length 1, and a page embedded only once."""

import base64
import io
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from awm_jax.documents import embed_served
from awm_jax.servers import Server, ServerError
from awm_jax.types import Page
from tests.server_double import ServerDouble

PROJECTOR = np.zeros((128, 2048), np.float32)
PROJECTOR[0, 0] = PROJECTOR[1, 1] = 2.0


def page(number=1, height=20, width=30):
    image = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    return Page("a.pdf", number, image, f"digest {number}")


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


class EmbedServedTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.double = self.enterContext(ServerDouble(embed=self.embed).running())
        self.size = 2048
        self.tokens = None

    def embed(self, item):
        """Numbers that depend on the input alone."""
        shape = self.size if self.tokens is None else (self.tokens, self.size)
        return np.random.default_rng(len(str(item))).normal(size=shape).tolist()

    def server(self, **settings):
        settings = {"timeout_s": 20, "retries": 1, "backoff_s": 0.0, "concurrency": 4, **settings}
        return Server(self.double.url, "double", **settings)

    def assert_unit(self, vectors):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-6)
        self.assertEqual(vectors.dtype, np.float32)


class HostedTest(EmbedServedTestCase):
    def test_single_vectors(self):
        self.size = 256
        embedder = embed_served.jina_hosted(self.server(), size=256)
        [vector] = embedder.embed_pages([page()])
        self.assertEqual(vector.shape, (256,))
        self.assert_unit(vector)
        self.assert_unit(embedder.embed_query("how wide?"))
        passage, query = self.double.bodies("/v1/embeddings")
        np.testing.assert_array_equal(pixels(passage["input"][0]["image"]), page().image)
        self.assertEqual((passage["task"], passage["dimensions"]), ("retrieval.passage", 256))
        # The service puts the prefix there itself.
        expected = {
            "model": "double",
            "task": "retrieval.query",
            "input": [{"text": "how wide?"}],
            "dimensions": 256,
        }
        self.assertEqual(query, expected)

    def test_multi_vectors(self):
        self.size, self.tokens = 128, 7
        embedder = embed_served.jina_hosted(self.server(), multi=True)
        vectors = embedder.embed_query("how wide?")
        self.assertEqual((vectors.shape, embedder.size), ((7, 128), 128))
        self.assert_unit(vectors)
        [body] = self.double.bodies("/v1/embeddings")
        self.assertIs(body["return_multivector"], True)
        self.assertNotIn("dimensions", body)

    def test_a_large_page_is_scaled_to_the_cap(self):
        embedder = embed_served.jina_hosted(self.server(), max_pixels=1000)
        embedder.embed_page(page(height=100, width=60))
        [body] = self.double.bodies("/v1/embeddings")
        height, width, _ = pixels(body["input"][0]["image"]).shape
        self.assertBetween(height * width, 900, 1000)
        self.assertAlmostEqual(height / width, 100 / 60, delta=0.1)

    def test_costs_are_reported(self):
        spent = []
        embedder = embed_served.jina_hosted(self.server(), on_tokens=spent.append)
        embedder.embed_query("x")
        self.assertEqual(spent, [5])

    def test_a_size_that_jina_does_not_have(self):
        with self.assertRaisesRegex(ValueError, "size 300: Jina v4 has"):
            embed_served.jina_hosted(self.server(), size=300)


class VllmTest(EmbedServedTestCase):
    def test_single_vectors_are_cut_and_have_length_one(self):
        embedder = embed_served.jina_vllm(self.server(), size=128)
        whole = np.asarray(self.embed("Query: how wide?"), np.float32)[:128]
        vector = embedder.embed_query("how wide?")
        np.testing.assert_allclose(vector, whole / np.linalg.norm(whole), rtol=1e-5)
        self.assertEqual(self.double.bodies("/v1/embeddings")[0]["input"], ["Query: how wide?"])
        self.assertEqual(embedder.embed_page(page()).shape, (128,))
        [message] = self.double.bodies("/v1/embeddings")[1]["messages"]
        image, text = message["content"]
        data = image["image_url"]["url"].removeprefix("data:image/png;base64,")
        np.testing.assert_array_equal(pixels(data), page().image)
        self.assertEqual(text["text"], "Describe the image.")

    def test_the_projector_is_applied_to_each_token(self):
        self.double.embed = lambda item: [[3.0, 4.0, 9.0] + [0.0] * 2045] * 2
        embedder = embed_served.jina_vllm(self.server(), projector=PROJECTOR)
        vectors = embedder.embed_page(page())
        np.testing.assert_allclose(vectors[:, :3], [[0.6, 0.8, 0.0]] * 2, rtol=1e-6)
        self.assertEqual((vectors.shape, embedder.multi), ((2, 128), True))
        self.assertEqual(self.double.requests[0].path, "/pooling")

    def test_another_projector_is_another_embedder(self):
        names = {
            embed_served.jina_vllm(self.server(), projector=each).name
            for each in (None, PROJECTOR, PROJECTOR * 2)
        }
        self.assertLen(names, 3)

    def test_a_projector_from_a_file(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        np.save(folder / "right.npy", PROJECTOR)
        np.save(folder / "wrong.npy", PROJECTOR.T)
        np.testing.assert_array_equal(embed_served.load_projector(folder / "right.npy"), PROJECTOR)
        with self.assertRaisesRegex(ValueError, r"wrong.npy: found \(2048, 128\) float32"):
            embed_served.load_projector(folder / "wrong.npy")
        with self.assertRaisesRegex(ValueError, "none.npy: cannot be read"):
            embed_served.load_projector(folder / "none.npy")


class TextTest(EmbedServedTestCase):
    def test_prefixes_caps_and_blank_pages(self):
        self.size = 4
        embedder = embed_served.text_embedder(
            self.server(), size=4, query_prefix="q: ", max_characters=5, extra={"user": "me"}
        )
        embedder.embed_query("wide")
        embedder.embed_page("0123456789")
        embedder.embed_page("")
        sent = [body["input"] for body in self.double.bodies("/v1/embeddings")]
        self.assertEqual(sent, [["q: wi"], ["01234"], [" "]])
        self.assertEqual(self.double.bodies("/v1/embeddings")[0]["user"], "me")
        with self.assertRaisesRegex(ValueError, "page 1 of a.pdf: expected its text"):
            embedder.embed_page(page())

    def test_vectors_of_another_size_or_without_length_are_refused(self):
        self.size = 3
        embedder = embed_served.text_embedder(self.server(), size=4)
        with self.assertRaisesRegex(ServerError, r"of shape \[3\], expected \[4\]"):
            embedder.embed_page("x")
        self.double.embed = lambda item: [0.0] * 4
        with self.assertRaisesRegex(ServerError, "a vector of length 0"):
            embedder.embed_page("x")


class KeptTest(EmbedServedTestCase):
    def setUp(self):
        super().setUp()
        self.size = 4
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def embedder(self, **settings):
        embedder = embed_served.text_embedder(self.server(**settings), size=4)
        return embed_served.kept(embedder, self.folder)

    def test_same_page_same_vector_whatever_it_comes_with(self):
        # As servers do whose results depend on the batch.
        self.double.embed = lambda item: [1.0, 2.0, 3.0, float(len(self.double.requests))]
        alone = self.embedder().embed_pages(["b"])
        together = self.embedder().embed_pages(["a", "b", "c"])
        np.testing.assert_array_equal(alone[0], together[1])
        self.assertTrue(all(len(b["input"]) == 1 for b in self.double.bodies("/v1/embeddings")))

    def test_a_build_that_failed_asks_for_what_is_missing_alone(self):
        pages = [f"page {'x' * number}" for number in range(6)]
        self.double.script.extend(["", "", "400"])
        with self.assertRaisesRegex(ServerError, "HTTP 400"):
            self.embedder(concurrency=1).embed_pages(pages)
        asked = len(self.double.requests)
        self.assertEqual(asked, 3)
        # Half a file of a process that was killed.
        [folder] = self.folder.iterdir()
        (folder / "tmpabc").write_bytes(b"\x93NUM")
        vectors = self.embedder(concurrency=1).embed_pages(pages)
        self.assertEqual(len(self.double.requests), asked + 4)
        np.testing.assert_array_equal(vectors[0], self.embedder().embed_page(pages[0]))

    def test_misbehaviour_is_survived(self):
        self.double.script.extend(["500", "", "truncated_json", "", "wrong_model"])
        embedder = self.embedder()
        first, second = embedder.embed_page("a"), embedder.embed_page("b")
        self.assertEqual((first.shape, second.shape), ((4,), (4,)))
        with self.assertRaisesRegex(ServerError, "model 'double', the reply is by 'another'"):
            embedder.embed_page("c")

    def test_embedders_do_not_share(self):
        self.embedder().embed_page("a")
        other = embed_served.text_embedder(self.server(), size=4, page_prefix="p: ")
        embed_served.kept(other, self.folder).embed_page("a")
        self.assertLen(list(self.folder.iterdir()), 2)


if __name__ == "__main__":
    absltest.main()
