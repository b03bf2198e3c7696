"""Text of the policy -> tool calls, in the chat format of Qwen3 (Hermes).

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. What small models get wrong
and can be read without guessing is read: a missing closing tag, missing closing braces, quotes
of Python, raw line ends in a string, arguments given as a JSON string, text around a call.
Everything else becomes an error that tells the policy what to do. JSON is parsed, nothing is
evaluated, and no text raises.
"""

import bisect
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from awm_jax.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile("</?tool_call>")

# A message that is one bare call: the opening tag is missing, a code fence may stand there.
_BARE_CALL = re.compile(r"\s*(?:```\w*\s*)?\{")
# Strings run to their quote or to the end of the text, so that every match is found in one pass.
_TOKEN = re.compile(
    r""" (?P<double>"(?:[^"\\]|\\.)*+(?P<double_end>"|\\?\Z))
      | (?P<single>'(?:[^'\\]|\\.)*+(?P<single_end>'|\\?\Z))
      | (?P<bracket>[{}\[\]])
      | (?P<trailing_comma>,(?=\s*[}\]]))
      | \b(?P<constant>True|False|None)\b""",
    re.DOTALL | re.VERBOSE,
)
_CLOSER = {"{": "}", "[": "]"}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in "\"'\\/\n"}
_PAGE_NUMBER = re.compile(r"\[?\s*(?:pages?|p\.?)?\s*([0-9]{1,9})(?:\.0*)?\s*\]?", re.IGNORECASE)
_LARGEST_PAGE_NUMBER = 999_999_999


@dataclasses.dataclass(frozen=True)
class ParsedMessage:
    """An assistant message, read.

    Attributes:
      calls: tool calls in the order in which they stand in the message.
      errors: what could not be read, for the policy; there is one where there is no call.
      content: the text around the calls, without thoughts.
    """

    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]
    content: str


def without_thoughts(text: str) -> str:
    """`text` without `<think>` blocks, those included that the prompt opened or that never end."""
    *closed, last = text.split("</think>")
    spoken = [part.partition("<think>")[0] for part in closed if "<think>" in part]
    return "".join(spoken) + last.partition("<think>")[0]


def parse_calls(text: str) -> ParsedMessage:
    """The tool calls of an assistant message; raises for no string."""
    text = without_thoughts(text)
    if OPEN not in text and _BARE_CALL.match(text):
        text = OPEN + text
    tags = [match.start() for match in _TAG.finditer(text)]
    calls: list[ToolCall] = []
    errors: list[str] = []
    content = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        content.append(text[position:start])
        found, position = _parse_block(text, start + len(OPEN), tags)
        for item in found:
            (errors if isinstance(item, str) else calls).append(item)
    content.append(text[position:])
    if not calls and not errors:
        errors.append("No tool call found. Call a tool.")
    text_around = " ".join(part.strip() for part in content if part.strip())
    text_around = text_around.replace(CLOSE, "").strip()
    # A message of a thousand empty calls is told so once.
    return ParsedMessage(tuple(calls), tuple(dict.fromkeys(errors)), text_around)


def checked_call(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> ToolCall | str:
    """`call` with exactly the arguments of its tool's schema, or what is wrong with it.

    Numbers are taken for strings, and "3", "page 3" or 3.0 for an integer. Arguments that the
    schema does not have are dropped.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if call.name not in schemas:
        return f"No tool is named {_shorten(call.name)}. Use {', '.join(schemas)}."
    properties = schemas[call.name]["properties"]
    arguments = {}
    for name in schemas[call.name]["required"]:
        if name not in call.arguments:
            return f"{call.name} needs {name}."
        if properties[name]["type"] == "integer":
            value, expected = _integer(call.arguments[name]), "one whole number"
        else:
            value, expected = _text(call.arguments[name]), "a text that is not empty"
        if value is None:
            return f"{name} must be {expected}, found {_shorten(call.arguments[name])}."
        arguments[name] = value
    return ToolCall(call.name, arguments)


def _parse_block(text: str, start: int, tags: Sequence[int]) -> tuple[list[ToolCall | str], int]:
    """Calls and errors of the block that begins at `start`, and where the text after it begins.

    `tags` are the places of all tags of `text`, in order.
    """
    found: list[ToolCall | str] = []
    position = start
    while True:
        # Searched anew after each object: a tag inside a JSON string does not end the block.
        following = bisect.bisect_left(tags, position)
        stop = tags[following] if following < len(tags) else len(text)
        brace = text.find("{", position, stop)
        if brace < 0:
            break
        try:
            value, position = _decode(text, brace, stop)
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, _Unreadable) else "it is no JSON object"
            found.append(f"A tool call cannot be read: {why}. Write it again.")
            position = stop
            break
        found.append(_call(value))
    if not found:
        found.append("A tool call is empty. Write its name and arguments as JSON.")
    return found, stop + len(CLOSE) if text.startswith(CLOSE, stop) else stop


class _Unreadable(ValueError):
    """Why a text is not read as JSON, in words for the policy."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Unreadable(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, start: int, stop: int) -> tuple[Any, int]:
    """The object at `text[start]` and where it ends; repaired within `stop` where it has to be.

    Raises:
      ValueError, RecursionError: it cannot be read.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        repaired, length = _repair(text[start:stop])
    try:
        return _DECODER.raw_decode(repaired)[0], start + length
    except json.JSONDecodeError as error:
        raise _Unreadable(f"JSON, {error.msg}") from error


def _repair(text: str) -> tuple[str, int]:
    """The first object of `text` as JSON, and how much of `text` it took.

    Rewrites strings and constants of Python, drops commas before a bracket and adds the closing
    brackets that are missing at the end. A string that does not end is not completed: half an
    argument is not what the policy meant.
    """
    pieces, closers = [], []
    position = 0
    for match in _TOKEN.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        token = match.group()
        if match["double"] or match["single"]:
            if (match["double_end"] or match["single_end"]) != token[0] or len(token) == 1:
                raise _Unreadable("a string does not end")
            pieces.append(json.dumps(_ESCAPE.sub(_unescape, token[1:-1])))
        elif match["constant"]:
            pieces.append(_CONSTANTS[token])
        elif match["bracket"] and token in _CLOSER:
            closers.append(_CLOSER[token])
            pieces.append(token)
        elif match["bracket"]:
            if not closers or closers.pop() != token:
                raise _Unreadable("its brackets do not match")
            pieces.append(token)
            if not closers:
                return "".join(pieces), position
    pieces.append(text[position:])
    return "".join(pieces + closers[::-1]), len(text)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, match[0])


def _call(value: Mapping[str, Any]) -> ToolCall | str:
    name = value.get("name")
    if not isinstance(name, str):
        return 'A tool call needs "name" and "arguments".'
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _decode(arguments, 0, len(arguments))[0]
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return f"The arguments of {_shorten(name)} must be a JSON object."
    return ToolCall(name.strip(), arguments)


def _text(value: Any) -> str | None:
    """A string that can be encoded and is not empty, from a string, a number or a flat list."""
    if not isinstance(value, str):
        items = value if isinstance(value, list) else [value]
        if not items or not all(isinstance(item, str | int | float) for item in items):
            return None
        value = json.dumps(value, ensure_ascii=False)
    # Pairs of surrogates become their character, single ones U+FFFD.
    value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.strip() or None


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        match = _PAGE_NUMBER.fullmatch(value.strip())
        return int(match[1]) if match else None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or abs(value) > _LARGEST_PAGE_NUMBER:
        return None
    return int(value)


def _shorten(value: Any) -> str:
    """`value` in a few printable characters."""
    if isinstance(value, str | int | float):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
