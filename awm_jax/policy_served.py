"""A served model as `Generate`: prompts -> chat messages -> a server -> samples without tokens.

Two forms of tool use on the wire:

* "text", the default, is the format that policies are trained in (Qwen3's): the tools stand in
  the system message, calls in the assistant's text, results in a user message inside of
  <tool_response>, images included. A server whose chat template is Qwen3-VL's renders the very
  prompt that `awm_jax.policy` does, and needs no tool parser.
* "native" is the API's own, for hosted models: a `tools` field, `tool_calls`, messages with the
  role "tool". These hold text alone there, so that pages follow in a user message. A server that
  fails where its tool parser cannot read a call (transformers 5.24's does) makes an error of the
  server of what is the policy's fault, and that rollout is then not scored.
"""

import collections
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from awm_jax import servers
from awm_jax.models import processor
from awm_jax.servers import Server, ServerError
from awm_jax.types import CONTEXT_FULL, Generate, Message, Page, Prompt, Sample

TOOL_FORMS = ("text", "native")
# `Sample.finish_reason` begins so where the server failed; the reason follows.
ERROR = "error: "

_FINISH_REASONS = {"stop": "stop", "tool_calls": "stop", "function_call": "stop"}
_FINISH_REASONS |= {"eos": "stop", "length": "length"}
_CALL = re.compile(r"\s*<tool_call>\n(\{.*?\})\n</tool_call>", re.DOTALL)
_IMAGES_FOLLOW = "The pages follow."
_NO_TOKENS = np.zeros(0, np.int32)
_NO_LOG_PROBS = np.zeros(0, np.float32)

# One wire message, or a part of its content.
Wire = dict[str, Any]
Encode = Callable[[Page], str]


def make_served_generate(
    server: Server,
    *,
    max_tokens: int,
    tools: str = "text",
    max_images: int | None = None,
    extra: Mapping[str, Any] | None = None,
    on_reply: Callable[[Prompt, servers.Reply], None] | None = None,
    policy_version: int = 0,
    image_cache_bytes: int = 128 * 2**20,
) -> Generate:
    """A policy, a reader or a judge that a server plays; any number of prompts at a time.

    Samples have no tokens, and text without thoughts. A prompt that does not fit, by the
    server's word or by `max_images`, gets an empty sample with the finish reason
    "context_full"; one whose request failed for good gets one with a reason that begins with
    `ERROR`, which no part of this package scores.

    Args:
      server: whom to ask.
      max_tokens: of a reply.
      tools: "text" or "native", see above.
      max_images: a prompt with more is not sent; None leaves it to the server.
      extra: further fields of the request, see `servers.chat`.
      on_reply: is given each prompt with its reply, from any thread.
      policy_version: noted in the samples.
      image_cache_bytes: how much the encoded pages may take that are kept for the next prompt.
    """
    if tools not in TOOL_FORMS:
        raise ValueError(f"tools {tools!r}: expected one of {TOOL_FORMS}")
    encode = _Pngs(image_cache_bytes)

    def one(prompt: Prompt, temperature: float) -> Sample:
        pages = tuple(_pages(prompt.messages))
        if max_images is not None and len(pages) > max_images:
            return _sample("", CONTEXT_FULL, pages, policy_version)
        messages, schemas = wire_messages(prompt, encode, tools=tools)
        try:
            reply = servers.chat(
                server,
                messages,
                tools=schemas,
                temperature=temperature,
                max_tokens=max_tokens,
                seed=_seed(prompt.seed),
                extra=extra,
            )
        except ServerError as error:
            full = error.kind == servers.CONTEXT_FULL
            return _sample("", CONTEXT_FULL if full else f"{ERROR}{error}", pages, policy_version)
        if on_reply is not None:
            on_reply(prompt, reply)
        reason = _FINISH_REASONS.get(reply.finish_reason)
        if reason is None:
            return _sample("", f"{ERROR}{reply.finish_reason}", pages, policy_version)
        return _sample(_reply_text(reply), reason, pages, policy_version)

    def generate(prompts: Sequence[Prompt], *, temperature: float) -> list[Sample]:
        return servers.each(
            lambda prompt: one(prompt, temperature), prompts, concurrency=server.concurrency
        )

    return generate


def wire_messages(
    prompt: Prompt, encode: Encode, *, tools: str = "text"
) -> tuple[list[Wire], tuple[Mapping[str, Any], ...]]:
    """The prompt as the API's messages, and the schemas for its `tools` field.

    Text from outside, the policy's own aside, cannot forge the protocol's tokens: see
    `awm_jax.models.processor.escape`.

    Args:
      prompt: samples in it count with their text.
      encode: a page -> its data URI.
      tools: "text" or "native", see above.
    """
    if tools == "native":
        return _native(prompt.messages, encode), prompt.tools
    return _as_text(prompt, encode), ()


def _sample(text, reason, pages, version) -> Sample:
    return Sample(_NO_TOKENS, _NO_TOKENS, _NO_LOG_PROBS, text, reason, pages, version)


def _pages(messages: Iterable[Message | Sample]) -> Iterable[Page]:
    for message in messages:
        if isinstance(message, Message):
            yield from (part for part in message.content if not isinstance(part, str))


