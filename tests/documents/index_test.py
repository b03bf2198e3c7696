"""Pages go in and come out in order; a build goes on where it stopped and never mixes."""

import concurrent.futures
import dataclasses
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized
from qdrant_client import models

from awm_jax.documents import embed, index
from awm_jax.types import Document


def document(id: str, *texts: str) -> Document:
    return Document(id=id, path=id, page_texts=texts, digest=f"digest of {id}")


FRUIT = document("fruit.pdf", "", "apple and pear", "pear", "pear", "plum")
TREES = document("trees.pdf", "oak", "apple tree")
BLANK = document("scan.pdf", "", "", "")


class IndexTestCase(parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def client(self, location=":memory:"):
        client = index.open_client(location)
        self.addCleanup(client.close)
        return client


class SearchTest(IndexTestCase):
    def setUp(self):
        super().setUp()
        client = self.client()
        self.report = index.build_index(client, [FRUIT, TREES, BLANK])
        self.search = index.make_search(client, [FRUIT, TREES, BLANK])

    @parameterized.named_parameters(
        # Pages 3 and 4 are equal: page order. Then page 2, longer. Then the rest in page order.
        ("ties_and_filling", "fruit.pdf", "Pears?", 5, (3, 4, 2, 1, 5)),
        ("top_k", "fruit.pdf", "pear", 2, (3, 4)),
        ("no_more_than_there_are", "trees.pdf", "apple", 9, (2, 1)),
        ("another_document_is_not_seen", "trees.pdf", "pear plum", 1, (1,)),
        ("no_term", "fruit.pdf", "?!", 3, (1, 2, 3)),
        ("empty_query", "fruit.pdf", "", 2, (1, 2)),
        ("no_text_layer", "scan.pdf", "pear", 2, (1, 2)),
    )
    def test_by_hand(self, id, query, k, expected):
        self.assertEqual(self.search(id, query, k), expected)

    def test_pages_without_text_are_counted_and_said(self):
        self.assertEqual(self.report, index.BuildReport(3, 10, 4, 0))
        self.assertIn("4 without text", str(self.report))

    def test_scores_agree_with_the_dot_product(self):
        pages = embed.embed_pages(FRUIT.page_texts)
        query = dict(zip(*embed.embed_query("apple plum"), strict=True))
        scores = [sum(query.get(i, 0) * v for i, v in zip(*p, strict=True)) for p in pages]
        by_score = sorted(range(1, 6), key=lambda page: (-scores[page - 1], page))
        self.assertEqual(self.search("fruit.pdf", "apple plum", 5), tuple(by_score))

    def test_wrong_calls_are_named(self):
        with self.assertRaisesRegex(ValueError, "no document 'x.pdf' among the 3"):
            self.search("x.pdf", "pear", 1)
        with self.assertRaisesRegex(ValueError, "k=0"):
            self.search("fruit.pdf", "pear", 0)


class RepeatedSearchTest(IndexTestCase):
    def test_a_query_is_asked_once_from_any_thread(self):
        client = self.client(self.folder())
        index.build_index(client, [FRUIT])
        search = index.make_search(client, [FRUIT])
        expected = search("fruit.pdf", "pear", 3)
        with (
            mock.patch.object(client, "query_points", wraps=client.query_points) as asked,
            concurrent.futures.ThreadPoolExecutor(8) as pool,
        ):
            again = list(pool.map(lambda k: search("fruit.pdf", "pear", k), [1, 2, 3] * 20))
            asked.assert_not_called()
            pool.submit(search, "fruit.pdf", "plum", 3).result()
        self.assertEqual(again, [expected[:1], expected[:2], expected] * 20)
        self.assertEqual(asked.call_count, 1)


class BuildIndexTest(IndexTestCase):
    def test_round_trip_through_a_folder(self):
        folder = self.folder() / "index"
        client = index.open_client(folder)
        index.build_index(client, [FRUIT, TREES])
        first = index.make_search(client, [FRUIT])("fruit.pdf", "pear apple", 5)
        client.close()
        client = self.client(folder)
        self.assertEqual(index.build_index(client, [FRUIT, TREES]).already_there, 2)
        self.assertEqual(index.make_search(client, [FRUIT])("fruit.pdf", "pear apple", 5), first)

    def test_an_interrupted_build_goes_on(self):
        long = document("long.pdf", *[f"word{n} page" for n in range(150)])
        client = self.client()
        upsert, calls = client.upsert, []

        def fails_in_the_second_document(*args, **kwargs):
            calls.append(args)
            # FRUIT takes two requests, its pages and its entry; `long` fails in its second of four.
            if len(calls) == 4:
                raise KeyboardInterrupt
            return upsert(*args, **kwargs)

        with (
            mock.patch.object(client, "upsert", fails_in_the_second_document),
            self.assertRaises(KeyboardInterrupt),
        ):
            index.build_index(client, [FRUIT, long])
        with self.assertRaisesRegex(ValueError, r"build it first: \['long.pdf'\]"):
            index.make_search(client, [FRUIT, long])
        # The half that is there came from another file by that name, with more pages.
        shorter = document("long.pdf", "word1", "word2")
        report = index.build_index(client, [FRUIT, shorter])
        self.assertEqual((report.already_there, report.pages), (1, 7))
        search = index.make_search(client, [FRUIT, shorter])
        self.assertEqual(search("long.pdf", "word2 page", 5), (2, 1))

    def test_refuses_to_mix(self):
        client, name = self.client(), embed.NAME
        index.build_index(client, [FRUIT])
        changed = dataclasses.replace(FRUIT, digest="another")
        for call in (index.build_index, index.make_search):
            with self.assertRaisesRegex(ValueError, "fruit.pdf: it holds a file with digest"):
                call(client, [TREES, changed])
            with (
                mock.patch.object(embed, "NAME", "new"),
                self.assertRaisesRegex(ValueError, f"embedder {name}; this is new"),
            ):
                call(client, [FRUIT])
            with self.assertRaisesRegex(ValueError, r"same id: \['fruit.pdf'\]"):
                call(client, [FRUIT, changed])
        self.assertEqual(client.count("pages-documents").count, 1)
        index.build_index(client, [changed], name="other")

    def test_hash_collisions_of_documents_share_a_collection(self):
        client = self.client()
        with mock.patch.object(index, "_EMBEDDED_BUCKETS", 1):
            index.build_index(client, [FRUIT, TREES])
            search = index.make_search(client, [FRUIT, TREES])
            self.assertEqual(search("trees.pdf", "apple", 1), (2,))
            self.assertEqual(search("fruit.pdf", "apple", 1), (2,))
        self.assertEqual(client.count("pages-pages-0").count, 6)


class OpenClientTest(IndexTestCase):
    def test_a_second_client_is_told_why_not(self):
        folder = self.folder()
        self.client(folder)
        with self.assertRaisesRegex(RuntimeError, "open in another client.*run a Qdrant server"):
            index.open_client(folder)

    def test_a_folder_with_other_files_is_left_alone(self):
        folder = self.folder()
        (folder / "thesis.tex").touch()
        with self.assertRaisesRegex(ValueError, "found other files"):
            index.open_client(folder)


class ServerTest(IndexTestCase):
    """What a server is asked, for there is none in a test."""

    def test_one_collection_with_a_payload_index(self):
        client = index.open_client("http://localhost:1")
        self.addCleanup(client.close)
        with (
            mock.patch.object(client, "collection_exists", return_value=False),
            mock.patch.object(client, "create_collection") as create,
            mock.patch.object(client, "create_payload_index") as payload_index,
            mock.patch.object(client, "upsert") as upsert,
        ):
            index.build_index(client, [FRUIT])
        self.assertEqual(
            [call.args[0] for call in create.call_args_list], ["pages-documents", "pages-pages-0"]
        )
        payload_index.assert_called_once_with(
            "pages-pages-0", "document", field_schema=models.PayloadSchemaType.KEYWORD
        )
        self.assertLen(upsert.call_args_list[0].args[1], 4)


if __name__ == "__main__":
    absltest.main()
