"""The client against a server that misbehaves in every way we know of."""

import email.utils
import json
import logging
import os
import socket
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax import servers
from awm_jax.servers import Chat, Failure, Server, ServerError
from tests.server_double import MISBEHAVIOURS, ServerDouble, say

KEY = "sk-Very-Secret-0123"
HELLO = [{"role": "user", "content": "Hello?"}]
BUDGET = {"temperature": 0.5, "max_tokens": 9}


class ServersTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.double = self.enterContext(ServerDouble().running())

    def server(self, **settings):
        settings = {"timeout_s": 20.0, "retries": 2, "backoff_s": 0.01, **settings}
        return Server(self.double.url, "double", **settings)

    def chat(self, **settings):
        return servers.chat(self.server(**settings), HELLO, **BUDGET)

    @property
    def asked(self):
        return len(self.double.requests)


class ChatTest(ServersTestCase):
    def test_what_is_sent_and_what_comes_back(self):
        reply = servers.chat(
            self.server(),
            HELLO,
            tools=[{"type": "function"}],
            seed=7,
            extra={"top_k": 5, "max_tokens": None, "max_completion_tokens": 8},
            **BUDGET,
        )
        self.assertEqual(
            (reply.text, reply.finish_reason, reply.tool_calls), ("Hello.", "stop", ())
        )
        self.assertEqual(reply.usage, servers.Usage(11, 3))
        self.assertBetween(reply.seconds, 0, 20)
        expected = {
            "model": "double",
            "messages": HELLO,
            "temperature": 0.5,
            "seed": 7,
            "tools": [{"type": "function"}],
            "stream": False,
            "top_k": 5,
            "max_completion_tokens": 8,
        }
        self.assertEqual(self.double.bodies(), [expected])

    def test_what_is_not_given_is_not_sent(self):
        self.chat()
        self.assertNoCommonElements(self.double.bodies()[0], ["tools", "seed"])

    @parameterized.named_parameters(
        ("none", "Yes.", {}, ("Yes.", "")),
        ("tags", "<think>hm</think>\n\nYes.", {}, ("Yes.", "hm")),
        ("opened_by_the_prompt", "hm</think>Yes.", {}, ("Yes.", "hm")),
        ("kept_apart", "Yes.", {"reasoning_content": "hm"}, ("Yes.", "hm")),
        ("kept_apart_under_its_new_name", "Yes.", {"reasoning": "hm"}, ("Yes.", "hm")),
        ("parts", [{"type": "text", "text": "Yes."}], {}, ("Yes.", "")),
        ("refusal", None, {"refusal": "No."}, ("No.", "")),
    )
    def test_thoughts_are_told_from_what_is_said(self, content, message, expected):
        self.double.answer = lambda body: say(content, **message)
        reply = self.chat()
        self.assertEqual((reply.text, reply.thoughts), expected)

    def test_a_budget_spent_on_thoughts_is_a_reply(self):
        self.double.answer = lambda body: say("<think>hm, let", finish_reason="length")
        reply = self.chat()
        self.assertEqual(
            (reply.text, reply.thoughts, reply.finish_reason), ("", "hm, let", "length")
        )

    def test_calls_come_as_they_were_written(self):
        calls = [("answer", '{"answer": "4"'), ("search_pages", {"query": "x"})]
        self.double.answer = lambda body: say(None, calls=calls, finish_reason="tool_calls")
        expected = (
            servers.Call("answer", '{"answer": "4"'),
            servers.Call("search_pages", '{"query": "x"}'),
        )
        self.assertEqual(self.chat().tool_calls, expected)

    def test_text_that_is_no_unicode_is_sent(self):
        self.double.answer = lambda body: body["messages"][0]["content"]
        reply = servers.chat(self.server(), [{"role": "user", "content": "a\ud800é"}], **BUDGET)
        self.assertEqual(reply.text, "a?é")

    def test_a_version_of_the_model_is_the_model(self):
        for name in ("double-2024-08-06", "double-0613", "shared/double"):
            self.double.model = name
            self.assertEqual(self.chat(reported_as=("shared/double",)).text, "Hello.")
        for name in ("double-mini", "double2", "Double"):
            self.double.model = name
            with self.assertRaisesRegex(ServerError, f"model 'double', the reply is by '{name}'"):
                self.chat()


