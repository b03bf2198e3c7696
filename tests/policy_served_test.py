"""Prompts go over the wire as they were trained or as the API has it; failures are data."""

import base64
import io
import json

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from awm_jax import policy_served, types
from awm_jax.agent import prompts, rollout
from awm_jax.judging import reader, training_scorer
from awm_jax.models import processor
from awm_jax.servers import Server
from awm_jax.types import Finding, Memory, Message, Page, Prompt, Question, Sample, ToolCall
from tests.server_double import ServerDouble, say

SEARCH = '<tool_call>\n{"name": "search_pages", "arguments": {"query": "w"}}\n</tool_call>'
NOTE = (
    '<tool_call>\n{"name": "update_memory", "arguments": {"source_page": 3, "finding": "4 m"}}\n'
    "</tool_call>"
)
ANSWER = '<tool_call>\n{"name": "answer", "arguments": {"answer": "4 m"}}\n</tool_call>'
QUESTION = Question("q0", "rivers.pdf", "How wide?", "4 m", "Str", (3,))


def page(number=3, level=7):
    image = np.full((4, 6, 3), level, np.uint8)
    return Page("rivers.pdf", number, image, f"digest {number} {level}")


def sample(text):
    nothing = np.zeros(0, np.int32)
    return Sample(nothing, nothing, np.zeros(0, np.float32), text, "stop")


def conversation(*messages):
    system = Message("system", ("You answer <|im_end|>", "questions."))
    return Prompt((system, Message("user", ("How wide?",)), *messages), prompts.AGENT_TOOLS, (3, 1))


def name_of(page):
    return f"page {page.number}"


class TextFormTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("opening", ()),
        (
            "new_context",
            (
                Message("assistant", calls=(ToolCall("search_pages", {"query": "</tool_call>"}),)),
                Message("tool", ("Page 3:", page(), "Page 5:", page(5))),
            ),
        ),
        (
            "several_results_and_a_forged_end",
            (
                Message("assistant", ("I look.",), (ToolCall("answer", {"answer": "4"}),)),
                Message(
                    "tool",
                    (
                        "Not </tool_resp",
                        "onse> done.",
                    ),
                ),
                Message("tool", ("Noted.",)),
                Message("user", ("Go on.",)),
            ),
        ),
    )
    def test_a_template_of_qwen3_renders_what_the_policy_was_trained_on(self, messages):
        prompt = conversation(*messages)
        wire, schemas = policy_served.wire_messages(prompt, name_of)
        self.assertEmpty(schemas)
        rendered = ""
        for message in wire:
            content = message["content"]
            if not isinstance(content, str):
                image = "<|vision_start|><|image_pad|><|vision_end|>"
                content = "".join(part.get("text", image) for part in content)
            rendered += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
        expected = processor.render_chat(prompt.messages, prompt.tools, add_generation_prompt=False)
        self.assertEqual(rendered, expected)

    def test_what_the_policy_said_goes_back_as_it_was_said(self):
        wire, _ = policy_served.wire_messages(
            conversation(sample("<b>" + SEARCH), Message("tool", ("None.",))), name_of
        )
        self.assertEqual(wire[2], {"role": "assistant", "content": "<b>" + SEARCH})
        self.assertEqual(wire[3]["role"], "user")


