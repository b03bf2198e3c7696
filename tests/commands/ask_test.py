"""A question about a PDF, from the command line to the page, with a server that plays all parts."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
from unittest import mock

import pymupdf
import rich.console
from absl.testing import absltest
from PIL import Image

from awm_jax.commands import ask, display
from awm_jax.datasets import tiny_world
from awm_jax.documents import index, pdf
from awm_jax.judging import reader
from tests.server_double import ServerDouble

ROOT = pathlib.Path(__file__).parents[2]


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


STEPS = (
    call("search_pages", query="width of the Tana"),
    call("answer", answer="4 m"),
    call("update_memory", source_page=2, finding="The Tana is 4 m wide. [red]x[/red] <b>"),
    call("answer", answer="4 m"),
)


class AskTestCase(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.pdf = self.folder / "rivers.pdf"
        with pymupdf.open() as document:
            for text in ("Contents", "The Tana has a width of 4 m.", "Index", ""):
                document.new_page(width=200, height=200).insert_text((20, 50), text)
            document.save(self.pdf)
        self.double = self.enterContext(ServerDouble(self.answer).running())
        self.steps = list(STEPS)

    def answer(self, body):
        if body["messages"][0]["content"] == reader.READER_SYSTEM:
            return "about 4 m"
        return self.steps.pop(0)

    def ask(self, *flags, policy=None, pdf=None):
        out, said, errors = self.folder / "page.html", io.StringIO(), io.StringIO()
        console = rich.console.Console(file=said, width=120, highlight=False, soft_wrap=True)
        with mock.patch.object(display, "console", console), contextlib.redirect_stderr(errors):
            status = ask.main(
                [
                    str(pdf or self.pdf),
                    "How wide is the Tana?",
                    "--policy",
                    policy or self.double.url,
                    "--out",
                    str(out),
                    *flags,
                ]
            )
        page = out.read_text(encoding="utf-8") if out.exists() else ""
        return status, said.getvalue() + errors.getvalue(), page


class AskTest(AskTestCase):
    def test_pages_notes_answer_and_page(self):
        status, said, page = self.ask()
        self.assertEqual(status, 0)
        for expected in (
            "rivers.pdf, 4 pages; 1 without text",
            f"policy       double at {self.double.url}",
            "step 1       search: width of the Tana",
            "looks at page 2, 1, 3",
            "step 2       refused: answer was not done: first note a finding.",
            # What models say is no markup.
            "step 3       notes [page 2] The Tana is 4 m wide. [red]x[/red] <b>",
            "answer       4 m",
            "from notes   about 4 m",
        ):
            self.assertIn(expected, said)
        for expected in ("Answer from the notes alone", "about 4 m", "&lt;b&gt;", "How it was"):
            self.assertIn(expected, page)
        for foreign in ("Gold", "P_mmc", "no judgement", "0.00"):
            self.assertNotIn(foreign, page.partition("</style>")[2].partition("<dialog")[0])
        self.assertEqual(page.count('<details class="rollout is-00"'), 1)
        bodies = self.double.bodies()
        self.assertLen(bodies, 5)
        notes = bodies[-1]["messages"][1]["content"]
        self.assertEqual(
            notes,
            "Question: How wide is the Tana?\n"
            "Notes:\n[page 2] The Tana is 4 m wide. [red]x[/red] <b>",
        )
        self.assertIn("chat_template_kwargs", bodies[-1])
        self.assertNotIn("chat_template_kwargs", bodies[0])

    def test_a_hosted_service_with_a_key(self):
        with mock.patch.dict(os.environ, {"DOUBLE_KEY": "sk-0123"}):
            status, said, page = self.ask(
                "--hosted",
                "--key=DOUBLE_KEY",
                "--model=double",
                '--extra={"max_tokens": null, "max_completion_tokens": 99}',
            )
        self.assertEqual(status, 0)
        self.assertEqual(
            {request.headers["authorization"] for request in self.double.requests},
            {"Bearer sk-0123"},
        )
        for body in self.double.bodies():
            self.assertNoCommonElements(body, ["chat_template_kwargs", "max_tokens"])
            self.assertEqual(body["max_completion_tokens"], 99)
        self.assertNotIn("sk-0123", said + page)

    def test_page_images_and_an_index_that_is_kept(self):
        scan, kept = self.folder / "scan", self.folder / "index"
        scan.mkdir()
        for number in (1, 2):
            Image.new("RGB", (40, 40)).save(scan / f"{number}.png")
        status, said, _ = self.ask("--index", str(kept), pdf=scan)
        self.assertEqual(status, 0)
        self.assertIn("scan, 2 pages; 2 without text", said)
        self.assertIn("looks at page 1, 2", said)
        document = pdf.open_document(scan)
        with contextlib.closing(index.open_client(kept)) as client:
            self.assertEqual(index.build_index(client, [document]).already_there, 1)

    def test_no_answer_is_said(self):
        self.steps = [STEPS[0]] * 3
        status, said, page = self.ask("--max_steps=2")
        self.assertEqual(status, 1)
        self.assertIn("no answer    step_budget: no answer in 2 steps", said)
        self.assertIn("no answer in 2 steps", page)

    def test_a_server_that_fails_is_said(self):
        # The list of models, twice; one step; then policy and reader.
        self.double.script.extend(["", "", "", "400", "400"])
        status, said, _ = self.ask()
        self.assertEqual(status, 1)
        self.assertEqual(said.count("step "), 1)
        self.assertRegex(said, "no answer    tool_error: no message of the policy.*HTTP 400")
        self.assertRegex(said, "from notes   the reader failed: .*HTTP 400")

    def test_what_cannot_be_begun_is_one_line(self):
        for flags, expected in (
            ({"pdf": self.folder / "none.pdf"}, "ask: .*none.pdf: cannot be read"),
            ({"policy": "nowhere"}, "ask: nowhere: expected a URL, http://..., or the folder"),
            ({"policy": "http://user:secret@host/v1"}, "ask: a server at host: expected a URL"),
        ):
            status, said, page = self.ask(**flags)
            self.assertEqual((status, page), (2, ""))
            self.assertRegex(said, expected)
            self.assertNotIn("secret", said)
            self.assertEqual(said.count("\n"), 1)
        self.assertIn("extra '[1]': expected a JSON object", self.ask("--extra=[1]")[1])
        self.double.model = "a"
        with mock.patch.object(
            ServerDouble, "reply", lambda *_: {"data": [{"id": "a"}, {"id": "b"}]}
        ):
            self.assertIn("serves ['a', 'b']: name one of them", self.ask()[1])


class LocalPolicyTest(AskTestCase):
    def test_the_tiny_policy_on_a_document_of_its_world(self):
        questions = tiny_world.make_world(self.folder, "train", seed=0, documents=1)
        tiny = ROOT / "experiments" / "tiny_world"
        status, said, page = self.ask(
            "--reader",
            str(tiny / "reader"),
            "--dpi=72",
            "--max_pixels=12288",
            "--max_tokens=64",
            "--max_steps=3",
            "--dtype=float32",
            policy=str(tiny / "policy"),
            pdf=self.folder / "documents" / questions[0].document,
        )
        self.assertIn(status, (0, 1))
        self.assertIn("step 1 ", said)
        self.assertIn("from notes ", said)
        self.assertIn("How it was answered", page)


if __name__ == "__main__":
    absltest.main()
