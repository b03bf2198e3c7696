"""Rollouts go to disk and come back; a killed run loses the torn line alone."""

import dataclasses
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.agent import records
from awm_jax.agent.records import Record
from awm_jax.types import (
    Finding,
    Memory,
    Page,
    Question,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

QUESTION = Question(
    "q0", "rivers.pdf", "How wide\u2028is it?", ["4", 2.5], "List", (3,), ("Table",)
)


def record(rollout=0):
    page = Page("rivers.pdf", 3, np.ones((2, 2, 3), np.uint8), "d3")
    memory = Memory((Finding(3, "width is 4"),))
    sample = Sample(
        np.arange(5, dtype=np.int32),
        np.array([7, 8], np.int32),
        np.array([-0.1, -1e-7], np.float32),
        "say \ud800 é",
        "stop",
        (page,),
        policy_version=6,
    )
    turn = Turn(
        1, sample, (ToolCall("search_pages", {"query": "a"}),), ("Page 3:", page), ("no",), memory
    )
    trajectory = Trajectory(QUESTION, rollout, (turn, turn), "4", memory, "answered", "")
    return Record(trajectory, (1, 2, rollout), Verdict(1.0, 0.5, "4", "rules"))


def comparable(item):
    """Nested plain values; arrays as lists with their type, pages without pixels."""
    if isinstance(item, Page):
        return item.document, item.number, item.digest
    if isinstance(item, np.ndarray):
        return str(item.dtype), item.tolist()
    if dataclasses.is_dataclass(item):
        return {f.name: comparable(getattr(item, f.name)) for f in dataclasses.fields(item)}
    return [comparable(i) for i in item] if isinstance(item, tuple) else item


class RecordsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "run" / "trajectories.jsonl"

    def rollouts(self):
        return [each.trajectory.rollout for each in records.read_records(self.path)]

    def test_all_but_pixels_comes_back_with_tokens(self):
        records.append_records(self.path, [record()], with_tokens=True)
        [back] = records.read_records(self.path)
        self.assertEqual(comparable(back), comparable(record()))
        self.assertEqual(back.trajectory.turns[0].observation[1].image.size, 0)

    def test_without_tokens_the_text_comes_back(self):
        records.append_records(self.path, [dataclasses.replace(record(), verdict=None)])
        [back] = records.read_records(self.path)
        sample = back.trajectory.turns[1].sample
        self.assertEqual((sample.text, sample.finish_reason), ("say \ud800 é", "stop"))
        self.assertEqual((len(sample.token_ids), sample.pages), (0, ()))
        self.assertIsNone(back.verdict)
        self.assertEqual(back.trajectory.question, QUESTION)
        self.assertEqual(json.loads(self.path.read_text())["turns"][0]["token_count"], 2)

    def test_appending_keeps_order_and_a_missing_file_is_empty(self):
        self.assertEmpty(records.read_records(self.path))
        records.append_records(self.path, [record(0), record(1)])
        records.append_records(self.path, [])
        records.append_records(self.path, [record(2)])
        self.assertEqual(self.rollouts(), [0, 1, 2])

    def test_a_line_torn_at_any_place_is_left_out_and_cut_off_by_the_next(self):
        records.append_records(self.path, [record(0), record(1)])
        whole = self.path.read_bytes()
        first = whole.index(b"\n") + 1
        for length in (first + 1, first + 200, len(whole) - 2):
            self.path.write_bytes(whole[:length])
            with self.assertLogs(records.__name__, "WARNING"):
                self.assertEqual(self.rollouts(), [0])
            with self.assertLogs(records.__name__, "WARNING"):
                records.append_records(self.path, [record(1)])
            self.assertEqual(self.path.read_bytes(), whole)

    def test_a_line_that_misses_only_its_end_is_kept(self):
        records.append_records(self.path, [record(0)])
        self.path.write_bytes(self.path.read_bytes()[:-1])
        self.assertEqual(self.rollouts(), [0])
        records.append_records(self.path, [record(1)])
        self.assertEqual(self.rollouts(), [0, 1])

    def test_a_torn_line_longer_than_what_is_read_at_once(self):
        records.append_records(self.path, [record(0)])
        with open(self.path, "ab") as file:
            file.write(b'{"a": "' + b"x" * 200_000)
        with self.assertLogs(records.__name__, "WARNING"):
            records.append_records(self.path, [record(1)])
        self.assertEqual(self.rollouts(), [0, 1])

    @parameterized.parameters(
        (b"{\n", "line 1: Expecting"),
        (b'{"schema": 99}\n', "line 1: a record of schema 99, expected 1"),
        (b'{"schema": 1}\n', "line 1: no record of a rollout: KeyError: 'question'"),
        (b"[]\n", "line 1: a list, expected an object"),
    )
    def test_other_damage_is_named(self, damage, expected):
        self.path.parent.mkdir()
        self.path.write_bytes(damage)
        with self.assertRaisesRegex(ValueError, expected):
            records.read_records(self.path)


if __name__ == "__main__":
    absltest.main()
