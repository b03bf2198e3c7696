"""Ugly files are refused in words or rendered; pages are 1-based and deterministic."""

import concurrent.futures
import os
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from awm_jax.documents import pdf
from awm_jax.documents.pdf import pymupdf

RESEARCH_DATA = os.environ.get("AWM_RESEARCH_DATA", "")
PAGE = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]>>"
WHITE = np.array([255, 255, 255])


def hand_written(kids: bytes, count: int, page: bytes) -> bytes:
    """A PDF written by hand, for what PyMuPDF refuses to save. Without an xref it is repaired."""
    return (
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[" + kids + b"]/Count " + str(count).encode() + b">>endobj\n"
        b"3 0 obj" + page + b"endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
    )


class PdfTestCase(parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def path(self, name: str, content: bytes = b"") -> pathlib.Path:
        path = self.folder() / name
        path.write_bytes(content)
        return path

    def pdf(self, *texts: str, width: float = 300, height: float = 400, **options) -> bytes:
        with pymupdf.open() as document:
            for text in texts:
                document.new_page(width=width, height=height).insert_text((20, 40), text)
            return document.tobytes(**options)


class OpenDocumentTest(PdfTestCase):
    def test_text_pages_and_digest(self):
        document = pdf.open_document(self.path("a.pdf", self.pdf("first", "", "third")))
        self.assertEqual(document.id, "a.pdf")
        self.assertEqual([text.strip() for text in document.page_texts], ["first", "", "third"])
        self.assertLen(document.digest, 64)
        self.assertEmpty(document.warnings)

    @parameterized.named_parameters(
        ("empty", b"", "the file is empty"),
        ("junk", b"\x00\x01 junk" * 100, "not a PDF"),
        ("header_only", b"%PDF-1.7\n", "not a PDF, or too damaged"),
        ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("html", b"<!DOCTYPE html><html><body><p>Not found</p></body></html>", "found .*HTML"),
        ("no_pages", hand_written(b"", 0, b"null"), "no pages"),
        (
            "endless",
            hand_written(b"3 0 R", 10**7, PAGE),
            "pages cannot be counted|claims 10000000 pages",
        ),
    )
    def test_refuses(self, content, message):
        with self.assertRaisesRegex(pdf.DocumentError, message):
            pdf.open_document(self.path("a.pdf", content))

    def test_refuses_what_is_not_there(self):
        with self.assertRaisesRegex(pdf.DocumentError, "cannot be read"):
            pdf.open_document(self.folder() / "gone.pdf")

    def test_a_user_password_is_refused_an_owner_password_is_not(self):
        encrypted = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "owner_pw": "boss"}
        user = self.path("user.pdf", self.pdf("text", user_pw="secret", **encrypted))
        with self.assertRaisesRegex(pdf.DocumentError, "needs a password"):
            pdf.open_document(user)
        owner = pdf.open_document(self.path("owner.pdf", self.pdf("text", **encrypted)))
        self.assertEqual(owner.page_texts[0].strip(), "text")
        self.assertFalse(pdf.is_placeholder(pdf.render_page(owner, 1)))

    @parameterized.named_parameters(
        ("truncated", lambda content: content[:-200]),
        ("bad_xref", lambda content: content.replace(b"startxref\n", b"startxref\n9")),
        ("torn_table", lambda content: content.replace(b" 00000 n", b" 0000")),
    )
    def test_a_damaged_file_opens_with_a_warning(self, damage):
        content = self.pdf("first", "second")
        document = pdf.open_document(self.path("a.pdf", damage(content)))
        self.assertEqual(document.page_count, 2)
        self.assertIn("was repaired", document.warnings[0])

    def test_one_bad_document_does_not_stop_the_others(self):
        path = self.path("good.pdf", self.pdf("text"))
        (path.parent / "bad.pdf").write_bytes(b"")
        documents, failures = pdf.open_documents(path.parent, ["bad.pdf", "good.pdf", "gone"])
        self.assertEqual(list(documents), ["good.pdf"])
        self.assertEqual(list(failures), ["bad.pdf", "gone"])
        self.assertIn("is empty", failures["bad.pdf"])