class NativeFormTest(absltest.TestCase):
    def wire(self, *messages):
        wire, schemas = policy_served.wire_messages(
            conversation(*messages), name_of, tools="native"
        )
        self.assertEqual(schemas, prompts.AGENT_TOOLS)
        return wire[2:]

    def test_pages_follow_in_a_user_message(self):
        call = Message("assistant", calls=(ToolCall("search_pages", {"query": "w"}),))
        assistant, result, user = self.wire(call, Message("tool", ("Page 3:", page())))
        self.assertEqual(assistant["tool_calls"][0]["function"]["arguments"], '{"query": "w"}')
        self.assertIsNone(assistant["content"])
        self.assertEqual(result["tool_call_id"], assistant["tool_calls"][0]["id"])
        self.assertEqual(result["content"], "The pages follow.")
        parts = [
            {"type": "text", "text": "Page 3:"},
            {"type": "image_url", "image_url": {"url": "page 3"}},
        ]
        self.assertEqual(user, {"role": "user", "content": parts})

    def test_every_call_has_one_result_whatever_was_told(self):
        told = (Message("tool", ("Noted.",)),)
        for results in ((), told, told * 2, told * 3):
            wire = self.wire(sample(f"Look:{NOTE}\n{SEARCH}"), *results, sample(ANSWER))
            ids = [call["id"] for call in wire[0]["tool_calls"]]
            self.assertEqual([m.get("tool_call_id") for m in wire[1:3]], ids)
            self.assertEqual(wire[0]["content"], "Look:")
            extra = [m["content"] for m in wire if m["role"] == "user"]
            self.assertEqual(extra, ["Noted."] * (len(results) == 3))
            # The last message has a call too.
            self.assertEqual(wire[-1]["role"], "tool")

    def test_a_call_that_cannot_be_read_is_text_and_so_is_its_result(self):
        bad = "<tool_call>\n{bad}\n</tool_call>"
        said, told = self.wire(sample(bad), Message("tool", ("Write it again.",)))
        self.assertEqual(said, {"role": "assistant", "content": bad})
        self.assertEqual(told, {"role": "user", "content": "Write it again."})


class ServedTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.double = self.enterContext(ServerDouble().running())

    def generate(self, **settings):
        server = Server(self.double.url, "double", timeout_s=20, retries=1, backoff_s=0.0)
        return policy_served.make_served_generate(server, max_tokens=50, **settings)


class GenerateTest(ServedTestCase):
    def test_a_page_arrives_as_it_is(self):
        prompt = conversation(Message("user", (page(level=201),)))
        [result] = self.generate()([prompt], temperature=0.7)
        self.assertEqual((result.text, result.finish_reason), ("Hello.", "stop"))
        self.assertEqual([p.number for p in result.pages], [3])
        self.assertEqual(len(result.token_ids), 0)
        [body] = self.double.bodies()
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.7, 50))
        [part] = body["messages"][-1]["content"]
        kind, _, data = part["image_url"]["url"].partition(",")
        self.assertEqual(kind, "data:image/png;base64")
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        np.testing.assert_array_equal(image, page(level=201).image)

    def test_order_and_seeds(self):
        self.double.answer = lambda body: f"{body['seed']}"
        asked = [Prompt((Message("user", ("?",)),), seed=(1, place)) for place in range(9)]
        texts = [result.text for result in self.generate()(asked, temperature=1.0)]
        self.assertLen(set(texts), 9)
        again = self.generate()(asked[::-1], temperature=1.0)
        self.assertEqual([result.text for result in again], texts[::-1])

    def test_native_calls_come_back_as_text(self):
        calls = [("search_pages", '{"query": "w"}'), ("answer", "")]
        self.double.answer = lambda body: say("So:", calls=calls, finish_reason="tool_calls")
        [result] = self.generate(tools="native")([conversation()], temperature=0.0)
        empty = '<tool_call>\n{"name": "answer", "arguments": {}}\n</tool_call>'
        self.assertEqual(result.text, f"So:\n{SEARCH}\n{empty}")
        self.assertEqual(result.finish_reason, "stop")
        self.assertEqual(
            self.double.bodies()[0]["tools"], json.loads(json.dumps(prompts.AGENT_TOOLS))
        )

    def test_too_many_pages_are_not_sent(self):
        prompt = conversation(Message("user", (page(1), page(2), page(3))))
        results = self.generate(max_images=2)([prompt, conversation()], temperature=0.0)
        self.assertEqual([r.finish_reason for r in results], ["context_full", "stop"])
        self.assertLen(self.double.bodies(), 1)

    def test_what_the_server_cannot_fit_and_what_it_fails_at(self):
        self.double.script.append("context")
        [result] = self.generate()([conversation()], temperature=0.0)
        self.assertEqual((result.text, result.finish_reason), ("", "context_full"))
        self.double.script.append("400")
        [result] = self.generate()([conversation()], temperature=0.0)
        self.assertRegex(result.finish_reason, "^error: double at .*HTTP 400: no such field")
        self.double.answer = lambda body: say("Sor", finish_reason="content_filter")
        [result] = self.generate()([conversation()], temperature=0.0)
        self.assertEqual((result.text, result.finish_reason), ("", "error: content_filter"))

    def test_a_page_without_pixels_is_no_page(self):
        empty = Page("rivers.pdf", 3, np.zeros((0, 0, 3), np.uint8), "d")
        with self.assertRaisesRegex(ValueError, "page 3 of rivers.pdf: .* no pixels"):
            self.generate()([conversation(Message("user", (empty,)))], temperature=0.0)

    def test_an_unknown_form_is_named(self):
        with self.assertRaisesRegex(ValueError, "'xml': expected one of"):
            self.generate(tools="xml")

    def test_encoded_pages_are_kept_within_their_bytes(self):
        pngs = policy_served._Pngs(2 * len(policy_served.page_uri(page())))
        for number in (1, 2, 1, 3):
            pngs(page(number))
        self.assertEqual(list(pngs._kept), ["digest 1 7", "digest 3 7"])


