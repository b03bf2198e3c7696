"""A small server with the OpenAI API for tests: it answers as told, and misbehaves as told."""

import collections
import contextlib
import dataclasses
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MODEL = "double"

# What a request can meet instead of a proper reply, by the name that tests give it.
_STATUSES = {
    "400": (400, {"error": {"message": "no such field"}}),
    "401": (401, {"error": {"message": "Incorrect API key provided: {key}"}}),
    "404": (404, {"error": {"message": "no such route"}}),
    "429": (429, {"error": {"message": "slow down"}}),
    "quota": (429, {"error": {"message": "no credit", "code": "insufficient_quota"}}),
    "500": (500, {"error": {"message": "worker died; key was {key}"}}),
    "503": (503, {"detail": "loading"}),
    "context": (
        400,
        {"message": "This model's maximum context length is 8 tokens. However, you requested 9."},
    ),
    "redirect": (307, {}),
}
MISBEHAVIOURS = (
    *_STATUSES,
    "hang",
    "drip",
    "hang_up",
    "half_a_reply",
    "truncated_json",
    "html",
    "list",
    "error_with_200",
    "no_choices",
    "empty",
    "null",
    "wrong_model",
    "stream",
)


@dataclasses.dataclass(frozen=True)
class Request:
    """What a client sent; the headers' names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Any


def say(text: str | None, *, calls=(), finish_reason="stop", **message) -> dict[str, Any]:
    """A reply's choice: `calls` are (name, arguments as they are sent)."""
    message = {"role": "assistant", "content": text, **message}
    if calls:
        message["tool_calls"] = [
            {"id": f"call{place}", "type": "function", "function": {"name": n, "arguments": a}}
            for place, (n, a) in enumerate(calls)
        ]
    return {"index": 0, "message": message, "finish_reason": finish_reason}


class ServerDouble:
    """The server. `with ServerDouble().running() as double:` starts and ends it.

    Attributes:
      url: its base URL.
      answer: the request's body -> text, or a choice from `say`; of a chat.
      embed: one input of the request -> its embedding, as lists of numbers.
      script: misbehaviours, used up by the requests in the order in which they come; "" is none.
      requests: what was asked, in that order.
      headers: sent with each reply, such as Retry-After.
      busiest: the most requests that it had at one time.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] = lambda body: "Hello.",
        *,
        embed: Callable[[Any], Any] = lambda item: [1.0, 0.0],
        model: str = MODEL,
    ):
        self.answer, self.embed, self.model = answer, embed, model
        self.script: collections.deque[str] = collections.deque()
        self.requests: list[Request] = []
        self.headers: dict[str, str] = {}
        self.busiest = self._busy = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Iterator["ServerDouble"]:
        server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def bodies(self, path: str = "/v1/chat/completions") -> list[Any]:
        """Bodies of the requests to `path`."""
        return [request.body for request in self.requests if request.path == path]

    def begin(self, request: Request) -> str | None:
        """Notes a request; the misbehaviour that it meets."""
        with self._lock:
            self.requests.append(request)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            return (self.script.popleft() or None) if self.script else None

    def end(self) -> None:
        with self._lock:
            self._busy -= 1

    def wait(self, seconds: float) -> None:
        """Waits, but not beyond the end of the test."""
        self._ended.wait(seconds)

    def reply(self, request: Request) -> dict[str, Any]:
        """The proper reply."""
        if request.path.endswith("/models"):
            return {"object": "list", "data": [{"id": self.model}]}
        if request.path.endswith("/chat/completions"):
            choice = self.answer(request.body)
            choice = say(choice) if isinstance(choice, str) else choice
            usage = {"prompt_tokens": 11, "completion_tokens": 3}
            return {"model": self.model, "choices": [choice], "usage": usage}
        inputs = request.body.get("input", [request.body.get("messages")])
        name = "data" if request.path.endswith("/pooling") else "embedding"
        data = [{"index": place, name: self.embed(item)} for place, item in enumerate(inputs)]
        return {"model": self.model, "data": data[::-1], "usage": {"total_tokens": 5}}


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request, client_address):
        """Clients that time out hang up: nothing to print."""


def _handler(double: ServerDouble) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._do(None)

        def do_POST(self):
            self._do(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *args):
            pass

        def _do(self, body):
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.path, headers, body)
            trouble = double.begin(request)
            try:
                if trouble is None:
                    self._send(json.dumps(double.reply(request)).encode())
                else:
                    self._misbehave(trouble, request)
            finally:
                double.end()

        def _misbehave(self, trouble, request):
            if trouble in _STATUSES:
                status, error = _STATUSES[trouble]
                key = self.headers.get("Authorization", "").removeprefix("Bearer ")
                return self._send(json.dumps(error).replace("{key}", key).encode(), status)
            if trouble == "hang":
                return double.wait(10)
            if trouble == "hang_up":
                return None
            proper = json.dumps(double.reply(request)).encode()
            if trouble == "drip":
                self._start(200, len(proper))
                for byte in proper:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    double.wait(0.02)
                return None
            if trouble == "half_a_reply":
                self._start(200, len(proper))
                self.wfile.write(proper[: len(proper) // 2])
                return None
            choice = double.answer(request.body) if request.path.endswith("completions") else {}
            choice = say(choice) if isinstance(choice, str) else choice
            wrong = {
                "truncated_json": proper[:-20],
                "html": b"<html><body>502 Bad Gateway</body></html>",
                "list": b"[" + proper + b"]",
                "error_with_200": b'{"error": {"message": "upstream is gone"}}',
                "no_choices": json.dumps({"model": double.model, "choices": []}).encode(),
                "empty": json.dumps({"model": double.model, "choices": [say(" \n")]}).encode(),
                "null": json.dumps({"model": double.model, "choices": [say(None)]}).encode(),
                "wrong_model": json.dumps({**json.loads(proper), "model": "another"}).encode(),
                "stream": b"data: " + proper + b"\n\ndata: [DONE]\n\n",
            }
            return self._send(wrong[trouble])

        def _start(self, status, length):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(length))
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            for name, value in double.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, content, status=200):
            self._start(status, len(content))
            self.wfile.write(content)

    return Handler
