"""No page hangs or ends the run; the pixels are those of `documents.pdf`."""

import concurrent.futures
import os
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.documents import pdf, workers
from awm_jax.documents.pdf import pymupdf

# Workers that start in no time: they answer each page with their process id, or as told.
WORKER = """
import json, os, sys
from multiprocessing.connection import Connection
link = Connection(int(sys.argv[1]))
link.send_bytes(b"ready")
while True:
    seconds, name, (path, *_) = json.loads(link.recv_bytes())
    if path == "exit":
        os._exit(7)
    if path == "half":
        os.write(link.fileno(), b"123")
        os._exit(8)
    error = {"error": path, "message": "as told"} if path.endswith("Error") else {}
    link.send_bytes(json.dumps({"shape": [1, 8], **error}).encode())
    link.send_bytes(os.getpid().to_bytes(8))
"""


def endless_page() -> bytes:
    """A PDF of two pages. The first shows nothing, 10^12 times: forms within forms."""
    objects = [
        b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj",
        b"2 0 obj<</Type/Pages/Kids[3 0 R 4 0 R]/Count 2>>endobj",
        b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 10 0 R"
        b"/Resources<</XObject<</F 11 0 R>>>>>>endobj",
        b"4 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 24 0 R"
        b"/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>endobj",
        b"10 0 obj<</Length 5>>stream\n/F Do\nendstream endobj",
    ]
    objects += [
        b"%d 0 obj<</Type/XObject/Subtype/Form/BBox[0 0 100 100]/Length 60"
        b"/Resources<</XObject<</F %d 0 R>>>>>>stream\n%s\nendstream endobj"
        % (number, number + 1, b"/F Do " * 10)
        for number in range(11, 23)
    ]
    objects += [
        b"23 0 obj<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Length 10>>stream\n"
        b"0 0 9 9 re\nendstream endobj",
        b"24 0 obj<</Length 33>>stream\nBT/F 9 Tf 9 50 Td(seen)Tj ET\nendstream endobj",
    ]
    return b"%PDF-1.4\n" + b"\n".join(objects) + b"\ntrailer<</Root 1 0 R>>\n%%EOF\n"


class PagesTest(absltest.TestCase):
    def path(self, content: bytes) -> pathlib.Path:
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "a.pdf"
        path.write_bytes(content)
        return path

    def test_same_pages_from_one_process_or_two(self):
        with pymupdf.open() as document:
            for number in range(6):
                page = document.new_page(width=300 + 40 * number, height=400)
                page.insert_text((20, 40), f"page {number}", fontsize=9 + number)
                page.draw_circle((150, 200), 50, fill=(0.1 * number, 0.5, 1), fill_opacity=0.5)
            document = pdf.open_document(self.path(document.tobytes()))
        here = [pdf.render_page(document, number) for number in range(1, 7)]
        for count in (1, 2):
            with (
                workers.run_in_workers(count) as run,
                concurrent.futures.ThreadPoolExecutor(4) as threads,
            ):
                shown = pdf.make_render({"a.pdf": document}, run=run)
                there = list(threads.map(shown, ["a.pdf"] * 6, range(1, 7)))
                os.rename(document.path, document.path + ".away")
                with self.assertRaisesRegex(pdf.DocumentError, "cannot be read"):
                    pdf.render_page(document, 1, run=run)
                os.rename(document.path + ".away", document.path)
            self.assertEqual([p.digest for p in there], [p.digest for p in here])
            np.testing.assert_array_equal(there[5].image, here[5].image)

    def test_a_page_without_end_is_replaced_and_the_next_is_drawn(self):
        path = self.path(endless_page())
        with workers.run_in_workers(seconds=1) as run:
            document = pdf.open_document(path, run=run)
            self.assertEqual(document.page_texts, ("", "seen\n"))
            self.assertIn(
                "the text of pages 1 cannot be read (took longer than 1 s)", document.warnings
            )
            with self.assertLogs("awm_jax.documents.pdf", "WARNING") as logs:
                page = pdf.render_page(document, 1, run=run)
            self.assertIn(
                "a.pdf: page 1 could not be rendered: took longer than 1 s", logs.output[0]
            )
            self.assertTrue(pdf.is_placeholder(page))
            self.assertFalse(pdf.is_placeholder(pdf.render_page(document, 2, run=run)))


class WorkersTest(parameterized.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.object(workers, "_PROGRAM", WORKER))

    @parameterized.parameters(("exit", 7), ("half", 8))
    def test_a_process_that_ends_is_replaced(self, path, code):
        with workers.run_in_workers() as run:
            first = process_id(run)
            self.assertEqual(process_id(run), first)
            with self.assertRaisesRegex(pdf.PageError, rf"ended its process \({code}\)"):
                run(pdf.draw_page, path, 0, 72, 1)
            second = process_id(run)
        self.assertNotEqual(second, first)
        for number in (first, second):
            self.assertFalse(alive(number))

    def test_errors_of_a_page_keep_the_process(self):
        with workers.run_in_workers() as run:
            first = process_id(run)
            for error in (pdf.PageError, pdf.DocumentError):
                with self.assertRaisesRegex(error, "as told"):
                    run(pdf.draw_page, error.__name__, 0, 72, 1)
            self.assertEqual(process_id(run), first)

    def test_a_process_is_replaced_after_so_many_pages(self):
        with workers.run_in_workers(calls_a_worker=2) as run:
            a, b, c, d, e = (process_id(run) for _ in range(5))
            self.assertEqual((a, c), (b, d))
            self.assertLen({a, c, e}, 3)
            self.assertFalse(alive(a))

    def test_no_process_before_the_first_page_nor_a_second_without_need(self):
        with mock.patch.object(workers, "_Worker", wraps=workers._Worker) as started:
            with workers.run_in_workers(2) as run:
                started.assert_not_called()
                for _ in range(3):
                    process_id(run)
            started.assert_called_once()
        with self.assertRaisesRegex(RuntimeError, "were closed"):
            run(pdf.draw_page, "a.pdf", 0, 72, 1)

    def test_a_process_that_cannot_start_is_an_error_not_a_page(self):
        with workers.run_in_workers() as run:
            with (
                mock.patch.object(workers, "_PROGRAM", "raise SystemExit(3)"),
                self.assertRaisesRegex(RuntimeError, r"did not start \(exit code 3\)"),
            ):
                run(pdf.draw_page, "a.pdf", 0, 72, 1)
            process_id(run)

    def test_refuses(self):
        with (
            self.assertRaisesRegex(ValueError, "found 0, 60 and 500"),
            workers.run_in_workers(0),
        ):
            pass


def process_id(run: pdf.Run) -> int:
    return int.from_bytes(run(pdf.draw_page, "a.pdf", 0, 72, 1).tobytes())


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    absltest.main()