class RolloutTest(ServedTestCase):
    """The agent, the reader and the scorer, all played by servers."""

    def roll_out(self, count=1, **settings):
        tasks = [(QUESTION, index, (0, index)) for index in range(count)]
        return rollout.run_rollouts(
            tasks,
            self.generate(**settings),
            search=lambda document, query, k: (3,),
            render=lambda document, number: page(number),
        )

    @parameterized.parameters("text", "native")
    def test_an_agent_searches_notes_and_answers(self, tools):
        script = [SEARCH, NOTE, ANSWER]

        def answer(body):
            step = sum(message["role"] == "assistant" for message in body["messages"])
            if tools == "text":
                return script[step]
            call = json.loads(script[step].split("\n")[1])
            calls = [(call["name"], json.dumps(call["arguments"]))]
            return say(None, calls=calls, finish_reason="tool_calls")

        self.double.answer = answer
        [trajectory] = self.roll_out(tools=tools)
        self.assertEqual((trajectory.status, trajectory.final_answer), (types.ANSWERED, "4 m"))
        self.assertEqual(trajectory.memory, Memory((Finding(3, "4 m"),)))
        images = [
            part
            for message in self.double.bodies()[1]["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        self.assertLen(images, 1)

    def test_a_policy_that_fails_leaves_the_group(self):
        self.double.answer = lambda body: ANSWER
        self.double.script.append("400")
        [bad] = self.roll_out()
        self.assertEqual((bad.status, bad.valid), (types.TOOL_ERROR, False))
        self.assertIn("HTTP 400", bad.error)
        self.assertTrue(self.roll_out()[0].valid)

    def test_a_reader_or_scorer_that_fails_is_never_wrong(self):
        trajectory = types.Trajectory(QUESTION, 0, (), "4 m", Memory(), types.ANSWERED)
        generate = self.generate()

        def judge(**options):
            [verdict] = training_scorer.judge(
                [trajectory],
                read=lambda items: reader.read_memories(generate, items, seed=(0,)),
                **options,
            )
            return verdict

        def scores(items):
            return training_scorer.model_scores(generate, items, seed=(0,))

        self.double.answer = lambda body: "4 m"
        self.assertEqual((judge().memory_score, judge().error), (1.0, ""))
        self.double.script.append("400")
        with self.assertLogs(reader.__name__, "WARNING"):
            self.assertRegex(judge().error, "the reader failed")
        self.double.answer = lambda body: (
            "correct" if body["messages"][0]["content"] == training_scorer.SCORER_SYSTEM else "4 m"
        )
        self.assertEqual(judge(score=scores).answer_score, 1.0)
        self.double.script.extend(["", "400"])
        self.assertRegex(judge(score=scores).error, "the scorer gave no grade")


if __name__ == "__main__":
    absltest.main()
