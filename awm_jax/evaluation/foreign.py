"""Records of any agent: JSON lines or one JSON list -> trajectories that can be judged.

A record needs a question, a gold answer, a final answer and a memory. They are looked for under
the names that agents' logs use (`NAMES`), at the top level and one level down, and in a list of
chat messages (OpenAI's layout, the precursor's of the paper, verifiers' prompt and completion).
A record that cannot be read is given back with its line number and what was found in it.

    {"question": "...", "gold": "...", "final_answer": "...", "memory": "text or findings"}
"""

import ast
import dataclasses
import difflib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from awm_jax.agent import protocol, records
from awm_jax.types import (
    ANSWERED,
    STATUSES,
    TOOL_ERROR,
    Finding,
    Memory,
    Question,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

# The names under which each field is looked for; of several, the first one counts. "answer" is
# the gold answer beside a final one, and the final answer beside a gold one.
NAMES = {
    "question": ("question", "query", "problem", "input"),
    "gold": (
        "gold",
        "gold_answer",
        "ground_truth",
        "reference_answer",
        "reference",
        "target",
        "expected",
        "label",
    ),
    "final": (
        "final_answer",
        "prediction",
        "predicted_answer",
        "pred",
        "model_answer",
        "response",
        "output",
        "generated_answer",
    ),
    "memory": (
        "memory",
        "findings",
        "notes",
        "working_memory",
        "terminal_memory",
        "final_memory",
        "search_memory",
        "scratchpad",
    ),
    "memory_answer": ("memory_answer", "memory_only_answer", "reader_answer"),
    "messages": ("messages", "conversation", "trajectory", "completion"),
    "id": ("id", "question_id", "qid", "uid", "example_id", "index"),
    "document": ("document", "doc_id", "doc_name", "document_name", "doc_no", "file"),
    "pages": ("evidence_pages", "gold_pages"),
    "sources": ("evidence_sources",),
    "format": ("answer_format",),
    "status": ("status", "stop_condition"),
    "error": ("error",),
    "rollout": ("rollout", "sample", "attempt"),
}
_NESTS = ("task", "info", "extra_info", "reward_model", "metadata", "doc")
_TEXT_NAMES = ("text", "finding", "content", "note", "relevant_information", "summary", "fact")
_PAGE_NAMES = ("source_page", "page", "page_number", "page_num", "pages_visited", "pages")
_WRITES_MEMORY = re.compile(
    r"(?:update|add|append|save|write|store|insert|take|record|create).*(?:memory|note|finding)"
    r"|(?:memory|note)s?_(?:update|add|append|save|write|store|insert)",
    re.IGNORECASE,
)
_GIVES_ANSWER = re.compile(r"(?:final_?|submit_?|give_?)?answer|submit|finish", re.IGNORECASE)
_PAGE_MARK = re.compile(
    r"\s*(?:[-*\u2022]|\d+[.)])?\s*[\[(]?\s*p(?:ages?|\.)?\s*(\d{1,6})\s*[\])]?\s*[:.\u2013-]*\s*",
    re.IGNORECASE,
)
_FORMATS = {"int": "Int", "integer": "Int", "float": "Float", "str": "Str", "string": "Str"}
_FORMATS |= {"list": "List", "none": "None"}
MMLONGBENCH_FORMATS = ("Int", "Float", "Str", "List", "None")
_LONGEST_SHOWN = 120


@dataclasses.dataclass(frozen=True)
class GivenMemory(Memory):
    """A memory that the reader sees as its owner wrote it.

    Attributes:
      given: that text; the findings, page 0 where none is cited, are for display and audits.
    """

    given: str = ""

    @property
    def text(self) -> str:
        return self.given if self.given.strip() else "(empty)"


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One record that could be read.

    Attributes:
      line: its 1-based line, or its place in the list.
      trajectory: what was done, as far as the record says.
      memory_answer: what a reader made of the memory before, where the record says; else None.
      verdict: the judgement that the record already has, where it is one of ours.
    """

    line: int
    trajectory: Trajectory
    memory_answer: str | None = None
    verdict: Verdict | None = None


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A record that could not be read: its line, what was found, and the raw text."""

    line: int
    found: str
    raw: str


def load(
    path: str | pathlib.Path, *, answer_formats: Sequence[str] = MMLONGBENCH_FORMATS
) -> tuple[list[Entry], list[Unreadable]]:
    """All records of a file, in order; each is in one of the two lists.

    The rollouts of one question, told by equal ids, are numbered in the order in which they come.

    Args:
      path: JSON lines, or one JSON list.
      answer_formats: what the scorer calls integers, floats, strings, lists and no answer.

    Raises:
      ValueError: the file cannot be opened, or it holds no record at all.
    """
    path = pathlib.Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    entries: list[Entry] = []
    unreadable: list[Unreadable] = []
    rollouts: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for line, raw in _records(content):
        try:
            record = raw if isinstance(raw, dict) else _object(raw)
            found = entry(record, line, answer_formats=answer_formats)
            entries.append(_numbered(found, rollouts))
        except ValueError as error:
            text = json.dumps(raw) if isinstance(raw, dict) else raw.decode("utf-8", "replace")
            unreadable.append(Unreadable(line, str(error), text))
    if not entries and not unreadable:
        raise ValueError(f"{path}: found no record, expected one JSON object a line")
    return entries, unreadable


def _records(content: bytes) -> list[tuple[int, bytes | dict]]:
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content.lstrip()[:1] == b"[":
        try:
            items = json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list):
            return [
                (place, item if isinstance(item, dict) else json.dumps(item).encode())
                for place, item in enumerate(items, start=1)
            ]
    # Split at line feeds only: texts hold other line separators as they are.
    lines = enumerate(content.split(b"\n"), start=1)
    return [(number, line) for number, line in lines if line.strip()]


