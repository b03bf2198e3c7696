"""Rows of Doc-750K, as its loader reads them, to questions and documents."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from awm_jax.datasets import doc750k
from awm_jax.documents import pdf


def row(*turns, images=("a/1.jpg", "a/2.jpg"), **changes):
    senders = ("human", "gpt")
    said = [{"from": senders[place % 2], "value": text} for place, text in enumerate(turns)]
    return {"conversations": said, "images": list(images), **changes}


PAGES = "Image-1: <image>\nImage-2: <image>\n"


class ReadRowTest(parameterized.TestCase):
    def test_each_pair_of_turns_is_a_question_without_image_marks(self):
        found = doc750k.read_row(row(PAGES + "What is\nshown? ", "A cat.", "Where?", "At home."))
        self.assertEqual(found.pairs, (("What is\nshown?", "A cat."), ("Where?", "At home.")))
        self.assertEqual(found.images, ("a/1.jpg", "a/2.jpg"))

    def test_one_image_may_stand_alone(self):
        record = row("<image>\nWhat?", "x")
        record["image"] = record.pop("images")[0]
        self.assertEqual(doc750k.read_row(record).images, ("a/1.jpg",))
        self.assertEqual(doc750k.read_row(record).pairs, (("What?", "x"),))

    def test_equal_images_are_one_document(self):
        first, second = (doc750k.read_row(row(PAGES + text, "x")) for text in ("Who?", "When?"))
        self.assertEqual(first.document, second.document)
        other = doc750k.read_row(row(PAGES + "Who?", "x", images=("a/2.jpg", "a/1.jpg")))
        self.assertNotEqual(first.document, other.document)

    @parameterized.named_parameters(
        ("list", [], "expected an object"),
        ("no_images", row("Who?", "x", images=()), "expected images"),
        ("marks", row("<image> Who?", "x"), "1 <image> marks and 2 images"),
        ("order", row(PAGES + "Who?"), "in turn, found .*human"),
        ("outside", row(PAGES + "Who?", "x", images=("../a", "b")), "inside of the set"),
        ("absolute", row(PAGES + "Who?", "x", images=("/a", "b")), "inside of the set"),
        ("empty", row(PAGES, "x"), "no empty question"),
        ("number", row(PAGES + "Who?", 3), "a text in each turn"),
    )
    def test_what_cannot_be_read(self, record, reason):
        with self.assertRaisesRegex(ValueError, reason):
            doc750k.read_row(record)


class LoadTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "a").mkdir()
        for number in (1, 2):
            pixels = np.full((8, 8, 3), 100 * number, np.uint8)
            Image.fromarray(pixels).save(self.root / "a" / f"{number}.jpg")

    def write(self, name, *lines):
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (self.root / name).write_text("\n".join(text) + "\n")

    def test_questions_documents_and_report(self):
        self.write(
            "qa_rendered.jsonl",
            row(PAGES + "Who?", "x", "When?", "y"),
            "{broken",
            row("<image><image>What?", "z", images=("a/1.jpg", "b/9.jpg")),
        )
        self.write("text_only.jsonl", row(PAGES + "Who?", "x"))
        questions, documents, report = doc750k.load(self.root)
        self.assertEqual(
            [q.id for q in questions],
            ["qa_rendered:1:0", "qa_rendered:1:1", "qa_rendered:3:0"],
        )
        self.assertEqual([q.answer for q in questions], ["x", "y", "z"])
        self.assertLen(documents, 2)
        self.assertEqual(report.records, 3)
        self.assertEqual(report.missing_documents, (questions[2].document,))
        self.assertLen(report.problems, 2)

    def test_no_file_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no file matches"):
            doc750k.load(self.root)

    def test_linked_pages_open_as_a_document(self):
        self.write("qa_rendered.jsonl", row(PAGES + "Who?", "x"))
        questions, documents, _ = doc750k.load(self.root)
        id = questions[0].document
        for _ in range(2):
            doc750k.link_pages(self.root, self.root / "documents", documents, [id])
        opened, failures = pdf.open_documents(self.root / "documents", [id])
        self.assertEmpty(failures)
        page = pdf.render_page(opened[id], 2)
        self.assertEqual(page.image.shape, (8, 8, 3))
        self.assertAlmostEqual(float(page.image.mean()), 200, delta=2)


if __name__ == "__main__":
    absltest.main()
