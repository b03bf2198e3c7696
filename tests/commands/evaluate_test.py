"""A benchmark whose policy and reader are served: table, records, and a server that was away."""

import json
import pathlib
import re
import tempfile

import numpy as np
import pymupdf
from absl.testing import absltest
from PIL import Image

from awm_jax import types
from awm_jax.agent import records
from awm_jax.commands import evaluate
from awm_jax.judging import reader
from configs import eval_longdocurl, eval_mmlongbench
from tests.server_double import ServerDouble


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(body):
    """Searches, notes that the width is 4 m, and answers so; the reader goes by the notes."""
    system, *rest = body["messages"]
    if "Analysis:" in system["content"]:
        return "Extracted answer: 4\nAnswer format: Integer"
    text = json.dumps(rest)
    if system["content"] == reader.READER_SYSTEM:
        return "The answer is 4." if "4 m wide" in text else "Not answerable."
    steps = len(re.findall("Noted|Page ", text))
    if "Noted" in text:
        return call("answer", answer="Answer: 4")
    if steps:
        page = int(re.search(r"Page (\d+):", text)[1])
        return call("update_memory", source_page=page, finding="It is 4 m wide.")
    return call("search_pages", query="width")


class EvaluateTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.run_dir = self.root / "run"
        self.double = self.enterContext(ServerDouble(answer).running())
        (self.root / "documents").mkdir()

    def write_pdf(self, name):
        with pymupdf.open() as document:
            for text in ("Contents", "The width is 4 m."):
                document.new_page(width=200, height=200).insert_text((20, 50), text)
            document.save(self.root / "documents" / name)

    def run_config(self, config, **changes):
        config.run_dir, config.data.root = str(self.run_dir), str(self.root)
        config.extractor = changes.pop("extractor", "rule")
        for section in (config.policy, config.reader):
            section.checkpoint = self.double.url
        for section in (config.policy_server, config.reader_server):
            section.timeout_s, section.retries, section.concurrency = 20.0, 0, 2
        config.policy_server.update(changes)
        config.lock()
        evaluate.run(config)
        return json.loads((self.run_dir / "summary.json").read_text())

    def records(self):
        return records.read_records(self.run_dir / "trajectories.jsonl")

    def write_mmlongbench(self):
        self.write_pdf("tana.pdf")
        sample = {
            "doc_id": "tana.pdf",
            "doc_type": "Guidebook",
            "answer": "4",
            "evidence_pages": "[2]",
            "evidence_sources": "['Pure-text (Plain-text)']",
            "answer_format": "Int",
        }
        samples = [sample | {"question": f"How wide, {number}?"} for number in range(3)]
        (self.root / "samples.json").write_text(json.dumps(samples))

    def test_mmlongbench_with_servers(self):
        self.write_mmlongbench()
        summary = self.run_config(eval_mmlongbench.get_config())
        self.assertEqual(summary["statuses"], {types.ANSWERED: 3})
        self.assertEqual(summary["rows"][0]["final_acc"], 1.0)
        self.assertEqual(summary["rows"][0]["mem_acc"], 1.0)
        self.assertRegex(summary["caption"]["scorer"], "mmlongbench rules, official; extractor")
        self.assertIn(f"double at {self.double.url}", json.dumps(summary["caption"]))
        self.assertEqual(
            summary["caption"]["details"]["scored differently by the strict rules"],
            "0 of 6 (0 between right and wrong)",
        )
        # Three messages a rollout, at 11 and 3 tokens each.
        [costs] = {(c.costs.prompt_tokens, c.costs.completion_tokens) for c in self.records()}
        self.assertEqual(costs, (33, 9))

    def test_a_served_extractor(self):
        self.write_mmlongbench()
        summary = self.run_config(eval_mmlongbench.get_config(), extractor=self.double.url)
        self.assertEqual(summary["rows"][0]["final_acc"], 1.0)
        self.assertIn(f"extractor: double at {self.double.url}, ", summary["caption"]["scorer"])
        page = (self.run_dir / "report.html").read_text()
        self.assertIn("extractor: double at", page)
        # Three answers and three readings; counting what strict scores differently asks no more.
        asked = [b for b in self.double.bodies() if "Analysis:" in json.dumps(b["messages"])]
        self.assertLen(asked, 6)

    def test_pages_are_found_by_a_served_embedder_and_embedded_once(self):
        self.write_mmlongbench()
        self.double.embed = lambda text: [1.0, 0.0] if "width is" in text else [0.6, 0.8]
        config = eval_mmlongbench.get_config()
        config.embedder.kind, config.embedder.url = "text", self.double.url
        config.embedder.size, config.rollout.top_k = 2, 1
        config.embedder.query_prefix = "The width is: "
        summary = self.run_config(config, model="double")
        # The only page that is shown is the one whose vector is the query's.
        notes = [record.trajectory.memory.findings for record in self.records()]
        self.assertEqual({f.source_page for found in notes for f in found}, {2})
        self.assertEqual(summary["rows"][0]["mem_acc"], 1.0)
        self.assertStartsWith(summary["caption"]["details"]["embedder"], "double, text, 2 numbers")
        asked = [body["input"][0] for body in self.double.bodies("/v1/embeddings")]
        self.assertCountEqual(
            [text for text in asked if not text.startswith("The width is: ")],
            ["Contents\n", "The width is 4 m.\n"],
        )
        self.assertLen(list((self.run_dir / "vectors").rglob("*.npy")), 2)

    def test_what_a_server_failed_at_is_not_wrong_and_is_done_again(self):
        self.write_mmlongbench()
        self.double.script.extend(["", "400"])
        summary = self.run_config(eval_mmlongbench.get_config(), model="double")
        self.assertEqual(summary["statuses"], {types.TOOL_ERROR: 1, types.ANSWERED: 2})
        self.assertEqual((summary["rows"][0]["n"], summary["rows"][0]["final_acc"]), (2, 1.0))
        asked = len(self.double.bodies())
        summary = self.run_config(eval_mmlongbench.get_config(), model="double")
        self.assertEqual(summary["rows"][0]["n"], 3)
        # One rollout of three messages and one reading.
        self.assertEqual(len(self.double.bodies()), asked + 4)
        self.assertLen(self.records(), 3)

    def test_longdocurl_from_page_images_and_from_a_pdf(self):
        (self.root / "pages").mkdir()
        for number in range(2):
            image = Image.fromarray(np.full((40, 30, 3), 200, np.uint8))
            image.save(self.root / "pages" / f"1234567_{number}.png")
        self.write_pdf("7654321.pdf")
        lines = [
            {
                "question_id": f"q{document}",
                "doc_no": document,
                "total_pages": 2,
                "start_end_idx": [1, 2],
                "question": "How wide?",
                "answer": 4,
                "evidence_pages": [2],
                "evidence_sources": ["Text"],
                "answer_format": "Integer",
            }
            for document in ("1234567", "7654321")
        ]
        path = self.root / "LongDocURL.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        summary = self.run_config(eval_longdocurl.get_config())
        self.assertEqual(summary["statuses"], {types.ANSWERED: 2})
        self.assertEqual(summary["rows"][0]["final_acc"], 1.0)
        self.assertRegex(summary["caption"]["scorer"], "^longdocurl rules, official")
        pages = [record.trajectory.memory.findings[0].source_page for record in self.records()]
        # Without a text layer nothing is found and the first page comes first.
        self.assertEqual(pages, [1, 2])


if __name__ == "__main__":
    absltest.main()