def _object(line: bytes) -> dict:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {line[error.start]:#04x} at {error.start}") from error
    try:
        value = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 12) : error.pos + 12].strip()
        raise ValueError(
            f"not JSON: {error.msg} at column {error.colno}, near {_short(near)}"
        ) from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"found {_kind(value)}, expected an object with a question and so on")
    return value


def _no_number(constant: str) -> float:
    raise ValueError(f"found {constant}, which is no JSON; expected a number or null")


def _numbered(found: Entry, rollouts: dict) -> Entry:
    """The entry with its rollout's number; `ValueError` for an id used for two questions."""
    trajectory, question = found.trajectory, found.trajectory.question
    before = rollouts.setdefault((question.document, question.id), [])
    if before and before[0][0] != question.text:
        raise ValueError(
            f"id {_short(question.id)} is of another question: {_short(before[0][0])}; found "
            f"{_short(question.text)}"
        )
    taken = {number for _, number in before}
    number = trajectory.rollout if trajectory.rollout not in taken else max(taken) + 1
    before.append((question.text, number))
    return dataclasses.replace(found, trajectory=dataclasses.replace(trajectory, rollout=number))


def entry(
    record: Mapping[str, Any], line: int, *, answer_formats: Sequence[str] = MMLONGBENCH_FORMATS
) -> Entry:
    """The record as an entry.

    Raises:
      ValueError: what is missing, the names under which it was looked for, and what was found.
    """
    if "schema" in record and "turns" in record:
        ours = records.from_json(dict(record))
        question = ours.trajectory.question
        name = _in_scorers_words(question.answer_format, answer_formats)
        question = dataclasses.replace(question, answer_format=name)
        trajectory = dataclasses.replace(ours.trajectory, question=question)
        return Entry(line, trajectory, verdict=ours.verdict)
    look = _Look(record)
    messages = _messages(look)
    text = look.text("question") or _asked(messages, look)
    if not text.strip():
        raise look.missing("question", " or a user message")
    turns, noted = _turns(messages)
    gold, final = _answers(look, messages)
    format_name = _in_scorers_words(_format(look, gold), answer_formats)
    memory = _memory_of(look, messages, noted)
    question = Question(
        id=look.text("id") or f"line {line}",
        document=look.text("document"),
        text=text,
        answer=gold,
        answer_format=format_name,
        evidence_pages=tuple(sorted({page for page in _pages(look.value("pages")) if page > 0})),
        evidence_sources=tuple(dict.fromkeys(map(str, _list(look.value("sources"))))),
    )
    error, status = look.text("error"), look.text("status")
    if status not in STATUSES:
        status = TOOL_ERROR if error else ANSWERED
    rollout = look.value("rollout")
    given = look.value("memory_answer")
    return Entry(
        line,
        Trajectory(
            question=question,
            rollout=rollout if type(rollout) is int and rollout >= 0 else 0,
            turns=turns,
            final_answer=final,
            memory=memory,
            status=status,
            error=error,
        ),
        memory_answer=None if given is None else _plain(given),
    )


