"""The one client for servers with the OpenAI API: vLLM, SGLang, a hosted one.

Requests are tried again where that can help: time-outs, lost connections, 408, 409, 425, 429 and
5xx, replies that are cut off, no JSON, or empty. What stays broken is a `ServerError`, which the
functions for many requests give back as data. A reply by another model is an error, whatever it
says. Nothing is streamed to the caller.

A server's key is read from the environment at each request. It goes into the request's header and
nowhere else: `Server` holds the variable's name, and errors and logs have the key cut out.
"""

import atexit
import base64
import concurrent.futures
import contextlib
import dataclasses
import datetime
import email.utils
import functools
import io
import json
import logging
import math
import os
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import openai
from PIL import Image

# What `ServerError.kind` and `Failure.kind` can be.
TIMEOUT = "timeout"
CONNECTION = "connection"
STATUS = "status"
MALFORMED = "malformed"
EMPTY = "empty"
WRONG_MODEL = "wrong_model"
CONTEXT_FULL = "context_full"

_RETRIED_STATUSES = (408, 409, 425, 429)
# However long a server asks to be left alone, and however often it failed.
_LONGEST_WAIT_S = 60.0
_CONNECT_S = 10.0
# Asks the client for a reply that is read piece by piece, so that the time-out holds for the
# whole of it: a server that sends a byte now and then would otherwise never time out.
_READ_IN_PIECES = {"X-Stainless-Raw-Response": "stream"}
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
# What hosted services append to a model's name: -2024-08-06, -20240806, -0613.
_VERSION = re.compile(r"-(\d{4}|\d{8}|\d{4}-\d{2}-\d{2})")
_NOT_FITTING = re.compile(
    r"context[ _](?:length|size|window)|maximum model length|max_model_len", re.IGNORECASE
)
_LONGEST_DETAIL = 300

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a model is served, and how patiently it is asked.

    Attributes:
      base_url: up to and with the version, such as "http://localhost:8000/v1".
      model: as the server calls it.
      key_variable: the environment variable that holds the key, None where none is needed. Not
        the key itself.
      timeout_s: seconds that one attempt may take.
      retries: attempts after the first.
      backoff_s: seconds to wait before the second attempt, twice that before the third and so
        on, at random between half and all of it. A server's Retry-After is kept to, up to 60 s.
      concurrency: requests in flight at one time, from all threads together.
      requests_per_minute: at most, None for no limit.
      reported_as: other names by which the server may call the model in its replies.
    """

    base_url: str
    model: str
    key_variable: str | None = None
    timeout_s: float = 120.0
    retries: int = 4
    backoff_s: float = 1.0
    concurrency: int = 16
    requests_per_minute: float | None = None
    reported_as: tuple[str, ...] = ()

    def __post_init__(self):
        url = urllib.parse.urlsplit(self.base_url)
        if url.username is not None or url.password is not None or url.query or url.fragment:
            raise ValueError(
                f"a server at {url.hostname}: expected a URL without user, password, query and "
                "fragment; keys are read from the environment"
            )
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"server {self.base_url!r}: expected http://HOST or https://HOST")
        if not self.model:
            raise ValueError(f"{self.base_url}: expected the name of a model, found none")
        if self.key_variable is not None and not _VARIABLE_NAME.fullmatch(self.key_variable):
            raise ValueError(
                f"{self.base_url}: key_variable is not the name of an environment variable, such "
                "as OPENAI_API_KEY; it is not shown here, lest it is a key"
            )
        if min(self.timeout_s, self.concurrency, self.requests_per_minute or 1) <= 0:
            raise ValueError(f"expected a time-out, concurrency and rate above 0: {self}")
        if self.retries < 0 or self.backoff_s < 0:
            raise ValueError(f"expected no negative retries and back-off: {self}")

    def __str__(self) -> str:
        return f"{self.model} at {self.base_url}"


class ServerError(OSError):
    """A request that failed for good.

    Attributes:
      kind: one of the kinds at the top of this module. Of `CONTEXT_FULL` the request is to
        blame, of all others the server or the way to it.
    """

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Failure:
    """A `ServerError` as data: one request of many that failed for good."""

    reason: str
    kind: str


class Malformed(ValueError):
    """A reply that cannot be read; raised by the readers of `post`, which then asks again."""

    def __init__(self, message: str, kind: str = MALFORMED):
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call as the server reports it: `arguments` is what should be a JSON object."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens as the server counts them, 0 where it does not."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Reply:
    """A chat completion.

    Attributes:
      text: what was said, without thoughts; may be empty beside a call, or where the budget was
        spent on thoughts.
      thoughts: what stood in <think> tags, or what the server's reasoning parser kept apart.
      tool_calls: calls that the server's tool parser found; none where it has no such parser.
      finish_reason: the server's word: "stop", "length", "tool_calls", "content_filter".
      usage: tokens of the prompt and of the reply.
      seconds: of the attempt that succeeded.
    """

    text: str
    thoughts: str
    tool_calls: tuple[Call, ...]
    finish_reason: str
    usage: Usage
    seconds: float


@dataclasses.dataclass(frozen=True)
class Chat:
    """One request of `chat_many`; the fields are as for `chat`."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    seed: int | None = None