class RenderPageTest(PdfTestCase):
    def test_pages_are_counted_from_one(self):
        content = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
        path = self.path("a.pdf")
        content[0].save(path, save_all=True, append_images=content[1:])
        document = pdf.open_document(path)
        for number, channel in ((1, 0), (2, 1), (3, 2)):
            page = pdf.render_page(document, number)
            self.assertEqual(page.number, number)
            self.assertEqual(page.image[4, 4].argmax(), channel)
        for number in (0, 4, -1):
            with self.assertRaisesRegex(ValueError, f"no page {number}; pages are 1 to 3"):
                pdf.render_page(document, number)

    def test_dpi_and_pixel_budget(self):
        document = pdf.open_document(self.path("a.pdf", self.pdf("text", width=96, height=128)))
        page = pdf.render_page(document, 1, dpi=72)
        self.assertEqual(page.image.shape, (128, 96, 3))
        self.assertEqual(page.image.dtype, np.uint8)
        self.assertEqual(pdf.render_page(document, 1, dpi=144).image.shape, (256, 192, 3))
        small = pdf.render_page(document, 1, dpi=144, max_pixels=128 * 96)
        self.assertEqual(small.image.shape, (128, 96, 3))
        self.assertEqual(small.digest, page.digest)
        with self.assertRaisesRegex(ValueError, "max_pixels >= 1"):
            pdf.render_page(document, 1, max_pixels=0)

    def test_the_same_call_gives_the_same_read_only_bytes(self):
        document = pdf.open_document(self.path("a.pdf", self.pdf("text")))
        one, two = pdf.render_page(document, 1), pdf.render_page(document, 1)
        self.assertEqual(one.digest, two.digest)
        np.testing.assert_array_equal(one.image, two.image)
        with self.assertRaisesRegex(ValueError, "read-only"):
            one.image[0, 0] = 0

    @parameterized.parameters(
        (14400, 14400), (200, 20000), (14400, 3), (3, 14400), (3, 3), (333.3, 77.7)
    )
    def test_no_page_box_breaks_budget_or_aspect(self, width, height):
        content = self.pdf("text", width=width, height=height)
        document = pdf.open_document(self.path("a.pdf", content))
        for max_pixels in (1, 1000, 60_000):
            page = pdf.render_page(document, 1, max_pixels=max_pixels)
            self.assertFalse(pdf.is_placeholder(page))
            rows, columns, _ = page.image.shape
            self.assertLessEqual(rows * columns, max_pixels)
            self.assertLessEqual(max(rows, columns), pdf.MAX_ASPECT_RATIO * min(rows, columns))
        # Budget that is there is used, as far as the resolution allows.
        self.assertGreater(rows * columns, min(0.9 * 60_000, 0.9 * 4 * width * height))

    def test_rotation_and_crop_box_are_obeyed(self):
        with pymupdf.open() as document:
            page = document.new_page(width=300, height=400)
            page.draw_rect((100, 100, 150, 150), color=(1, 0, 0), fill=(1, 0, 0))
            page.set_cropbox(pymupdf.Rect(100, 100, 200, 300))
            page.set_rotation(90)
            path = self.path("a.pdf", document.tobytes())
        image = pdf.render_page(pdf.open_document(path), 1, dpi=72).image
        # The crop is 100 wide and 200 high with red at its top left, turned clockwise.
        self.assertEqual(image.shape, (100, 200, 3))
        np.testing.assert_array_equal(image[25, 175], [255, 0, 0])
        np.testing.assert_array_equal(image[25, 25], WHITE)

    @parameterized.parameters((0, 20, 30), (90, 170, 20), (180, 80, 170), (270, 30, 80))
    def test_each_rotation_turns_the_crop_clockwise(self, angle, column, row):
        with pymupdf.open() as document:
            page = document.new_page(width=300, height=400)
            # Its middle is at (20, 30) of the crop, which is 100 wide and 200 high.
            page.draw_rect((65, 75, 75, 85), color=(1, 0, 0), fill=(1, 0, 0))
            page.set_cropbox(pymupdf.Rect(50, 50, 150, 250))
            page.set_rotation(angle)
            path = self.path("a.pdf", document.tobytes())
        image = pdf.render_page(pdf.open_document(path), 1, dpi=72).image
        self.assertEqual(image.shape, (100, 200, 3) if angle % 180 else (200, 100, 3))
        red = np.argwhere((image == [255, 0, 0]).all(-1))
        np.testing.assert_allclose(red.mean(0), [row, column], atol=1)

    def test_annotations_and_fields_are_shown_unless_hidden(self):
        with pymupdf.open() as document:
            page = document.new_page(width=100, height=100)
            for column, flags in (
                (10, pymupdf.PDF_ANNOT_IS_PRINT),
                (60, pymupdf.PDF_ANNOT_IS_HIDDEN),
            ):
                square = page.add_rect_annot((column, 10, column + 30, 40))
                square.set_colors(stroke=(0, 0, 1), fill=(0, 0, 1))
                square.update()
                square.set_flags(flags)
            field = pymupdf.Widget()
            field.field_type, field.field_name = pymupdf.PDF_WIDGET_TYPE_TEXT, "name"
            field.rect, field.field_value = pymupdf.Rect(10, 60, 90, 90), "WWWWWW"
            page.add_widget(field)
            path = self.path("a.pdf", document.tobytes())
        image = pdf.render_page(pdf.open_document(path), 1, dpi=72).image
        np.testing.assert_array_equal(image[25, 25], [0, 0, 255])
        np.testing.assert_array_equal(image[25, 75], WHITE)
        self.assertLess(image[60:90, 10:90].min(), 100, "the field's value is not to be seen")

    def test_a_page_that_cannot_render_is_replaced_and_said(self):
        broken = hand_written(b"3 0 R", 2, PAGE)
        document = pdf.open_document(self.path("a.pdf", broken))
        self.assertEqual(document.page_texts, ("", ""))
        self.assertIn("the text of pages 2 cannot be read", "\n".join(document.warnings))
        self.assertFalse(pdf.is_placeholder(pdf.render_page(document, 1)))
        with self.assertLogs("awm_jax.documents.pdf", "WARNING") as logs:
            page = pdf.render_page(document, 2, max_pixels=20_000)
        self.assertIn("a.pdf: page 2 could not be rendered", logs.output[0])
        self.assertTrue(pdf.is_placeholder(page))
        self.assertLess(page.image.min(), 100, "the notice is not to be seen")
        self.assertLessEqual(page.image.size, 3 * 20_000)

    def test_a_vanished_file_is_an_error_not_a_page(self):
        path = self.path("a.pdf", self.pdf("text"))
        document = pdf.open_document(path)
        path.unlink()
        with self.assertRaisesRegex(pdf.DocumentError, "cannot be read"):
            pdf.render_page(document, 1)