class _Look:
    """Finds fields by their names, at the top level first and then one level down."""

    def __init__(self, record: Mapping[str, Any]):
        self.record = record
        self._levels = [record] + [
            record[name] for name in _NESTS if isinstance(record.get(name), dict)
        ]

    def has(self, field: str) -> bool:
        return any(name in level for level in self._levels for name in NAMES[field])

    def value(self, field: str) -> Any:
        for level in self._levels:
            for name in NAMES[field]:
                if level.get(name) is not None:
                    return level[name]
        return None

    def plain(self, name: str) -> Any:
        """What stands under this very name."""
        return next((level[name] for level in self._levels if level.get(name) is not None), None)

    def text(self, field: str) -> str:
        value = self.value(field)
        return "" if value is None or isinstance(value, dict | list) else _plain(value)

    def missing(self, field: str, otherwise: str = "") -> ValueError:
        names = ", ".join(NAMES[field])
        keys = [key for key in self.record if isinstance(key, str)]
        near = [key for key in keys if difflib.get_close_matches(key, NAMES[field], 1, 0.8)]
        hint = f"; is {near[0]!r} meant?" if near and not self.has(field) else ""
        return ValueError(
            f"no {_SAID[field]}: expected it under one of {names}{otherwise}; found the keys "
            f"{_short(', '.join(keys))}{hint}"
        )


_SAID = {
    "question": "question",
    "gold": "gold answer",
    "final": "final answer",
    "memory": "memory",
}


def _answers(look: _Look, messages: Sequence[Mapping]) -> tuple[Any, str]:
    """Gold and final answer."""
    gold, final, answer = look.value("gold"), look.value("final"), look.plain("answer")
    said = _said_at_last(messages)
    final_known = look.has("final") or bool(messages)
    if gold is None and answer is not None:
        if not final_known:
            raise ValueError(
                'found "answer" alone, which may be the gold or the final one: name them "gold" '
                'and "final_answer"'
            )
        gold = answer
    elif final is None and answer is not None:
        final, final_known = answer, True
    if gold is None or gold == "" or isinstance(gold, dict):
        raise look.missing("gold")
    if not final_known:
        raise look.missing("final", " or a last assistant message; write null where it has none")
    if isinstance(gold, bool):
        gold = "Yes" if gold else "No"
    return gold, said if final is None else _plain(final)


def _format(look: _Look, gold: Any) -> str:
    """The answer's format in MMLongBench-Doc's names: the record's, or what gold looks like."""
    named = look.value("format")
    if named is not None:
        if str(named).lower() not in _FORMATS:
            raise ValueError(
                f"answer_format {_short(str(named))}, expected one of Int, Float, Str, List, None"
            )
        return _FORMATS[str(named).lower()]
    return guess_format(gold)


def _in_scorers_words(name: str, answer_formats: Sequence[str]) -> str:
    """The scorer's name of a format: both benchmarks' begin with the same three letters."""
    names = {known[:3].lower(): known for known in answer_formats}
    if name[:3].lower() not in names:
        raise ValueError(f"answer format {_short(name)}, expected one of {list(answer_formats)}")
    return names[name[:3].lower()]


def guess_format(gold: Any) -> str:
    """The answer format that a gold answer looks like, for data that do not say."""
    if isinstance(gold, list):
        return "List"
    if isinstance(gold, int):
        return "Int"
    if isinstance(gold, float):
        return "Float"
    text = str(gold).strip()
    if text.lower() == "not answerable":
        return "None"
    if text.startswith("[") and text.endswith("]"):
        return "List"
    if re.fullmatch(r"[-+]?(?:0|[1-9]\d{0,8})", text):
        return "Int"
    if re.fullmatch(r"[-+]?\d*\.\d+\s?%?|[-+]?\d+\s?%", text):
        return "Float"
    return "Str"


def _memory_of(look: _Look, messages: Sequence, noted: Sequence[Finding]) -> Memory:
    if look.has("memory"):
        return memory(look.value("memory"))
    if noted:
        return _as_memory(noted)
    raise look.missing(
        "memory",
        " or calls such as update_memory in the messages" if messages else "",
    )


def memory(value: Any) -> Memory:
    """The memory that a value of any common shape stands for; nothing is an empty memory.

    Findings that all cite a page become ours, which a reader sees as "[page 3] ..."; any other
    memory is shown to the reader as it was given.
    """
    if isinstance(value, str):
        findings = [_finding(line) for line in value.split("\n") if line.strip()]
        return GivenMemory(tuple(findings), value) if findings else Memory()
    if isinstance(value, Mapping):
        for name in ("findings", "entries", "notes", "items", "memory"):
            if isinstance(value.get(name), list | str):
                return memory(value[name])
        if not any(name in value for name in _TEXT_NAMES):
            return memory(
                [
                    {"page": int(name), "text": _plain(text)}
                    if re.fullmatch(r"\d{1,6}", str(name).strip())
                    else f"{name}: {_plain(text)}"
                    for name, text in value.items()
                ]
            )
        value = [value]
    if value is None or isinstance(value, list):
        return _as_memory([_finding(item) for item in value or () if item not in (None, "", {})])
    return memory(_plain(value))