def chat(
    server: Server,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    temperature: float,
    max_tokens: int,
    seed: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Reply:
    """One chat completion.

    Args:
      server: whom to ask.
      messages: as the API has them: dicts with "role" and "content".
      tools: JSON schemas, left out where empty: some servers refuse tools that they cannot parse.
      temperature: of sampling.
      max_tokens: of the reply.
      seed: for servers that take one.
      extra: further fields of the request, such as `{"chat_template_kwargs": {"enable_thinking":
        False}}`. They replace the fields above; None takes a field out, for services that
        refuse it.

    Raises:
      ServerError: it failed for good.
      ValueError: the key's variable is not set.
    """
    body = {
        "model": server.model,
        "messages": list(messages),
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        "tools": list(tools) or None,
        "stream": False,
        **(extra or {}),
    }
    body = {name: value for name, value in body.items() if value is not None}
    reply, seconds = post(server, "chat/completions", body, read=_read_chat)
    return dataclasses.replace(reply, seconds=seconds)


def chat_many(
    server: Server,
    chats: Sequence[Chat],
    *,
    temperature: float,
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
) -> list[Reply | Failure]:
    """One chat completion each, `server.concurrency` at a time, in the order of `chats`.

    What fails for good is a `Failure` in its place and does not touch the others.

    Raises:
      ValueError: the key's variable is not set.
    """

    def one(request: Chat) -> Reply | Failure:
        try:
            return chat(
                server,
                request.messages,
                tools=request.tools,
                temperature=temperature,
                max_tokens=max_tokens,
                seed=request.seed,
                extra=extra,
            )
        except ServerError as error:
            return Failure(str(error), error.kind)

    return each(one, chats, concurrency=server.concurrency)


def each(
    function: Callable[[Any], Result], items: Sequence[Any], *, concurrency: int
) -> list[Result]:
    """`function` of each item, in order, in threads; the first exception ends it all."""
    if len(items) <= 1 or concurrency == 1:
        return [function(item) for item in items]
    pool = concurrent.futures.ThreadPoolExecutor(min(concurrency, len(items)))
    try:
        return list(pool.map(function, items))
    finally:
        # After an interrupt only what is in flight is waited for.
        pool.shutdown(wait=True, cancel_futures=True)


def embed(
    server: Server,
    inputs: Sequence[str | Mapping[str, Any]],
    *,
    extra: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:
    """Embeddings of the inputs, in order, from one request to `/embeddings`.

    Args:
      server: whom to ask.
      inputs: texts, or what else the server takes, such as Jina's `{"image": ...}`.
      extra: further fields of the request.

    Returns:
      One float32 array an input: `[size]`, or `[token, size]` where the server gives one vector
      a token.

    Raises:
      ServerError: it failed for good; a reply with another number of vectors, with vectors of
        several sizes or with values that are not finite counts as malformed.
      ValueError: the key's variable is not set.
    """
    if not inputs:
        return []
    body = {"model": server.model, "input": list(inputs), **(extra or {})}
    read = functools.partial(read_embeddings, count=len(inputs))
    return post(server, "embeddings", body, read=read)[0]


def read_embeddings(
    reply: Mapping[str, Any], *, count: int, size: int | None = None
) -> list[np.ndarray]:
    """The arrays in a reply of `/embeddings` or of vLLM's `/pooling`, in the inputs' order.

    Args:
      reply: the reply's JSON object.
      count: how many there must be.
      size: of a vector, needed where a reply in base64 holds several.

    Raises:
      Malformed: anything else is found.
    """
    items = reply.get("data")
    if not isinstance(items, list) or len(items) != count:
        found = len(items) if isinstance(items, list) else type(items).__name__
        raise Malformed(f"expected {count} embeddings, found {found}")
    try:
        places = [item.get("index", place) for place, item in enumerate(items)]
        if sorted(places) != list(range(count)):
            raise Malformed(f"expected the indices of {count} embeddings, found {places}")
        ordered = [item for _, item in sorted(zip(places, items, strict=True), key=lambda p: p[0])]
        arrays = [_array(item, size) for item in ordered]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Malformed(f"embeddings that cannot be read: {error}") from error
    sizes = sorted({array.shape[-1] for array in arrays})
    if len(sizes) != 1 or not sizes[0] or any(array.ndim not in (1, 2) for array in arrays):
        raise Malformed(f"expected vectors of one size, found {[a.shape for a in arrays][:8]}")
    if not all(array.size and np.isfinite(array).all() for array in arrays):
        raise Malformed("an embedding that is empty or not finite")
    return arrays


def png_uri(image: np.ndarray) -> str:
    """An image `[height, width, 3]` uint8 as a PNG in a data URI, losslessly.

    Raises:
      ValueError: it has no pixels.
    """
    if not image.size:
        raise ValueError(f"an image of shape {image.shape} has no pixels to be sent")
    data = io.BytesIO()
    # The fastest level: a local server does not mind the size.
    Image.fromarray(image).save(data, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def served_models(server: Server) -> list[str]:
    """The names of the models that the server says it has.

    Raises:
      ServerError: it failed for good.
      ValueError: the key's variable is not set.
    """

    def read(reply: Mapping[str, Any]) -> list[str]:
        try:
            return [str(model["id"]) for model in reply["data"]]
        except (KeyError, TypeError) as error:
            raise Malformed("expected a list of models") from error

    return post(server, "models", None, read=read)[0]


def post(
    server: Server,
    path: str,
    body: Mapping[str, Any] | None,
    *,
    read: Callable[[Mapping[str, Any]], Result],
) -> tuple[Result, float]:
    """What `read` makes of the server's reply, and the seconds of the attempt that succeeded.

    Args:
      server: whom to ask.
      path: relative to the server's base URL, or to its host where it begins with "/".
      body: the request's JSON object; None for a GET.
      read: the reply's JSON object -> result; raises `Malformed` where it cannot.

    Raises:
      ServerError: it failed for good.
      ValueError: the key's variable is not set, or the body is not JSON.
    """
    key = _key(server)
    throttle = _throttle(server)
    attempts = server.retries + 1
    for attempt in range(1, attempts + 1):
        throttle.wait()
        with throttle.slots:
            start = time.monotonic()
            try:
                reply = _attempt(server, path, body, key)
                _check_model(server, reply)
                return read(reply), time.monotonic() - start
            except _AttemptFailed as error:
                failed = error
            except Malformed as error:
                failed = _AttemptFailed(str(error), error.kind)
        detail = _without_key(str(failed), key)
        wait = _wait_s(server, attempt, failed.retry_after_s)
        if failed.retry_after_s is not None:
            throttle.pause(wait)
        if not failed.retried or attempt == attempts:
            # `from None`: what the client raises holds the request with its headers.
            tries = f" (attempt {attempt} of {attempts})" if attempt > 1 else ""
            raise ServerError(f"{server}: {detail}{tries}", failed.kind) from None
        _log.info("%s: %s; attempt %d of %d in %.1f s", server, detail, attempt + 1, attempts, wait)
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


class _AttemptFailed(Exception):
    """One attempt failed; `retried` tells whether another may fare better."""

    def __init__(self, message, kind, *, retried=True, retry_after_s=None):
        super().__init__(message)
        self.kind = kind
        self.retried = retried
        self.retry_after_s = retry_after_s


class _Throttle:
    """What the threads that ask one server share: slots, and the time of the next request."""

    def __init__(self, server: Server):
        self.slots = threading.BoundedSemaphore(server.concurrency)
        per_minute = server.requests_per_minute
        self._interval_s = 0.0 if per_minute is None else 60.0 / per_minute
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + self._interval_s
        if mine > now:
            time.sleep(mine - now)

    def pause(self, seconds: float) -> None:
        """Nobody asks for so long."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@functools.cache
def _throttle(server: Server) -> _Throttle:
    return _Throttle(server)


@functools.cache
def _any_client() -> openai.OpenAI:
    """Holds the connections to all servers, for all threads, and no key."""
    client = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0)
    atexit.register(client.close)
    return client


@functools.cache
def _client(base_url: str) -> openai.OpenAI:
    return _any_client().with_options(base_url=base_url)


def _key(server: Server) -> str | None:
    if server.key_variable is None:
        return None
    key = os.environ.get(server.key_variable, "").strip()
    if not key:
        raise ValueError(
            f"{server.base_url}: its key is read from the environment variable "
            f"{server.key_variable}, which is not set"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"{server.key_variable}: expected a key of printable ASCII characters")
    return key


def _without_key(text: str, key: str | None) -> str:
    return text if key is None else text.replace(key, "[key]")


def _attempt(server: Server, path: str, body: Mapping | None, key: str | None) -> dict[str, Any]:
    """The JSON object that the server replies; `_AttemptFailed` for everything else."""
    start = time.monotonic()
    client = _client(server.base_url)
    if path.startswith("/"):
        path = urllib.parse.urljoin(server.base_url, path)
    headers = dict(_READ_IN_PIECES)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    options = {
        "headers": headers,
        "timeout": openai.Timeout(server.timeout_s, connect=min(server.timeout_s, _CONNECT_S)),
        # Pages and keys go to the host that was named and to no other.
        "follow_redirects": False,
    }
    try:
        if body is None:
            response = client.get(path, cast_to=object, options=options)
        else:
            response = client.post(path, cast_to=object, body=_well_formed(body), options=options)
        with contextlib.closing(response):
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() - start > server.timeout_s:
                    raise _AttemptFailed(f"no whole reply in {server.timeout_s:g} s", TIMEOUT)
    except (_AttemptFailed, TypeError, ValueError):
        raise
    except openai.APIStatusError as error:
        raise _status_failure(error) from error
    except Exception as error:
        # What the transport raises, which is httpx or its successor by the client's version; the
        # client passes on as it is what comes up while a reply is read in pieces.
        raise _transport_failure(server, error) from error
    try:
        reply = json.loads(content)
    except ValueError as error:
        start_of_it = _one_line(content[:80].decode("utf-8", "replace"))
        raise _AttemptFailed(
            f"expected JSON, found {len(content)} bytes that begin {start_of_it!r} ({error})",
            MALFORMED,
        ) from error
    if not isinstance(reply, dict):
        raise _AttemptFailed(f"expected an object, found {type(reply).__name__}", MALFORMED)
    if reply.get("error"):
        # Some proxies report an error with status 200.
        raise _AttemptFailed(f"the reply is an error: {_detail(reply)}", STATUS)
    return reply


def _status_failure(error: openai.APIStatusError) -> _AttemptFailed:
    status, detail = error.status_code, _detail(error.body)
    if status in (400, 413, 422) and (
        _NOT_FITTING.search(detail) or "context_length" in str(error.code)
    ):
        return _AttemptFailed(f"HTTP {status}: {detail}", CONTEXT_FULL, retried=False)
    retried = status in _RETRIED_STATUSES or status >= 500
    if error.code == "insufficient_quota":
        retried = False
    hint = ""
    if status == 404:
        hint = "; is the model's name right, and does the URL end in the version, such as /v1?"
    elif 300 <= status < 400:
        hint = f"; it points to {error.response.headers.get('location')!r}: name that"
    return _AttemptFailed(
        f"HTTP {status}: {detail}{hint}",
        STATUS,
        retried=retried,
        retry_after_s=_retry_after_s(error.response.headers),
    )


def _transport_failure(server: Server, error: Exception) -> _AttemptFailed:
    if isinstance(error, openai.APITimeoutError) or "Timeout" in type(error).__name__:
        return _AttemptFailed(f"no reply in {server.timeout_s:g} s", TIMEOUT)
    cause = error.__cause__ or error
    return _AttemptFailed(f"{type(cause).__name__}: {_one_line(str(cause))}", CONNECTION)


def _detail(body: object) -> str:
    """What an error's body says, in one line."""
    found = body
    for name in ("error", "message", "detail"):
        if isinstance(found, Mapping) and found.get(name):
            found = found[name]
    if not found:
        return "no explanation"
    return _one_line(found if isinstance(found, str) else json.dumps(found, default=str))


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "..."


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks for, given as such or as a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=datetime.UTC)
        seconds = (date - datetime.datetime.now(datetime.UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _wait_s(server: Server, attempt: int, retry_after_s: float | None) -> float:
    # Random, so that the requests that failed together do not come back together.
    backoff = server.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
    return min(max(backoff, retry_after_s or 0.0), _LONGEST_WAIT_S)


def _well_formed(value: Any) -> Any:
    """`value` with lone surrogates, which damaged files hold and UTF-8 does not, replaced."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_well_formed(name): _well_formed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in value]
    return value


def _check_model(server: Server, reply: Mapping[str, Any]) -> None:
    """Raises where the reply says that another model made it; not all servers say."""
    found = reply.get("model")
    if not found or found in (server.model, *server.reported_as):
        return
    start, version = str(found)[: len(server.model)], str(found)[len(server.model) :]
    if start == server.model and _VERSION.fullmatch(version):
        return
    raise _AttemptFailed(
        f"asked for model {server.model!r}, the reply is by {found!r}", WRONG_MODEL, retried=False
    )


def _read_chat(reply: Mapping[str, Any]) -> Reply:
    """The first choice of a chat completion; the seconds are the caller's to fill in."""
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        said = _text(message.get("content")) or _text(message.get("refusal"))
        calls = tuple(
            Call(
                str(call["function"]["name"]),
                arguments
                if isinstance(arguments := call["function"]["arguments"], str)
                else json.dumps(arguments),
            )
            for call in message.get("tool_calls") or ()
        )
        apart = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
        finish_reason = str(choice.get("finish_reason") or "stop")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise Malformed(f"no chat completion: {type(error).__name__}: {error}") from error
    text, thoughts = _split_thoughts(said)
    if not text.strip() and not calls and finish_reason not in ("length", "content_filter"):
        beside = f", beside {len(apart or thoughts)} characters of thoughts" * bool(
            apart or thoughts
        )
        raise Malformed(f"the reply is empty (it ended with {finish_reason!r}){beside}", EMPTY)
    return Reply(text, apart or thoughts, calls, finish_reason, _read_usage(reply), 0.0)


def _text(content: object) -> str:
    """Content as text: a string, a list of text parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def _split_thoughts(text: str) -> tuple[str, str]:
    """What stands outside and inside of <think> tags, those included that the prompt opened
    or that never end."""
    if "<think>" not in text and "</think>" not in text:
        return text, ""
    said, thought = [], []
    *closed, last = text.split("</think>")
    for part in closed:
        before, opened, inside = part.partition("<think>")
        said.append(before if opened else "")
        thought.append(inside if opened else before)
    before, _, inside = last.partition("<think>")
    return ("".join(said) + before).strip(), "\n".join([*thought, inside]).strip()


def _read_usage(reply: Mapping[str, Any]) -> Usage:
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return Usage()
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(count if isinstance(count, int) else 0 for count in counts))


def _array(item: Mapping[str, Any], size: int | None) -> np.ndarray:
    """The array of one item: "embedding" is usual, "embeddings" Jina's, "data" vLLM's pooling."""
    [name] = [name for name in ("embedding", "embeddings", "data") if name in item]
    values = item[name]
    if isinstance(values, str):
        array = np.frombuffer(base64.b64decode(values, validate=True), "<f4").astype(np.float32)
        return array if size is None else array.reshape(-1, size)
    return np.asarray(values, np.float32)
