"""Rollouts go to disk and come back; a killed run loses the torn line alone."""

import dataclasses
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax import types
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
        expected = dataclasses.replace(record(), costs=records.Costs(10, 4))
        self.assertEqual(comparable(back), comparable(expected))
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

    def test_records_that_are_not_wanted_are_taken_out(self):
        records.append_records(self.path, [record(0), record(1), record(2)])
        whole = self.path.read_bytes()
        with open(self.path, "ab") as file:
            file.write(b'{"torn')
        records.keep_records(self.path, lambda each: True)
        self.assertTrue(self.path.read_bytes().startswith(whole))
        records.keep_records(self.path, lambda each: each.trajectory.rollout != 1)
        first, _, third, _ = whole.split(b"\n")
        self.assertEqual(self.path.read_bytes(), first + b"\n" + third + b"\n")
        records.keep_records(self.path.with_name("none.jsonl"), lambda each: False)

    def test_costs_are_those_given_or_those_of_the_tokens(self):
        given = records.Costs(100, 20, 1.5)
        records.append_records(self.path, [dataclasses.replace(record(), costs=given), record()])
        first, second = records.read_records(self.path)
        self.assertEqual(first.costs, given)
        # Two turns of five tokens read and two written.
        self.assertEqual(second.costs, records.Costs(10, 4))
        line = records.to_json(record())
        del line["costs"]
        self.assertIsNone(records.from_json(line).costs)


def mismatches(value, schema, root, at="$"):
    """Where `value` breaks a schema made of the keywords that ours uses; others raise."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    found, types = [], {"object": dict, "array": list, "string": str, "null": type(None)}
    for keyword, expected in schema.items():
        match keyword:
            case "type" if expected in ("integer", "number"):
                kinds = int if expected == "integer" else (int, float)
                ok = isinstance(value, kinds) and not isinstance(value, bool)
            case "type":
                ok = isinstance(value, types[expected])
            case "const":
                ok = value == expected
            case "enum":
                ok = value in expected
            case "minimum":
                ok = not isinstance(value, int | float) or value >= expected
            case "maximum":
                ok = not isinstance(value, int | float) or value <= expected
            case "required":
                ok = not isinstance(value, dict) or all(name in value for name in expected)
            case "additionalProperties":
                ok = not isinstance(value, dict) or all(n in schema["properties"] for n in value)
            case "oneOf":
                ok = sum(not mismatches(value, each, root, at) for each in expected) == 1
            case "properties" | "items":
                pairs = []
                if keyword == "properties" and isinstance(value, dict):
                    pairs = [(value[n], expected[n], n) for n in expected if n in value]
                elif keyword == "items" and isinstance(value, list):
                    pairs = [(item, expected, place) for place, item in enumerate(value)]
                for item, of_item, name in pairs:
                    found += mismatches(item, of_item, root, f"{at}.{name}")
                ok = True
            case "description" | "title" | "$schema" | "$id" | "$defs":
                ok = True
            case other:
                raise ValueError(f"{at}: keyword {other!r} of the schema is not checked")
        if not ok:
            found.append(f"{at}: {keyword}")
    return found


class SchemaTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        path = pathlib.Path(records.__file__).with_name("trajectory.schema.json")
        self.schema = json.loads(path.read_text(encoding="utf-8"))

    def found(self, line):
        return mismatches(json.loads(json.dumps(line)), self.schema, self.schema)

    @parameterized.parameters(True, False)
    def test_what_is_written_validates(self, with_tokens):
        plain = dataclasses.replace(record(), verdict=None)
        empty = dataclasses.replace(record().trajectory, turns=(), memory=Memory())
        timed = dataclasses.replace(record(), costs=records.Costs(1, 2, 0.5))
        for each in (record(), plain, Record(empty), timed):
            line = records.to_json(each, with_tokens=with_tokens)
            self.assertEmpty(self.found(line))
            # All that is written is described, and what is not demanded can be left out.
            self.assertEqual(set(line), set(self.schema["properties"]))
            self.assertEqual(set(line) - set(self.schema["required"]), {"costs"})

    def test_the_schema_and_the_code_agree(self):
        self.assertEqual(self.schema["properties"]["schema"]["const"], records.SCHEMA)
        self.assertEqual(self.schema["properties"]["status"]["enum"], list(types.STATUSES))

    @parameterized.parameters(
        (("status",), "lost", "$.status: enum"),
        (("schema",), 2, "$.schema: const"),
        (("rollout",), True, "$.rollout: type"),
        (("extra",), 1, "$: additionalProperties"),
        (("turns", 0, "observation", 1, "page"), 0, "$.turns.0.observation.1: oneOf"),
        (("turns", 0, "memory", 0, "text"), None, "$.turns.0.memory.0.text: type"),
        (("question", "evidence_pages", 0), 0, "$.question.evidence_pages.0: minimum"),
        (("verdict", "answer_score"), 2.0, "$.verdict: oneOf"),
    )
    def test_damage_does_not(self, path, value, expected):
        line = json.loads(json.dumps(records.to_json(record())))
        *way, last = path
        place = line
        for name in way:
            place = place[name]
        place[last] = value
        self.assertEqual(self.found(line), [expected])

    def test_a_missing_part_does_not(self):
        line = records.to_json(record())
        del line["memory"]
        self.assertEqual(self.found(line), ["$: required"])


if __name__ == "__main__":
    absltest.main()