class MisbehaviourTest(ServersTestCase):
    @parameterized.parameters(
        ("500", servers.STATUS, "HTTP 500: worker died"),
        ("503", servers.STATUS, "HTTP 503: loading"),
        ("429", servers.STATUS, "HTTP 429: slow down"),
        ("hang", servers.TIMEOUT, "no reply in 0.2 s"),
        ("drip", servers.TIMEOUT, "no whole reply in 0.2 s"),
        ("hang_up", servers.CONNECTION, "RemoteProtocolError"),
        ("half_a_reply", servers.CONNECTION, "RemoteProtocolError"),
        ("truncated_json", servers.MALFORMED, "expected JSON, found .* bytes that begin"),
        ("html", servers.MALFORMED, "begin '<html><body>502"),
        ("stream", servers.MALFORMED, "begin 'data: {"),
        ("list", servers.MALFORMED, "expected an object, found list"),
        ("error_with_200", servers.STATUS, "upstream is gone"),
        ("no_choices", servers.MALFORMED, "no chat completion: IndexError"),
        ("empty", servers.EMPTY, r"the reply is empty \(it ended with 'stop'\)"),
        ("null", servers.EMPTY, "the reply is empty"),
    )
    def test_is_survived_once_and_named_when_it_stays(self, trouble, kind, message):
        # Short only where it has to run out; then a busy machine may need some more attempts.
        patience = {"timeout_s": 0.2, "retries": 50} if kind == servers.TIMEOUT else {}
        self.double.script.append(trouble)
        self.assertEqual(self.chat(**patience).text, "Hello.")
        asked = self.asked
        self.assertGreaterEqual(asked, 2)
        self.double.script.extend([trouble] * 2)
        with self.assertRaisesRegex(ServerError, f"double at http.*{message}.*attempt 2 of 2") as e:
            self.chat(**patience | {"retries": 1})
        self.assertEqual(e.exception.kind, kind)
        self.assertEqual(self.asked, asked + 2)

    @parameterized.parameters(
        ("400", servers.STATUS, "HTTP 400: no such field"),
        ("401", servers.STATUS, "HTTP 401"),
        ("404", servers.STATUS, "no such route; is the model's name right"),
        ("quota", servers.STATUS, "HTTP 429: no credit"),
        ("context", servers.CONTEXT_FULL, "maximum context length is 8"),
        ("redirect", servers.STATUS, "HTTP 307: .*points to 'http://127.0.0.1:9/elsewhere'"),
        ("wrong_model", servers.WRONG_MODEL, "model 'double', the reply is by 'another'"),
    )
    def test_what_asking_again_cannot_help_is_asked_once(self, trouble, kind, message):
        self.double.script.append(trouble)
        with self.assertRaisesRegex(ServerError, message) as e:
            self.chat()
        self.assertEqual(e.exception.kind, kind)
        self.assertEqual(self.asked, 1)

    def test_nothing_that_the_double_can_do_is_left_out(self):
        tried = set()
        for name in (
            "test_is_survived_once_and_named_when_it_stays",
            "test_what_asking_again_cannot_help_is_asked_once",
        ):
            cases = MisbehaviourTest.__dict__
            tried |= {n for n in cases if n.startswith(name)}
        self.assertLen(tried, len(MISBEHAVIOURS))

    def test_no_server(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        server = Server(url, "double", retries=1, backoff_s=0.0)
        with self.assertRaisesRegex(ServerError, "refused.*attempt 2 of 2") as e:
            servers.chat(server, HELLO, **BUDGET)
        self.assertEqual(e.exception.kind, servers.CONNECTION)


class WaitingTest(ServersTestCase):
    def seconds(self, **settings):
        start = time.monotonic()
        self.chat(**settings)
        return time.monotonic() - start

    def test_retry_after_is_kept_to_and_capped(self):
        self.double.headers = {"Retry-After": "0.15"}
        self.double.script.append("429")
        self.assertGreater(self.seconds(), 0.15)
        server = self.server()
        self.assertEqual(servers._wait_s(server, 1, 3600.0), 60.0)
        self.assertEqual(servers._wait_s(self.server(backoff_s=50.0), 9, None), 60.0)

    def test_retry_after_in_either_form(self):
        soon = email.utils.formatdate(time.time() + 30, usegmt=True)
        self.assertBetween(servers._retry_after_s({"retry-after": soon}), 28, 30)
        for value, expected in (("2", 2.0), ("-3", 0.0), ("soon", None), ("nan", None)):
            self.assertEqual(servers._retry_after_s({"retry-after": value}), expected)
        self.assertIsNone(servers._retry_after_s({}))

    def test_a_server_that_asks_for_a_pause_gets_it_from_all_requests(self):
        self.double.headers = {"Retry-After": "0.15"}
        self.double.script.append("429")
        with self.assertRaises(ServerError):
            self.chat(retries=0)
        self.assertGreater(self.seconds(retries=0), 0.1)

    def test_the_rate_is_kept(self):
        server = self.server(requests_per_minute=60 / 0.05)
        start = time.monotonic()
        servers.chat_many(server, [Chat(HELLO)] * 4, **BUDGET)
        self.assertGreater(time.monotonic() - start, 0.15)


class ChatManyTest(ServersTestCase):
    def test_order_is_kept_and_a_failure_stays_alone(self):
        def answer(body):
            text = body["messages"][0]["content"]
            self.double.wait(0.02 * (8 - int(text)) / 8)
            return {"3": say(None), "5": say("x", finish_reason="length")}.get(text, f"is {text}")

        self.double.answer = answer
        chats = [
            Chat([{"role": "user", "content": str(number)}], seed=number) for number in range(8)
        ]
        replies = servers.chat_many(self.server(retries=1), chats, **BUDGET)
        self.assertIsInstance(replies[3], Failure)
        self.assertEqual(replies[3].kind, servers.EMPTY)
        texts = [reply.text for place, reply in enumerate(replies) if place != 3]
        self.assertEqual(texts, ["is 0", "is 1", "is 2", "is 4", "x", "is 6", "is 7"])
        self.assertEqual(self.asked, 9)

    def test_no_more_are_in_flight_than_allowed(self):
        self.double.answer = lambda body: self.double.wait(0.02) or "Yes."
        server = self.server(concurrency=3)
        threads = [
            threading.Thread(
                target=servers.chat_many, args=(server, [Chat(HELLO)] * 6), kwargs=BUDGET
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.asked, 12)
        self.assertEqual(self.double.busiest, 3)

    def test_nothing_to_ask(self):
        self.assertEmpty(servers.chat_many(self.server(), [], **BUDGET))


class KeyTest(ServersTestCase):
    def test_the_key_goes_into_the_header_and_nowhere_else(self):
        server = self.server(key_variable="DOUBLE_KEY", retries=1)
        self.double.script.extend(["500", "401"])
        with (
            mock.patch.dict(os.environ, {"DOUBLE_KEY": KEY}),
            self.assertLogs(level=logging.DEBUG) as logs,
            self.assertRaisesRegex(ServerError, r"Incorrect API key provided: \[key\]") as e,
        ):
            servers.chat(server, HELLO, **BUDGET)
        sent = [request.headers["authorization"] for request in self.double.requests]
        self.assertEqual(sent, [f"Bearer {KEY}"] * 2)
        self.assertIn("key was [key]", "\n".join(logs.output))
        told = [*logs.output, repr(server), str(server), repr(e.exception)]
        for text in told:
            self.assertNotIn(KEY, text)
        self.assertIsNone(e.exception.__cause__)
        self.assertTrue(e.exception.__suppress_context__)

    def test_another_services_key_is_not_sent(self):
        with mock.patch.dict(os.environ, {"OPENAI_API_KEY": KEY}):
            self.chat()
        self.assertNotIn(KEY, json.dumps(dict(self.double.requests[0].headers)))

    def test_a_key_that_is_not_there_or_no_key_is_named_without_it(self):
        server = self.server(key_variable="DOUBLE_KEY")
        with mock.patch.dict(os.environ):
            os.environ.pop("DOUBLE_KEY", None)
            with self.assertRaisesRegex(ValueError, "variable DOUBLE_KEY, which is not set"):
                servers.chat_many(server, [Chat(HELLO)] * 3, **BUDGET)
            os.environ["DOUBLE_KEY"] = KEY + "\nX: y"
            with self.assertRaisesRegex(ValueError, "DOUBLE_KEY: expected a key") as e:
                self.chat(key_variable="DOUBLE_KEY")
        self.assertNotIn(KEY, str(e.exception))
        self.assertEmpty(self.double.requests)


class ServerTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"base_url": "localhost:8000/v1"}, "expected http://HOST"),
        ({"base_url": "ftp://host/v1"}, "expected http://HOST"),
        ({"model": ""}, "expected the name of a model"),
        ({"timeout_s": 0}, "time-out"),
        ({"concurrency": 0}, "concurrency"),
        ({"requests_per_minute": -1}, "rate"),
        ({"retries": -1}, "retries"),
    )
    def test_wrong_settings_are_named(self, settings, expected):
        with self.assertRaisesRegex(ValueError, expected):
            Server(**{"base_url": "http://host/v1", "model": "m", **settings})

    @parameterized.parameters(
        {"base_url": f"http://user:{KEY}@host/v1"},
        {"base_url": f"http://host/v1?api-key={KEY}"},
        {"key_variable": KEY},
        {"key_variable": "jina_0123456789"},
    )
    def test_a_key_in_the_wrong_place_is_refused_and_not_shown(self, **settings):
        with self.assertRaisesRegex(ValueError, "environment") as e:
            Server(**{"base_url": "http://host/v1", "model": "m", **settings})
        for secret in (KEY, "jina_0123456789"):
            self.assertNotIn(secret, str(e.exception))


