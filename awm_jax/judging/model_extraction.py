"""Takes the short answer out of a reply by asking a model, as both benchmarks' pipelines do.

The official pipelines (MMLongBench-Doc: eval/extract_answer.py; LongDocURL: the evaluation's
extractor) send question and reply to GPT-4o at temperature 0. The instructions here are our own
words for the same task, the same formats and the same two ways to decline; the benchmarks' own
files can be given instead (`Instructions.text`), and a hash of whichever was used is part of the
extractor's name. What is kept exactly is the shape of the request:

* MMLongBench-Doc: the instructions are a user message, and question and reply follow as an
  *assistant* message. Local chat templates take that for a reply to go on with, so for them all
  of it is one user message ("one_turn").
* LongDocURL: one user message.

A reply is read with tolerance: bold labels, either order, a fence around it. The official script
dies on most of these. What cannot be read and a server that fails is None: counted, not scored.
"""

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from awm_jax import servers
from awm_jax.types import Generate, Message, Prompt, Question

MAX_TOKENS = 256

MMLONGBENCH_TEXT = """\
You are given a question and an analysis that answers it, possibly at length. Write down the \
answer that the analysis comes to.

- The answer is an Integer, a Float, a String or a List. A List is written as ['first', 'second'].
- Keep it as short as it can be, in the analysis' own words; add nothing and correct nothing.
- If the analysis says that the documents do not answer the question, write Not answerable.
- If the analysis only says that the images or documents could not be read or understood, write \
Fail to answer.

Reply with exactly two lines:
Extracted answer: [answer]
Answer format: [Integer, Float, String, List or None]

Example
Question: Which two colours does the legend name?
Analysis: The legend in the lower right corner has two entries, the first of which is red; the \
second one is dark green.
Extracted answer: ['red', 'dark green']
Answer format: List

Example
Question: How many tables are on page 7?
Analysis: Counting the captions on page 7, I see Table 3 and Table 4, so there are two of them.
Extracted answer: 2
Answer format: Integer

Example
Question: What is the share of respondents over 65?
Analysis: The report lists shares for all age groups up to 64 and does not mention older ones.
Extracted answer: Not answerable
Answer format: None
"""

LONGDOCURL_TEXT = """\
You are given a question about a document and an analysis that answers it. Write down the answer \
that the analysis comes to.

- The answer is an Integer, a Float, a String or a List. A List is written as ['first', 'second'].
- Keep it as short as it can be, in the analysis' own words.
- If the question limits what counts (a range of pages or images, say), leave out of the answer \
what the analysis names beyond that limit.
- If the analysis says that the documents do not answer the question, the answer is \
Not answerable.
- If the analysis only says that the images or documents could not be read or understood, the \
answer is Fail to answer.

Reply with exactly two lines:
Extracted answer: <concise_answer>[answer]</concise_answer>
Answer format: <answer_format>[Integer, Float, String, List or None]</answer_format>
"""

_LABELS = (
    re.compile(r"<concise_answer>(.*?)</concise_answer>", re.DOTALL | re.IGNORECASE),
    re.compile(
        r"extracted answer\W{0,3}:[*_ ]*(.*?)\s*(?=[*_#\- ]*answer format\W{0,3}:|```|\Z)",
        re.DOTALL | re.IGNORECASE,
    ),
)


@dataclasses.dataclass(frozen=True)
class Instructions:
    """What the extractor is told, and in which shape.

    Attributes:
      benchmark: "mmlongbench" or "longdocurl"; it gives the shape of the request.
      text: the instructions.
      one_turn: all in one user message, whatever the benchmark's shape.
    """

    benchmark: str = "mmlongbench"
    text: str = ""
    one_turn: bool = False

    def __post_init__(self):
        texts = {"mmlongbench": MMLONGBENCH_TEXT, "longdocurl": LONGDOCURL_TEXT}
        if self.benchmark not in texts:
            raise ValueError(f"benchmark {self.benchmark!r}, expected one of {tuple(texts)}")
        if not self.text:
            object.__setattr__(self, "text", texts[self.benchmark])

    @property
    def name(self) -> str:
        """Shape and hash of the text, as they stand beside a number."""
        digest = hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:8]
        trailing = self.benchmark == "mmlongbench" and not self.one_turn
        shape = "user + assistant turn" if trailing else "one user turn"
        return f"{self.benchmark} extraction {digest}, {shape}"


def messages(instructions: Instructions, question: str, reply: str) -> list[dict[str, str]]:
    """The request's messages in the benchmark's shape."""
    if instructions.benchmark == "mmlongbench":
        asked = f"\n\nQuestion:{question}\nAnalysis:{reply}\n"
        if not instructions.one_turn:
            return [
                {"role": "user", "content": instructions.text},
                {"role": "assistant", "content": asked},
            ]
    else:
        asked = f"\nQuestion: {question}\nAnalysis: {reply}"
    return [{"role": "user", "content": instructions.text + asked}]


