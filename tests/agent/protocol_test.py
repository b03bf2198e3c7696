"""Text -> tool calls: what is read, what is refused, and that nothing raises."""

import json
import random
import time

from absl.testing import absltest, parameterized

from awm_jax.agent import protocol
from awm_jax.agent.prompts import AGENT_TOOLS
from awm_jax.types import ToolCall

SEARCH = '{"name": "search_pages", "arguments": {"query": "net sales"}}'
NET_SALES = ToolCall("search_pages", {"query": "net sales"})


def tagged(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


class ParseCallsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("as_the_chat_format_has_it", tagged(SEARCH)),
        ("on_one_line", f"<tool_call>{SEARCH}</tool_call>"),
        ("no_closing_tag", f"<tool_call>{SEARCH}"),
        ("no_opening_tag", f"{SEARCH}\n</tool_call>"),
        ("bare_json", SEARCH),
        ("bare_json_in_a_fence", f"```json\n{SEARCH}\n```"),
        ("fence_in_the_tag", tagged(f"```json\n{SEARCH}\n```")),
        ("one_brace_lost", tagged(SEARCH[:-1])),
        ("all_braces_lost", f"<tool_call>{SEARCH[:-2]}"),
        ("a_brace_too_many", tagged(SEARCH + "}")),
        ("text_around", f"I look it up.\n{tagged(SEARCH)}\nDone."),
        ("text_in_the_tag", tagged(f"Call: {SEARCH} now")),
        ("thoughts", f"<think>\nFirst {tagged('{}')}\n</think>\n\n{tagged(SEARCH)}"),
        ("thoughts_opened_by_the_prompt", f"so I search</think>{tagged(SEARCH)}"),
        ("arguments_as_string", tagged(json.dumps(json.loads(SEARCH) | {
            "arguments": '{"query": "net sales"}'}))),
        ("unknown_keys", tagged('{"id": 1, "type": "function", ' + SEARCH[1:])),
        ("python_quotes", tagged("{'name': 'search_pages', 'arguments': {'query': 'net sales'}}")),
        ("trailing_commas", tagged(SEARCH.replace("}}", ",},}"))),
        ("space_in_the_name", tagged(SEARCH.replace("search_pages", "search_pages "))),
    )  # fmt: skip
    def test_reads(self, text):
        parsed = protocol.parse_calls(text)
        self.assertEqual(parsed.calls, (NET_SALES,))
        self.assertEmpty(parsed.errors)

    @parameterized.named_parameters(
        ("nothing", "", "No tool call found"),
        ("plain_text", "The answer is 42.", "No tool call found"),
        ("only_thoughts", f"<think>{tagged(SEARCH)}</think>", "No tool call found"),
        ("thoughts_without_end", f"<think>{tagged(SEARCH)}", "No tool call found"),
        ("empty_call", "<tool_call></tool_call>", "is empty"),
        ("no_json", tagged("search_pages(net sales)"), "is empty"),
        ("string_cut_off", "<tool_call>" + SEARCH[:-6], "a string does not end"),
        ("crossed_brackets", tagged('{"name": "search_pages", "arguments": [}]'), "brackets"),
        ("no_name", tagged('{"arguments": {}}'), '"name"'),
        ("name_is_no_text", tagged('{"name": 3, "arguments": {}}'), '"name"'),
        ("list_of_arguments", tagged('{"name": "answer", "arguments": [1]}'), "JSON object"),
        ("text_of_arguments", tagged('{"name": "answer", "arguments": "42"}'), "JSON object"),
        ("bracket_as_arguments", tagged('{"name": "answer", "arguments": "]"}'), "JSON object"),
        ("code", tagged('{"name": "answer", "arguments": {"answer": ().__class__}}'), "JSON"),
        ("not_a_number", tagged('{"name": "answer", "arguments": {"answer": NaN}}'), "NaN"),
        ("huge_integer", tagged('{"name": "a", "arguments": {"x": ' + "9" * 5000), "JSON"),
        ("deep_nesting", tagged('{"a":' * 50_000), "JSON"),
    )
    def test_refuses_in_words(self, text, expected):
        parsed = protocol.parse_calls(text)
        self.assertEmpty(parsed.calls)
        self.assertLen(parsed.errors, 1)
        self.assertRegex(parsed.errors[0], expected)

    def test_several_calls_keep_their_order(self):
        note = '{"name": "update_memory", "arguments": {"source_page": 3, "finding": "a"}}'
        both = (ToolCall("update_memory", {"source_page": 3, "finding": "a"}), NET_SALES)
        for text in (
            tagged(note) + "\n" + tagged(SEARCH),
            f"<tool_call>{note}<tool_call>{SEARCH}",
            f"<tool_call>{note[:-1]}\n<tool_call>{SEARCH}",
            tagged(f"{note}\n{SEARCH}"),
            tagged(f"[{note}, {SEARCH}]"),
        ):
            self.assertEqual(protocol.parse_calls(text).calls, both, text)

    def test_a_broken_call_does_not_take_the_next_one_with_it(self):
        parsed = protocol.parse_calls(tagged('{"name": "answer", oh}') + tagged(SEARCH))
        self.assertEqual(parsed.calls, (NET_SALES,))
        self.assertLen(parsed.errors, 1)

    def test_strings_are_kept_as_meant(self):
        for written, meant in (
            (r'"it\'s \"so\" \u00e9 \\d"', 'it\'s "so" é \\d'),
            (r"'it\'s \"so\" \u00e9 \d'", 'it\'s "so" é \\d'),
            ('"it\'s"', "it's"),
            ('"two\nlines"', "two\nlines"),
            ("'None, True {'", "None, True {"),
            ('"a </tool_call> tag"', "a </tool_call> tag"),
        ):
            text = tagged('{"name": "answer", "arguments": {"answer": ' + written + "}}")
            self.assertEqual(
                protocol.parse_calls(text).calls, (ToolCall("answer", {"answer": meant}),), text
            )

    def test_content_is_what_stands_around(self):
        text = f"<think>hm</think>Let me see.\n{tagged(SEARCH)}\n  Done. "
        self.assertEqual(protocol.parse_calls(text).content, "Let me see. Done.")

    def test_no_text_raises_or_takes_long(self):
        rng = random.Random(0)
        pieces = ["<tool_call>", "</tool_call>", "<think>", "</think>", SEARCH, "{", "}", "[", "]"]
        pieces += ['"', "'", "\\", ":", ",", "\n", "name", "arguments", "None", "1e999", "\ud800"]
        pieces += [
            '{"name": "answer", "arguments": {"answer": "',
            "\x00",
            "é",
            "9" * 30,
            "-",
            "NaN",
        ]
        start = time.process_time()
        read = 0
        for _ in range(10_000):
            kind = rng.random()
            if kind < 0.2:
                arguments = "".join(rng.choices(pieces, k=rng.randrange(8)))
                text = tagged(json.dumps({"name": "answer", "arguments": arguments}))
            elif kind < 0.5:
                text = "".join(rng.choices(pieces, k=rng.randrange(20)))
            else:
                mutated = list(tagged(SEARCH) + tagged(SEARCH))
                for _ in range(rng.randrange(1, 6)):
                    place = rng.randrange(len(mutated))
                    mutated[place] = rng.choice(["", rng.choice(pieces), mutated[place] * 2])
                text = "".join(mutated)
            parsed = protocol.parse_calls(text)
            self.assertTrue(parsed.calls or parsed.errors)
            for call in parsed.calls:
                read += 1
                checked = protocol.checked_call(call, AGENT_TOOLS)
                if isinstance(checked, ToolCall):
                    json.dumps(dict(checked.arguments), allow_nan=False).encode()
                    str(checked.arguments).encode()
        self.assertGreater(read, 3000)
        self.assertLess(time.process_time() - start, 20)

    @parameterized.parameters(
        "<tool_call>", "{", "<tool_call>{", "<tool_call>{'", '<tool_call>{"a": "', "[{",
        "<tool_call>{'\\", "<think>", "</think>", '\\"', "<tool_call>{\"a\":'\\'", "<tool_call>{} ",
    )  # fmt: skip
    def test_long_repetitions_take_linear_time(self, piece):
        start = time.process_time()
        protocol.parse_calls("<tool_call>" + piece * (50_000 // len(piece)))
        self.assertLess(time.process_time() - start, 2)


class CheckedCallTest(parameterized.TestCase):
    @parameterized.parameters(
        3, 3.0, "3", " 3 ", "page 3", "Page 3", "p. 3", "[page 3]", "3.0", "pages 3"
    )
    def test_lenient_integers(self, written):
        arguments = {"source_page": written, "finding": "a"}
        checked = protocol.checked_call(ToolCall("update_memory", arguments), AGENT_TOOLS)
        self.assertEqual(checked.arguments, {"source_page": 3, "finding": "a"})
        self.assertIs(type(checked.arguments["source_page"]), int)

    @parameterized.parameters(
        (True,), (3.5,), ("3-4",), ("three",), ("",), (None,), ([3],), ({"page": 3},), ("-3",),
        (float("inf"),), (10**400,), ("9" * 400,),
    )  # fmt: skip
    def test_no_integer(self, written):
        arguments = {"source_page": written, "finding": "a"}
        problem = protocol.checked_call(ToolCall("update_memory", arguments), AGENT_TOOLS)
        self.assertRegex(problem, "source_page must be one whole number, found ")
        self.assertLess(len(problem), 120)

    @parameterized.parameters(
        (42, "42"), ("  42 ", "42"), (4.5, "4.5"), ([42, 17], "[42, 17]"), (["é"], '["é"]'),
        ("\ud83d\ude00", "😀"), ("a\ud800", "a\ufffd"), (True, "true"),
    )  # fmt: skip
    def test_lenient_texts(self, written, expected):
        checked = protocol.checked_call(ToolCall("answer", {"answer": written}), AGENT_TOOLS)
        self.assertEqual(checked, ToolCall("answer", {"answer": expected}))

    @parameterized.parameters(("",), ("  ",), (None,), ([],), ([[1]],), ({"a": 1},))
    def test_no_text(self, written):
        problem = protocol.checked_call(ToolCall("answer", {"answer": written}), AGENT_TOOLS)
        self.assertRegex(problem, "answer must be a text that is not empty")

    def test_unknown_tool_and_missing_argument(self):
        self.assertEqual(
            protocol.checked_call(ToolCall("search", {"query": "a"}), AGENT_TOOLS),
            "No tool is named 'search'. Use search_pages, update_memory, answer.",
        )
        self.assertEqual(
            protocol.checked_call(ToolCall("update_memory", {"finding": "a"}), AGENT_TOOLS),
            "update_memory needs source_page.",
        )

    def test_arguments_of_another_tool_are_dropped(self):
        call = ToolCall("answer", {"answer": "42", "source_page": "none"})
        self.assertEqual(
            protocol.checked_call(call, AGENT_TOOLS), ToolCall("answer", {"answer": "42"})
        )


if __name__ == "__main__":
    absltest.main()