class EmbedTest(ServersTestCase):
    def test_vectors_come_in_the_order_of_the_inputs(self):
        self.double.embed = lambda text: [len(text), 0.5]
        vectors = servers.embed(self.server(), ["a", "bbb"], extra={"dimensions": 2})
        np.testing.assert_array_equal(vectors, np.float32([[1, 0.5], [3, 0.5]]))
        [body] = self.double.bodies("/v1/embeddings")
        self.assertEqual(body, {"model": "double", "input": ["a", "bbb"], "dimensions": 2})
        self.assertEmpty(servers.embed(self.server(), []))

    def test_one_vector_a_token(self):
        self.double.embed = lambda text: [[1.0, 2.0]] * len(text)
        vectors = servers.embed(self.server(), ["a", "bbb"])
        self.assertEqual([vector.shape for vector in vectors], [(1, 2), (3, 2)])

    def test_base64(self):
        reply = {"data": [{"data": "AACAPwAAAEAAAEBAAACAQA=="}]}
        [vector] = servers.read_embeddings(reply, count=1)
        np.testing.assert_array_equal(vector, [1, 2, 3, 4])
        [vectors] = servers.read_embeddings(reply, count=1, size=2)
        np.testing.assert_array_equal(vectors, [[1, 2], [3, 4]])

    @parameterized.parameters(
        ({"data": []}, "expected 1 embeddings, found 0"),
        ({}, "expected 1 embeddings, found NoneType"),
        ({"data": [{"index": 1, "embedding": [1.0]}]}, r"indices of 1 embeddings, found \[1\]"),
        ({"data": [{"embedding": []}]}, "of one size"),
        ({"data": [{"embedding": [float("nan")]}]}, "not finite"),
        ({"data": [{"embedding": [None]}]}, "not finite"),
        ({"data": [{"embedding": [[1.0], [1.0, 2.0]]}]}, "cannot be read"),
        ({"data": [{"embedding": "*"}]}, "cannot be read"),
        ({"data": [{}]}, "cannot be read"),
        ({"data": ["x"]}, "cannot be read"),
    )
    def test_damage_is_named(self, reply, expected):
        with self.assertRaisesRegex(servers.Malformed, expected):
            servers.read_embeddings(reply, count=1)

    def test_vectors_of_two_sizes(self):
        reply = {"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}]}
        with self.assertRaisesRegex(servers.Malformed, "of one size"):
            servers.read_embeddings(reply, count=2)

    def test_a_reply_of_fewer_vectors_is_asked_for_again(self):
        server = self.server(retries=1)
        with (
            mock.patch.object(ServerDouble, "reply", lambda *_: {"data": []}),
            self.assertRaisesRegex(ServerError, "expected 2 embeddings, found 0.*attempt 2 of 2"),
        ):
            servers.embed(server, ["a", "b"])


class ServedModelsTest(ServersTestCase):
    def test_are_listed(self):
        self.assertEqual(servers.served_models(self.server()), ["double"])
        self.assertEqual(self.double.requests[0].path, "/v1/models")

    def test_paths_from_the_root(self):
        servers.post(self.server(), "/pooling", {"input": []}, read=dict)
        self.assertEqual(self.double.requests[0].path, "/pooling")


if __name__ == "__main__":
    absltest.main()
