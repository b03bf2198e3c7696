"""A folder of documents becomes an index: killed, locked, changed, and used."""

import contextlib
import io
import pathlib
import tempfile
from unittest import mock

import rich.console
from absl.testing import absltest
from PIL import Image

from awm_jax.commands import index as command
from awm_jax.documents import index, pdf, workers
from awm_jax.documents.pdf import pymupdf


class IndexTest(absltest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.documents, self.out = self.folder / "documents", self.folder / "index"
        # A worker is another test's; see workers_test.
        self.enterContext(mock.patch.object(workers, "run", pdf.run_here))
        for name, *texts in (
            ("rivers.pdf", "The Tana", "The Volga is 9 m wide"),
            ("north/lakes.PDF", "Inari", "", "Ladoga"),
        ):
            path = self.documents / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with pymupdf.open() as document:
                for text in texts:
                    document.new_page().insert_text((20, 40), text)
                path.write_bytes(document.tobytes())
        (self.documents / "scan").mkdir()
        for number in (1, 2):
            Image.new("RGB", (8, 8)).save(self.documents / "scan" / f"p{number}.png")
        (self.documents / "notes.txt").write_text("no document")

    def index(self) -> tuple[int, str]:
        written = io.StringIO()
        with (
            mock.patch.object(
                command.display, "console", rich.console.Console(file=written, soft_wrap=True)
            ),
            contextlib.redirect_stderr(written),
        ):
            status = command.main([str(self.documents), "--out", str(self.out)])
        return status, written.getvalue()

    def test_indexes_what_is_there_and_can_be_searched(self):
        status, written = self.index()
        self.assertEqual(status, 0, written)
        self.assertIn("[1/3] north/lakes.PDF: 3 pages (1 without text)\n", written)
        self.assertIn("[3/3] scan: 2 pages (2 without text)\n", written)
        self.assertIn("3 documents, 7 pages (3 without text); 0 documents were there", written)
        document = pdf.open_document(self.documents / "rivers.pdf")
        with contextlib.closing(index.open_client(self.out)) as client:
            self.assertEqual(index.build_index(client, [document]).already_there, 1)
            self.assertEqual(index.make_search(client, [document])(document.id, "Volga", 1), (2,))

    def test_interrupted_it_goes_on(self):
        build, calls = index.build_index, []

        def interrupted(client, documents):
            calls.append(documents)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return build(client, documents)

        with mock.patch.object(index, "build_index", interrupted):
            status, written = self.index()
        self.assertEqual(status, 130)
        self.assertIn("the same command goes on", written)
        status, written = self.index()
        self.assertEqual(status, 0)
        self.assertIn("3 documents, 7 pages (3 without text); 1 documents were there", written)

    def test_a_document_that_cannot_be_opened_is_left_out(self):
        (self.documents / "rivers.pdf").write_bytes(b"")
        status, written = self.index()
        self.assertEqual(status, 1)
        self.assertRegex(written, r"\[2/3\] rivers.pdf: left out: .*the file is empty")
        self.assertIn("2 documents, 5 pages", written)
        self.assertIn("1 left out", written)

    def test_a_changed_document_is_refused(self):
        self.index()
        Image.new("RGB", (8, 8), "red").save(self.documents / "scan" / "p2.png")
        status, written = self.index()
        self.assertEqual(status, 2)
        self.assertRegex(written, "build another one.\n  scan: it holds a file with digest")

    def test_an_index_in_use_is_said(self):
        with contextlib.closing(index.open_client(self.out)):
            status, written = self.index()
        self.assertEqual(status, 2)
        self.assertIn("the index is open in another client", written)

    def test_a_folder_without_documents_is_refused(self):
        self.documents = self.folder / "empty"
        self.documents.mkdir()
        self.assertRegex(self.index()[1], "empty: expected PDFs or folders of page images")
        self.documents = self.folder / "gone"
        status, written = self.index()
        self.assertEqual(status, 2)
        self.assertRegex(written, "gone: expected a folder with documents")


if __name__ == "__main__":
    absltest.main()
