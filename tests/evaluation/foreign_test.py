"""Records of any agent are read under the names they use, and what cannot be read is said."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from awm_jax.agent import records
from awm_jax.evaluation import foreign
from awm_jax.types import ANSWERED, TOOL_ERROR, Finding, Memory, Question, Trajectory, Verdict

FLAT = {"question": "What rate?", "gold": "4.7%", "final_answer": "4.7", "memory": "It is 4.7 %."}


def without(*names, **fields):
    return {k: v for k, v in FLAT.items() if k not in names} | fields


def call(name, **arguments):
    return {"function": {"name": name, "arguments": json.dumps(arguments)}}


class EntryTest(parameterized.TestCase):
    def test_a_flat_record(self):
        trajectory = foreign.entry(FLAT, 7).trajectory
        self.assertEqual(trajectory.question, Question("line 7", "", "What rate?", "4.7%", "Float"))
        self.assertEqual(trajectory.final_answer, "4.7")
        self.assertEqual(trajectory.memory.text, "It is 4.7 %.")
        self.assertEqual(trajectory.status, ANSWERED)

    @parameterized.named_parameters(
        ("answer_is_gold", without("gold", answer="4.7%"), "4.7%", "4.7"),
        ("answer_is_final", without("final_answer", answer="4.7"), "4.7%", "4.7"),
        ("other_names", {"query": "q", "ground_truth": "g", "pred": 3, "notes": []}, "g", "3"),
        ("verl", without("gold", reward_model={"ground_truth": "g"}), "g", "4.7"),
        ("no_answer_was_given", without("final_answer", final_answer=None), "4.7%", ""),
        ("gold_zero", without("gold", gold=0), 0, "4.7"),
        ("gold_true", without("gold", gold=True), "Yes", "4.7"),
    )
    def test_answers(self, record, gold, final):
        trajectory = foreign.entry(record, 1).trajectory
        self.assertEqual((trajectory.question.answer, trajectory.final_answer), (gold, final))

    @parameterized.named_parameters(
        ("text", "a\n[page 3] b", ((0, "a"), (3, "b")), "a\n[page 3] b"),
        ("texts", ["a", "Page 2: b"], ((0, "a"), (2, "b")), "a\n[page 2] b"),
        ("findings", [{"source_page": 3, "finding": "b"}], ((3, "b"),), "[page 3] b"),
        ("nested", {"findings": [{"page": "p. 4", "text": "b"}]}, ((4, "b"),), "[page 4] b"),
        ("by_page", {"3": "b", "12": "c"}, ((3, "b"), (12, "c")), "[page 3] b\n[page 12] c"),
        ("by_name", {"rate": "4.7"}, ((0, "rate: 4.7"),), "rate: 4.7"),
        (
            "precursor",
            [{"query": "q", "pages_visited": [5, 6], "relevant_information": "b"}],
            ((5, "b"),),
            "[page 5] b",
        ),
        ("odd", [{"x": 1}], ((0, '{"x": 1}'),), '{"x": 1}'),
        ("null", None, (), "(empty)"),
        ("nothing", [], (), "(empty)"),
        ("blank", "  \n", (), "(empty)"),
    )
    def test_memories(self, value, findings, text):
        memory = foreign.memory(value)
        self.assertEqual(tuple((f.source_page, f.text) for f in memory.findings), findings)
        self.assertEqual(memory.text, text)

    def test_chat_messages(self):
        messages = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "What rate?"}]},
            {"role": "assistant", "content": "I look.", "tool_calls": [call("search", query="x")]},
            {"role": "tool", "content": [{"type": "image_url"}, "page 3"]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    call("update_search_memory", pages_visited=[3], relevant_information="4.7"),
                    call("final_answer", answer="4.7"),
                ],
            },
        ]
        trajectory = foreign.entry({"messages": messages, "gold": "4.7%"}, 1).trajectory
        self.assertEqual(trajectory.question.text, "What rate?")
        self.assertEqual(trajectory.final_answer, "4.7")
        self.assertEqual(trajectory.memory, Memory((Finding(3, "4.7"),)))
        first, second = trajectory.turns
        self.assertEqual(first.observation, ("[image_url]\npage 3",))
        self.assertEqual([c.name for c in second.calls], ["update_search_memory", "final_answer"])

    def test_prompt_and_completion_with_calls_in_the_text(self):
        said = (
            '<tool_call>{"name": "add_note", "arguments": {"note": "4.7", "page": 2}}</tool_call>'
        )
        record = {
            "prompt": [{"role": "user", "content": "What rate?"}],
            "completion": [
                {"role": "assistant", "content": said},
                {"role": "assistant", "content": "<think>hm</think> It is 4.7."},
            ],
            "answer": "4.7%",
            "error": None,
        }
        trajectory = foreign.entry(record, 1).trajectory
        self.assertEqual(trajectory.memory, Memory((Finding(2, "4.7"),)))
        self.assertEqual(trajectory.final_answer, "It is 4.7.")

    def test_our_own_records_keep_their_verdict(self):
        trajectory = Trajectory(Question("q", "d", "t", "a", "Str"), 2, (), "a", Memory(), ANSWERED)
        record = records.Record(trajectory, verdict=Verdict(1.0, 0.0, "b", "s"))
        found = foreign.entry(records.to_json(record), 1)
        self.assertEqual(found.trajectory.rollout, 2)
        self.assertEqual(found.verdict.memory_answer, "b")

    def test_a_failed_run_is_not_judged(self):
        self.assertEqual(foreign.entry(FLAT | {"error": "gone"}, 1).trajectory.status, TOOL_ERROR)

    @parameterized.named_parameters(
        ("question", without("question"), "no question: expected it under one of question"),
        ("gold", without("gold"), "no gold answer.*found the keys 'question, final_answer"),
        ("memory", without("memory", memroy="x"), "no memory.*is 'memroy' meant"),
        ("final", without("final_answer"), "no final answer.*write null"),
        ("both", without("gold", "final_answer", answer="x"), '"answer" alone'),
        ("format", FLAT | {"answer_format": "Bool"}, "'Bool', expected one of Int"),
        ("schema", {"schema": 99, "turns": []}, "schema 99, expected"),
    )
    def test_what_is_missing_is_said(self, record, message):
        with self.assertRaisesRegex(ValueError, message):
            foreign.entry(record, 1)

    @parameterized.parameters(
        (["a"], "List"),
        (3, "Int"),
        ("12", "Int"),
        ("007", "Str"),
        ("18.29%", "Float"),
        (0.5, "Float"),
        ("['a']", "List"),
        ("Not answerable", "None"),
        ("1,204", "Str"),
        ("blue", "Str"),
    )
    def test_formats_are_guessed_from_gold(self, gold, expected):
        self.assertEqual(foreign.guess_format(gold), expected)


class LoadTest(absltest.TestCase):
    def load(self, content):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "t.jsonl"
        path.write_bytes(content)
        return foreign.load(path)

    def test_nothing_is_lost(self):
        good = json.dumps(FLAT).encode()
        bad = (b'{"question": "a" "b"}', b"[1]", b"\xff", b"[" * 100_000, b'{"question": 1}')
        bad += (b'{"question": "a", "gold": NaN}',)
        content = b"\xef\xbb\xbf" + b"\n".join([good, b"", good, *bad])
        entries, unreadable = self.load(content)
        self.assertEqual([entry.line for entry in entries], [1, 3])
        self.assertEqual([item.line for item in unreadable], [4, 5, 6, 7, 8, 9])
        for item, found in zip(
            unreadable,
            ("not JSON: .* column 18", "found a list", "not UTF-8", "nested too deep", "no gold")
            + ("found NaN, which is no JSON",),
            strict=True,
        ):
            self.assertRegex(item.found, found)
        self.assertEqual(unreadable[0].raw, bad[0].decode())

    def test_a_list_is_read_as_well(self):
        entries, unreadable = self.load(json.dumps([FLAT, 3, FLAT], indent=1).encode())
        self.assertEqual([entry.line for entry in entries], [1, 3])
        self.assertEqual([item.line for item in unreadable], [2])

    def test_rollouts_of_a_question_are_numbered(self):
        one, other = FLAT | {"id": "a"}, FLAT | {"id": "a", "question": "Another?"}
        entries, unreadable = self.load("\n".join(map(json.dumps, [one, one, other])).encode())
        self.assertEqual([entry.trajectory.rollout for entry in entries], [0, 1])
        self.assertRegex(unreadable[0].found, "id 'a' is of another question: 'What rate")

    def test_files_without_records_are_refused(self):
        with self.assertRaisesRegex(ValueError, "found no record"):
            self.load(b"\n\n")
        with self.assertRaisesRegex(ValueError, "nowhere.jsonl: cannot be read"):
            foreign.load("nowhere.jsonl")


if __name__ == "__main__":
    absltest.main()
