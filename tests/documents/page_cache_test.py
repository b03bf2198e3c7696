"""Pages kept on disk are those that would be drawn, or are not there."""

import concurrent.futures
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.documents import page_cache, pdf
from awm_jax.documents.pdf import pymupdf


class PageCacheTest(parameterized.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.kept = self.folder / "kept"
        self.document = self.write("first")
        self.drawn = self.enterContext(mock.patch.object(pdf, "draw_page", wraps=pdf.draw_page))

    def write(self, text: str):
        with pymupdf.open() as document:
            document.new_page(width=96, height=128).insert_text((20, 40), text)
            (self.folder / "a.pdf").write_bytes(document.tobytes())
        return pdf.open_document(self.folder / "a.pdf")

    def page(self, **settings):
        """As a new process would see it."""
        documents = {"a.pdf": self.document}
        return pdf.make_render(documents, cache_folder=self.kept, **settings)("a.pdf", 1)

    def file(self) -> pathlib.Path:
        [path] = self.kept.rglob("*.*")
        return path

    def test_a_second_process_gets_the_same_page_without_drawing(self):
        first, second = self.page(), self.page()
        self.assertEqual(self.drawn.call_count, 1)
        self.assertEqual(second.digest, first.digest)
        np.testing.assert_array_equal(second.image, first.image)
        self.assertFalse(second.image.flags.writeable)

    @parameterized.parameters({"dpi": 72}, {"max_pixels": 999})
    def test_other_settings_are_other_pages(self, **settings):
        first, second = self.page(), self.page(**settings)
        self.assertEqual(self.drawn.call_count, 2)
        self.assertNotEqual(second.digest, first.digest)

    def test_another_file_by_the_same_name_and_another_mupdf_draw_anew(self):
        first = self.page()
        self.document = self.write("second")
        self.assertNotEqual(self.page().digest, first.digest)
        with mock.patch.object(pymupdf, "VersionBind", "0.0"):
            self.page()
        self.assertEqual(self.drawn.call_count, 3)

    @parameterized.named_parameters(
        ("torn", lambda content: content[: len(content) // 2]),
        ("empty", lambda content: b""),
        ("not_an_image", lambda content: b"x" * 100),
        ("another_digest", lambda content: content.replace(b"digest\0", b"differs")),
    )
    def test_a_damaged_file_is_drawn_anew_and_mended(self, damage):
        first = self.page()
        self.file().write_bytes(damage(self.file().read_bytes()))
        with self.assertLogs("awm_jax.documents.page_cache", "WARNING") as logs:
            self.assertEqual(self.page().digest, first.digest)
        self.assertIn("drawn anew", logs.output[0])
        self.page()
        self.assertEqual(self.drawn.call_count, 2)

    def test_other_pixels_under_the_digest_are_drawn_anew(self):
        first = self.page()
        page_cache.write(self.file(), 255 - first.image, first.digest)
        with self.assertLogs("awm_jax.documents.page_cache", "WARNING") as logs:
            self.assertEqual(self.page().digest, first.digest)
        self.assertIn("not what was written", logs.output[0])

    def test_killed_in_the_middle_it_is_not_there(self):
        with (
            mock.patch.object(page_cache.os, "replace", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.page()
        # What a kill leaves behind is beside the place, never in it.
        self.assertEndsWith(self.file().name, ".new")
        self.page()
        self.assertEqual(self.drawn.call_count, 2)

    def test_whoever_reads_while_others_write_gets_a_whole_page(self):
        first, path = self.page(), self.file()
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            written = [
                threads.submit(page_cache.write, path, first.image, first.digest) for _ in range(40)
            ]
            while not all(future.done() for future in written):
                _, digest = page_cache.read(path)
                self.assertEqual(digest, first.digest)

    def test_a_folder_that_cannot_be_written_is_a_warning(self):
        self.kept.write_bytes(b"a file")
        with self.assertLogs("awm_jax.documents.page_cache", "WARNING") as logs:
            self.assertFalse(pdf.is_placeholder(self.page()))
        self.assertIn("is not kept", logs.output[-1])

    def test_a_placeholder_is_not_kept(self):
        with (
            mock.patch.object(pdf, "draw_page", side_effect=pdf.PageError("too late")),
            self.assertLogs("awm_jax.documents.pdf", "WARNING"),
        ):
            self.assertTrue(pdf.is_placeholder(self.page()))
        self.assertFalse(pdf.is_placeholder(self.page()))


if __name__ == "__main__":
    absltest.main()