def _seed(seed: tuple[int, ...]) -> int | None:
    """31 bits that depend on all of the prompt's integers; some servers take no more."""
    if not seed:
        return None
    digest = hashlib.sha256(",".join(map(str, seed)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _reply_text(reply: servers.Reply) -> str:
    """The reply as the policy's text, with the calls that a tool parser took out put back in."""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": '
        f"{call.arguments.strip() or '{}'}}}\n</tool_call>"
        for call in reply.tool_calls
    ]
    return "\n".join([reply.text, *calls] if reply.text else calls)


def _as_text(prompt: Prompt, encode: Encode) -> list[Wire]:
    """Tools, calls and results as `processor.render_chat` writes them."""
    messages, wire = list(prompt.messages), []
    has_system = messages and isinstance(messages[0], Message) and messages[0].role == "system"
    system = [messages.pop(0)] if has_system else []
    if system or prompt.tools:
        rendered = processor.render_chat(system, prompt.tools, add_generation_prompt=False)
        head, tail = f"{processor.START}system\n", f"{processor.END}\n"
        wire.append({"role": "system", "content": rendered.removeprefix(head).removesuffix(tail)})
    for are_results, run in itertools.groupby(messages, _is_result):
        if are_results:
            parts = []
            for place, message in enumerate(run):
                parts += ["\n" * bool(place) + "<tool_response>\n"]
                parts += [*_escaped(message.content), "\n</tool_response>"]
            wire.append({"role": "user", "content": _content(parts, encode)})
            continue
        for message in run:
            if isinstance(message, Sample):
                wire.append({"role": "assistant", "content": message.text})
                continue
            parts = _escaped(message.content)
            calls = [processor.render_call(call.name, call.arguments) for call in message.calls]
            if calls:
                parts.append("\n" * bool(parts) + "\n".join(calls))
            wire.append({"role": message.role, "content": _content(parts, encode)})
    return wire


def _native(messages: Sequence[Message | Sample], encode: Encode) -> list[Wire]:
    """Calls with ids, and after each message with calls one result an id, as the API demands."""
    wire, ids = [], itertools.count()
    waiting: list[str] = []
    for are_results, run in itertools.groupby(messages, _is_result):
        if are_results:
            wire += _results(list(run), waiting, encode)
            waiting = []
            continue
        for message in run:
            # The API refuses calls without results.
            wire += _results([], waiting, encode)
            if isinstance(message, Sample):
                text, calls = _calls_of(message.text)
            else:
                text = _content(_escaped(message.content), encode)
                calls = [(call.name, json.dumps(dict(call.arguments))) for call in message.calls]
            waiting = [f"call_{next(ids)}" for _ in calls]
            role = "assistant" if isinstance(message, Sample) else message.role
            wire.append({"role": role, "content": text or ("" if not calls else None)})
            if calls:
                wire[-1]["tool_calls"] = [
                    {"id": id, "type": "function", "function": {"name": name, "arguments": given}}
                    for id, (name, given) in zip(waiting, calls, strict=True)
                ]
    return wire + _results([], waiting, encode)


def _results(results: Sequence[Message], ids: Sequence[str], encode: Encode) -> list[Wire]:
    """One message an id; what has images, or no id left, stands in a user message after them."""
    wire, after = [], []
    for place, id in enumerate(ids):
        parts = _escaped(results[place].content) if place < len(results) else []
        shows = any(not isinstance(part, str) for part in parts)
        text = _IMAGES_FOLLOW if shows else _content(parts, encode)
        wire.append({"role": "tool", "tool_call_id": id, "content": text})
        after += parts if shows else []
    for result in results[len(ids) :]:
        after += ["\n" * bool(after), *_escaped(result.content)]
    if after:
        wire.append({"role": "user", "content": _content(after, encode)})
    return wire


def _calls_of(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The inverse of `_reply_text`; calls that cannot be read stay in the text."""
    calls = []
    for match in _CALL.finditer(text):
        try:
            call = json.loads(match[1])
            calls.append((str(call["name"]), json.dumps(call["arguments"])))
        except (KeyError, ValueError):
            return text, []
    return _CALL.sub("", text), calls


def _is_result(message: Message | Sample) -> bool:
    return isinstance(message, Message) and message.role == "tool"


def _escaped(content: Sequence[str | Page]) -> list[str | Page]:
    """The parts with strings that stand together as one: a token could stand across two."""
    parts: list[str | Page] = []
    for is_text, group in itertools.groupby(content, lambda part: isinstance(part, str)):
        run = list(group)
        parts += [processor.escape("".join(run))] if is_text else run
    return parts


def _content(parts: Sequence[str | Page], encode: Encode) -> str | list[Wire]:
    """A string where there is no page, which every server takes, else a list of parts."""
    if all(isinstance(part, str) for part in parts):
        return "".join(parts)
    wire = []
    for is_text, run in itertools.groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            wire.append({"type": "text", "text": "".join(run)})
        else:
            wire += [{"type": "image_url", "image_url": {"url": encode(page)}} for page in run]
    return wire


def page_uri(page: Page) -> str:
    """A page as a PNG in a data URI."""
    try:
        return servers.png_uri(page.image)
    except ValueError as error:
        raise ValueError(f"page {page.number} of {page.document}: {error}") from error


class _Pngs:
    """`page_uri` that keeps what was shown last, for any number of threads."""

    def __init__(self, most_bytes: int):
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, page: Page) -> str:
        with self._lock:
            if page.digest in self._kept:
                self._kept.move_to_end(page.digest)
                return self._kept[page.digest]
        uri = page_uri(page)
        with self._lock:
            if page.digest not in self._kept:
                self._kept[page.digest] = uri
                self._bytes += len(uri)
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return uri