class PageImagesTest(PdfTestCase):
    def images(self, *indices: int) -> pathlib.Path:
        folder = self.folder()
        for index in indices:
            Image.new("RGB", (30, 20), (index, 0, 0)).save(folder / f"77_{index}.png")
        return folder

    def test_names_count_from_zero_pages_from_one(self):
        folder = self.images(*range(12))
        Image.new("RGB", (9, 9)).save(folder / "7_99.png")
        document = pdf.open_page_images(folder, "77")
        self.assertEqual((document.id, document.page_count), ("77", 12))
        self.assertEqual(pdf.page_image_path(document, 12).name, "77_11.png")
        page = pdf.render_page(document, 12)
        self.assertEqual(page.image.shape, (20, 30, 3))
        self.assertEqual(page.image[0, 0, 0], 11)
        self.assertEqual(pdf.render_page(document, 1, max_pixels=150).image.shape, (10, 15, 3))

    def test_a_missing_image_is_told_and_replaced(self):
        document = pdf.open_page_images(self.images(0, 2), "77", page_count=4)
        self.assertEqual(document.warnings, ("no image for pages [2, 4]",))
        with self.assertLogs("awm_jax.documents.pdf", "WARNING"):
            self.assertTrue(pdf.is_placeholder(pdf.render_page(document, 2)))
        self.assertFalse(pdf.is_placeholder(pdf.render_page(document, 3)))

    def test_transparent_means_paper(self):
        folder = self.folder()
        Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(folder / "77_0.png")
        page = pdf.render_page(pdf.open_page_images(folder, "77"), 1)
        np.testing.assert_array_equal(page.image[0, 0], WHITE)

    def test_no_image_at_all_is_refused(self):
        with self.assertRaisesRegex(pdf.DocumentError, "expected page images 77_0.png"):
            pdf.open_page_images(self.images(), "77")

    def test_a_photo_is_shown_upright(self):
        folder = self.folder()
        exif = Image.Exif()
        exif[0x0112] = 6  # To be turned clockwise by a quarter.
        Image.new("RGB", (30, 20)).save(folder / "77_0.png", exif=exif)
        page = pdf.render_page(pdf.open_page_images(folder, "77"), 1)
        self.assertEqual(page.image.shape, (30, 20, 3))