def parse(reply: str) -> str | None:
    """The short answer in the extractor's reply; None where there is none to be found."""
    for label in _LABELS:
        for found in reversed(label.findall(reply)):
            text = found.strip().strip("`").strip()
            for mark in ("**", "__"):
                text = text.removeprefix(mark).removesuffix(mark).strip()
            # An extractor that copies the form instead of filling it in has failed.
            if text and text.lower() not in ("[answer]", "answer"):
                return text
    return None


class Cache:
    """Replies kept by the content of their request, one JSON object a line, append-only.

    Threads of one process may share it. A torn last line is passed over.
    """

    def __init__(self, path: str | os.PathLike | None = None):
        self._path = None if path is None else pathlib.Path(path)
        self._lock = threading.Lock()
        self._replies: dict[str, str] = {}
        if self._path is not None and self._path.exists():
            for line in self._path.read_bytes().split(b"\n"):
                try:
                    entry = json.loads(line)
                    self._replies[entry["key"]] = entry["reply"]
                except (ValueError, KeyError, TypeError):
                    continue

    @staticmethod
    def key(model: str, request: Sequence[Mapping[str, Any]]) -> str:
        """Hash of all that decides a reply at temperature 0."""
        content = json.dumps([model, MAX_TOKENS, list(request)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        return self._replies.get(key)

    def put(self, key: str, reply: str) -> None:
        with self._lock:
            self._replies[key] = reply
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with open(self._path, "a", encoding="utf-8") as file:
                    # A line end first: a torn last line must not swallow this one.
                    torn = file.tell() and not _ends_line(self._path)
                    file.write("\n" * bool(torn) + json.dumps({"key": key, "reply": reply}) + "\n")


def _ends_line(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def extract_served(
    server: servers.Server,
    items: Sequence[tuple[Question, str]],
    *,
    instructions: Instructions,
    cache: Cache,
) -> list[str | None]:
    """Short answers by a served model at temperature 0, equal requests once; None where it failed.

    Args:
      server: a GPT-4o-class model, or any with the OpenAI API.
      items: questions with the replies to shorten.
      instructions: what it is told.
      cache: replies of earlier calls; what is read well is added.
    """
    requests = [messages(instructions, question.text, reply) for question, reply in items]
    keys = [cache.key(server.model, request) for request in requests]
    new = {
        key: servers.Chat(request)
        for key, request in zip(keys, requests, strict=True)
        if cache.get(key) is None
    }
    replies = servers.chat_many(server, list(new.values()), temperature=0.0, max_tokens=MAX_TOKENS)
    failures = []
    for key, reply in zip(new, replies, strict=True):
        if isinstance(reply, servers.Failure):
            failures.append(reply.reason)
        elif parse(reply.text) is None:
            failures.append(f"no answer in {reply.text[:80]!r}")
        else:
            cache.put(key, reply.text)
    _say(failures, len(new))
    return [None if (reply := cache.get(key)) is None else parse(reply) for key in keys]


def extract_local(
    generate: Generate,
    items: Sequence[tuple[Question, str]],
    *,
    instructions: Instructions,
    seed: tuple[int, ...] = (0,),
) -> list[str | None]:
    """Short answers by a local model, such as Qwen3 with thinking off, in one greedy call.

    Args:
      generate: the model; its chat template gets one user message.
      items: questions with the replies to shorten.
      instructions: with `one_turn`.
      seed: of the call.

    Raises:
      ValueError: the instructions end in an assistant message.
    """
    if instructions.benchmark == "mmlongbench" and not instructions.one_turn:
        raise ValueError("a local extractor takes one user message: set one_turn")
    prompts = {}
    for question, reply in items:
        if (question.text, reply) not in prompts:
            (request,) = messages(instructions, question.text, reply)
            prompts[question.text, reply] = Prompt(
                (Message("user", (request["content"],)),), seed=(*seed, len(prompts))
            )
    samples = generate(list(prompts.values()), temperature=0.0) if prompts else []
    found = {key: parse(sample.text) for key, sample in zip(prompts, samples, strict=True)}
    _say(
        [f"no answer for {key[0][:80]!r}" for key, short in found.items() if short is None],
        len(found),
    )
    return [found[question.text, reply] for question, reply in items]


def _say(failures: Sequence[str], asked: int) -> None:
    if failures:
        logging.getLogger(__name__).warning(
            "%d of %d answers could not be extracted; the first: %s",
            len(failures),
            asked,
            failures[0],
        )