def _as_memory(findings: Sequence[Finding]) -> Memory:
    if all(finding.source_page > 0 for finding in findings):
        return Memory(tuple(findings))
    lines = (f"[page {f.source_page}] {f.text}" if f.source_page else f.text for f in findings)
    return GivenMemory(tuple(findings), "\n".join(lines))


def _finding(item: Any) -> Finding:
    """One entry of a memory; page 0 where it cites none."""
    if isinstance(item, Mapping):
        text = next((item[name] for name in _TEXT_NAMES if item.get(name)), None)
        page = next((p for name in _PAGE_NAMES for p in _pages(item.get(name))), 0)
        return Finding(page, _plain(item if text is None else text))
    text = _plain(item)
    if mark := _PAGE_MARK.match(text):
        return Finding(int(mark[1]), text[mark.end() :] or text)
    return Finding(0, text)


def _pages(value: Any) -> list[int]:
    """Page numbers in a number, a list, or a text such as "[3, 5]" or "page 3"."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, str):
        return [int(number) for number in re.findall(r"\d{1,6}", value[:10_000])]
    if isinstance(value, float) and value.is_integer():
        return [int(value)]
    return [page for item in value for page in _pages(item)] if isinstance(value, list) else []


def _list(value: Any) -> list:
    """A list, or the one that a text spells as a Python literal; nothing is evaluated."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value[:10_000].strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = [value]
    return value if isinstance(value, list) else []


def _messages(look: _Look) -> list[Mapping]:
    """The chat messages, a prompt's included, those of other shapes left out."""
    value = look.value("messages")
    prompt = look.plain("prompt")
    if isinstance(value, Mapping):
        value = value.get("messages")
    parts = [part for part in (prompt, value) if isinstance(part, list)]
    return [
        message
        for part in parts
        for message in part
        if isinstance(message, Mapping) and isinstance(message.get("role"), str)
    ]


def _content(message: Mapping) -> str:
    """The text of a message; an image is a word in brackets."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part
            if isinstance(part, str)
            else part.get("text", f"[{part.get('type', 'part')}]")
            if isinstance(part, Mapping)
            else _plain(part)
            for part in content
        ]
        return "\n".join(map(_plain, parts))
    return "" if content is None else _plain(content)


def _calls(message: Mapping) -> list[ToolCall]:
    """The message's tool calls: the API's field, or Qwen's tags in the text."""
    found = []
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = {"arguments": arguments}
        if isinstance(arguments, Mapping) and isinstance(function.get("name"), str):
            found.append(ToolCall(function["name"], arguments))
    text = _content(message)
    if not found and protocol.OPEN in text:
        found = list(protocol.parse_calls(text).calls)
    return found


def _asked(messages: Sequence[Mapping], look: _Look) -> str:
    users = [_content(message) for message in messages if message["role"] == "user"]
    if isinstance(prompt := look.plain("prompt"), str):
        return prompt
    return users[0] if users else ""


def _said_at_last(messages: Sequence[Mapping]) -> str:
    """The answer that was given by a call, else what the assistant said last."""
    last = ""
    for message in messages:
        if message["role"] != "assistant":
            continue
        for call in _calls(message):
            if _GIVES_ANSWER.fullmatch(call.name) and call.arguments:
                name = "answer" if "answer" in call.arguments else next(iter(call.arguments))
                return _plain(call.arguments[name])
        text = protocol.without_thoughts(_content(message))
        last = "" if protocol.OPEN in text else text.strip()
    return last


def _turns(messages: Sequence[Mapping]) -> tuple[tuple[Turn, ...], list[Finding]]:
    """The conversation as turns, for display, and the findings that its calls wrote."""
    nothing = np.zeros(0, np.int32)
    turns, findings = [], []
    steps: list[tuple[Mapping, list[str]]] = []
    for message in messages:
        if message["role"] == "assistant":
            steps.append((message, []))
        elif steps:
            steps[-1][1].append(_content(message))
    for message, observed in steps:
        calls = _calls(message)
        for call in calls:
            if _WRITES_MEMORY.search(call.name):
                findings.append(_finding(call.arguments))
        text = _content(message)
        if calls and protocol.OPEN not in text:
            text += "".join(
                "\n<tool_call>"
                + json.dumps({"name": call.name, "arguments": dict(call.arguments)})
                + "</tool_call>"
                for call in calls
            )
        sample = Sample(nothing, nothing, nothing.astype(np.float32), text, "stop")
        turns.append(Turn(0, sample, tuple(calls), tuple(observed), (), Memory(tuple(findings))))
    return tuple(turns), findings


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")