class ImageFolderTest(PdfTestCase):
    def images(self, *names: str) -> pathlib.Path:
        folder = self.folder() / "report"
        folder.mkdir()
        for index, name in enumerate(names):
            Image.new("RGB", (30, 20), (index, 0, 0)).save(folder / name)
        return folder

    @parameterized.parameters(
        (("p10.png", "p2.png", "p1.png"), {1: 2, 2: 1, 10: 0}),
        (("0.jpg", "1.JPG", "2.webp"), {1: 0, 2: 1, 3: 2}),
        (("2024 page-08-of-9.png", "2024 page-09-of-9.png"), {8: 0, 9: 1}),
        (("cover7.png",), {1: 0}),
        (("b.png",), {1: 0}),
    )
    def test_pages_are_found_by_the_number_in_which_names_differ(self, names, expected):
        folder = self.images(*names)
        (folder / ".DS_Store").write_bytes(b"")
        document = pdf.open_document(folder)
        self.assertEqual((document.id, document.page_count), ("report", max(expected)))
        missing = sorted(set(range(1, max(expected) + 1)) - set(expected))
        said = (f"no image for pages {missing}",) if missing else ()
        self.assertEqual(document.warnings, said)
        for number, index in expected.items():
            page = pdf.render_page(document, number)
            self.assertEqual(page.image.shape, (20, 30, 3))
            self.assertLess(abs(int(page.image[0, 0, 0]) - index), 2)
        for number in missing[:1]:
            with self.assertLogs("awm_jax.documents.pdf", "WARNING") as logs:
                self.assertTrue(pdf.is_placeholder(pdf.render_page(document, number)))
            self.assertIn("there is no image of it", logs.output[0])

    @parameterized.parameters(
        ((), "expected page images, found none"),
        (("p1.png", "notes1.png"), "differ in the page number alone, found notes1.png, p1.png"),
        (("a1_1.png", "a2_2.png"), "one number that tells the pages apart"),
        (("p1.png", "p01.png"), "one number that tells the pages apart"),
        (("p1.png", "p1.jpg"), "one number that tells the pages apart"),
        (("20240131.png", "20240201.png"), "page numbers up to 10000, found 20240201"),
    )
    def test_refuses_names_that_do_not_tell(self, names, message):
        with self.assertRaisesRegex(pdf.DocumentError, message):
            pdf.open_document(self.images(*names))

    def test_refuses_other_files(self):
        folder = self.images("p1.png")
        (folder / "a.pdf").write_bytes(b"")
        (folder / "b.png").mkdir()
        with self.assertRaisesRegex(pdf.DocumentError, "page images alone .*, found a.pdf, b.png"):
            pdf.open_document(folder)

    def test_among_other_documents(self):
        folder = self.images("p1.png", "p2.png")
        documents, failures = pdf.open_documents(folder.parent, ["report"])
        self.assertEmpty(failures)
        self.assertEqual(documents["report"].page_count, 2)
        digest = documents["report"].digest
        Image.new("RGB", (30, 20), "red").save(folder / "p2.png")
        self.assertNotEqual(pdf.open_document(folder).digest, digest)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        with self.assertRaisesRegex(pdf.DocumentError, "No such file"):
            pdf.render_page(documents["report"], 1)


