"""The tiny world: its files, its questions and its scripted teacher."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.datasets import tiny_world
from awm_jax.documents import embed, pdf


def _files(root: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


class WorldTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def test_the_pdf_says_what_the_questions_ask(self):
        questions = tiny_world.make_world(self.root, "dev", seed=3, documents=8)
        self.assertLen(questions, 8 * tiny_world.QUESTIONS_PER_DOCUMENT)
        self.assertLen({question.id for question in questions}, len(questions))
        self.assertEqual({question.answer_format for question in questions}, {"Int", "List"})
        for question in questions:
            document = pdf.open_document(self.root / "documents" / question.document)
            attribute, rivers = tiny_world.parse_question(question.text)
            values = tiny_world.gold_values(question)
            for river, value, page in zip(rivers, values, question.evidence_pages, strict=True):
                words = document.page_texts[page - 1].split()
                self.assertEqual(words[0], river)
                self.assertEqual(words[words.index(attribute) + 1], value)

    def test_a_page_is_rendered_at_its_own_size_with_a_line_a_row(self):
        tiny_world.make_world(self.root, "dev", seed=0, documents=1)
        document = pdf.open_document(self.root / "documents" / "dev-0000.pdf")
        self.assertEqual(document.page_count, 12)
        self.assertEqual(document.warnings, ())
        page = next(n for n, text in enumerate(document.page_texts, 1) if len(text.split()) == 7)
        image = pdf.render_page(document, page, dpi=tiny_world.DPI).image
        self.assertEqual(image.shape, (tiny_world.PAGE_HEIGHT, tiny_world.PAGE_WIDTH, 3))
        dark_rows = (image < 128).any(axis=(1, 2)).reshape(-1, tiny_world.LINE_HEIGHT)
        self.assertTrue(dark_rows.any(axis=1).all())
        # Between two lines of text there is paper, at the border of their rows of tokens.
        self.assertFalse(dark_rows[:, -1].any())

    def test_search_for_a_river_finds_its_page_first(self):
        questions = tiny_world.make_world(self.root, "dev", seed=1, documents=4)
        for question in questions:
            document = pdf.open_document(self.root / "documents" / question.document)
            pages = embed.embed_pages(document.page_texts)
            attribute, rivers = tiny_world.parse_question(question.text)
            for river, page in zip(rivers, question.evidence_pages, strict=True):
                query = tiny_world.QUERY.format(attribute=attribute, river=river)
                terms = dict(zip(*embed.embed_query(query), strict=True))
                scores = [
                    sum(terms.get(i, 0) * value for i, value in zip(*vector, strict=True))
                    for vector in pages
                ]
                self.assertEqual(int(np.argmax(scores)) + 1, page)

    def test_made_again_it_is_the_same_and_left_alone(self):
        first = tiny_world.make_world(self.root, "dev", seed=0, documents=2)
        files = _files(self.root)
        stamps = {path: path.stat().st_mtime_ns for path in self.root.rglob("*.pdf")}
        self.assertEqual(tiny_world.make_world(self.root, "dev", seed=0, documents=2), first)
        self.assertEqual({path: path.stat().st_mtime_ns for path in stamps}, stamps)
        with tempfile.TemporaryDirectory() as other:
            tiny_world.make_world(other, "dev", seed=0, documents=2)
            self.assertEqual(_files(pathlib.Path(other)), files)

    def test_a_lost_file_or_another_plan_makes_it_anew(self):
        tiny_world.make_world(self.root, "dev", seed=0, documents=2)
        files = _files(self.root)
        (self.root / "documents" / "dev-0001.pdf").unlink()
        tiny_world.make_world(self.root, "dev", seed=0, documents=2)
        self.assertEqual(_files(self.root), files)
        tiny_world.make_world(self.root, "dev", seed=1, documents=1)
        self.assertLen(_files(self.root), 3)

    def test_documents_of_splits_differ(self):
        pages = {
            split: {tiny_world.document_pages(split, seed=0, index=index) for index in range(20)}
            for split in tiny_world.SPLITS
        }
        self.assertLen(set.union(*pages.values()), 20 * len(tiny_world.SPLITS))

    def test_changed_questions_are_refused(self):
        tiny_world.make_world(self.root, "dev", seed=0, documents=1)
        with (self.root / "questions.json").open("a") as file:
            file.write(" ")
        with self.assertRaisesRegex(ValueError, "expected sha256 .*, found .*make the world again"):
            tiny_world.load(self.root)

    def test_no_world_and_no_such_split_are_refused(self):
        with self.assertRaisesRegex(ValueError, "no tiny world here"):
            tiny_world.load(self.root)
        with self.assertRaisesRegex(ValueError, "expected a split of .*'dev'.*found 'valid'"):
            tiny_world.make_world(self.root, "valid", seed=0, documents=1)


class TeacherTest(parameterized.TestCase):
    def _question(self, hops: int):
        for index in range(20):
            for question in tiny_world.document_questions("dev", seed=0, index=index):
                if len(question.evidence_pages) == hops:
                    return question
        raise AssertionError("no such question")

    @parameterized.parameters(1, 2)
    def test_specific_notes_hold_the_answer_and_generic_ones_do_not(self, hops):
        question = self._question(hops)
        values = tiny_world.gold_values(question)
        rng = np.random.default_rng(0)
        for generic in (0.0, 1.0):
            turns = tiny_world.teacher_turns(
                question, rng, generic_last=generic, generic_earlier=generic
            )
            self.assertLen(turns, hops + 1)
            self.assertEqual([call.name for call in turns[0]], ["search_pages"])
            notes = [turn[0].arguments for turn in turns[1:]]
            self.assertEqual([n["source_page"] for n in notes], list(question.evidence_pages))
            for note, value in zip(notes, values, strict=True):
                self.assertEqual(note["finding"].endswith(f" is {value}"), generic == 0)
            self.assertEqual(turns[-1][-1].arguments["answer"], tiny_world.answer_text(values))

    def test_a_sentence_that_is_no_question_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not a question of the tiny world: 'How long"):
            tiny_world.parse_question("How long is the Avon?")


if __name__ == "__main__":
    absltest.main()