class MakeRenderTest(PdfTestCase):
    def documents(self, count: int) -> dict:
        path = self.path("a.pdf", self.pdf(*[f"page {n}" for n in range(count)]))
        return {"a.pdf": pdf.open_document(path)}

    def test_many_threads_get_each_page_once_and_whole(self):
        documents = self.documents(5)
        expected = [pdf.render_page(documents["a.pdf"], n).digest for n in range(1, 6)]
        render = pdf.make_render(documents)
        with (
            mock.patch.object(pdf, "_render_pdf", wraps=pdf._render_pdf) as drawn,
            concurrent.futures.ThreadPoolExecutor(8) as pool,
        ):
            pages = list(pool.map(lambda n: render("a.pdf", n % 5 + 1), range(100)))
        self.assertEqual([page.digest for page in pages], expected * 20)
        self.assertEqual(drawn.call_count, 5)

    def test_the_cache_keeps_what_was_used_last_within_its_bytes(self):
        documents = self.documents(3)
        size = pdf.render_page(documents["a.pdf"], 1).image.nbytes
        render = pdf.make_render(documents, cache_bytes=2 * size)
        one, two = render("a.pdf", 1), render("a.pdf", 2)
        self.assertIs(render("a.pdf", 1), one)
        render("a.pdf", 3)
        self.assertIs(render("a.pdf", 1), one)
        self.assertIsNot(render("a.pdf", 2), two)

    def test_an_unknown_document_is_named(self):
        with self.assertRaisesRegex(ValueError, "no document 'b.pdf' among the 1 opened"):
            pdf.make_render(self.documents(1))("b.pdf", 1)


@absltest.skipUnless(RESEARCH_DATA, "AWM_RESEARCH_DATA is not set")
class BenchmarkFilesTest(absltest.TestCase):
    def test_every_mmlongbench_document_opens_and_renders_first_and_last_page(self):
        folder = pathlib.Path(RESEARCH_DATA) / "benchmarks/mmlongbench_dev/documents"
        documents, failures = pdf.open_documents(folder, sorted(p.name for p in folder.iterdir()))
        self.assertEmpty(failures)
        self.assertLen(documents, 12)
        self.assertEqual(sum(d.page_count for d in documents.values()), 278)
        for document in documents.values():
            for number in (1, document.page_count):
                page = pdf.render_page(document, number)
                self.assertFalse(pdf.is_placeholder(page))
                self.assertGreater(page.image.std(), 0, f"{document.id} page {number} is blank")

    def test_longdocurl_page_images_are_one_document(self):
        folder = pathlib.Path(RESEARCH_DATA) / "benchmarks/longdocurl_sample/pages"
        document = pdf.open_page_images(folder, "4127644")
        self.assertEqual((document.page_count, document.warnings), (98, ()))
        self.assertEqual(pdf.page_image_path(document, 47).name, "4127644_46.png")
        self.assertFalse(pdf.is_placeholder(pdf.render_page(document, 98)))


if __name__ == "__main__":
    absltest.main()
