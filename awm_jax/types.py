"""The nouns that the packages share, in the order in which the data flows.

Everything here is a frozen record. The letters of the paper (section 2) stand beside the
names: a question `q` about a document `D` with gold answer `y` and evidence pages `E`; a
working memory `M_t` of source-linked findings; a trajectory `tau` that ends with a final
answer and the terminal memory `M_term`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

# How a rollout can end. The first group is the policy's doing and is scored; the second is
# not, so such a rollout leaves its group's statistics.
ANSWERED = "answered"
STEP_BUDGET = "step_budget"
MALFORMED = "malformed"
CONTEXT_FULL = "context_full"
TOOL_ERROR = "tool_error"
JUDGE_ERROR = "judge_error"
STATUSES = (ANSWERED, STEP_BUDGET, MALFORMED, CONTEXT_FULL, TOOL_ERROR, JUDGE_ERROR)
INVALID_STATUSES = (TOOL_ERROR, JUDGE_ERROR)


@dataclasses.dataclass(frozen=True, eq=False)
class Page:
    """One rendered page of a document.

    Attributes:
      document: id of the document, its file name as the data set gives it.
      number: 1-based position in the file.
      image: `[height, width, 3]` uint8, RGB.
      digest: hash of the pixels; equal digests mean equal images.
    """

    document: str
    number: int
    image: np.ndarray
    digest: str


@dataclasses.dataclass(frozen=True)
class Document:
    """A document that was checked and can be rendered (`D`).

    Attributes:
      id: file name as the data set gives it.
      path: where the file lies.
      page_texts: the text layer, one string a page, empty where a page has none.
      digest: hash of the file.
      warnings: what had to be repaired or could not be read, in words.
    """

    id: str
    path: str
    page_texts: tuple[str, ...]
    digest: str
    warnings: tuple[str, ...] = ()

    @property
    def page_count(self) -> int:
        return len(self.page_texts)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about one document (`q`, `y`, `E`).

    Attributes:
      id: unique within the data set.
      document: the document's id.
      text: the question as the data set has it.
      answer: the gold answer as the data set has it: a string, a number or a list.
      answer_format: the data set's name for the answer's type; it picks the scoring rule.
      evidence_pages: 1-based gold pages that exist in the document.
      evidence_sources: what kind of content holds the evidence, such as "Table".
    """

    id: str
    document: str
    text: str
    answer: Any
    answer_format: str
    evidence_pages: tuple[int, ...] = ()
    evidence_sources: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Finding:
    """One entry of the working memory: what was found, and on which 1-based page."""

    source_page: int
    text: str


@dataclasses.dataclass(frozen=True)
class Memory:
    """The working memory `M_t`: append-only, oldest finding first."""

    findings: tuple[Finding, ...] = ()

    @property
    def text(self) -> str:
        """The memory as the policy and the reader see it, one finding a line."""
        if not self.findings:
            return "(empty)"
        return "\n".join(f"[page {f.source_page}] {f.text}" for f in self.findings)


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it, parsed: `arguments` is the decoded JSON object."""

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Message:
    """One message of a conversation that the policy did not just sample.

    Attributes:
      role: "system", "user", "assistant" or "tool".
      content: text and page images in the order in which they are shown.
      calls: an assistant message's tool calls, rendered after its content.
    """

    role: str
    content: tuple[str | Page, ...] = ()
    calls: tuple[ToolCall, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """What the policy produced for one prompt, token by token as it was sampled.

    A served policy that reports no tokens leaves the three arrays empty.

    Attributes:
      prompt_ids: `[prompt_time]` int32, all ids that came before the first sampled one,
        each image expanded to its tokens.
      token_ids: `[time]` int32, the sampled ids, the end token included where it was reached.
      log_probs: `[time]` float32, in nats, after temperature and ban; at temperature 0 those of
        temperature 1. Top-p and top-k do not change them.
      text: `token_ids` decoded, without the end token.
      finish_reason: "stop" at an end token, "length" when the budget ran out,
        "context_full" when the prompt alone did not fit (no token was sampled). Anything else:
        the policy's server failed, "error: " and why; such a sample is never scored.
      pages: the images of `prompt_ids`, in order.
      policy_version: how many updates the parameters had seen.
      raw_log_probs: `[time]` float32, in nats, of the model's own distribution: at temperature 1
        and without the ban. None where they are not known.
    """

    prompt_ids: np.ndarray
    token_ids: np.ndarray
    log_probs: np.ndarray
    text: str
    finish_reason: str
    pages: tuple[Page, ...] = ()
    policy_version: int = 0
    raw_log_probs: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A conversation to continue.

    Attributes:
      messages: the conversation so far. A `Sample` stands for an assistant message with its
        tokens as sampled, and for all that was shown before it: only what follows the last
        `Sample` is rendered and tokenised.
      tools: JSON schemas of the tools that the system message lists.
      seed: integers that make this prompt's randomness its own, whatever its neighbours.
    """

    messages: tuple[Message | Sample, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    seed: tuple[int, ...] = ()


class Generate(Protocol):
    """Continues each conversation once. Order is kept and every prompt gets a `Sample`."""

    def __call__(self, prompts: Sequence[Prompt], *, temperature: float) -> list[Sample]: ...


# (document id, query, how many) -> 1-based page numbers, best first.
Search = Callable[[str, str, int], Sequence[int]]
# (document id, 1-based page number) -> the rendered page.
Render = Callable[[str, int], Page]


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """One step: an assistant message and what came of it.

    Attributes:
      context: which training sequence of the trajectory the sample belongs to. Within a
        context each turn's ids extend all ids before it.
      sample: the assistant message.
      calls: its tool calls, in the order in which they were done.
      observation: what was shown to the policy in return.
      violations: what broke the protocol, in words; empty for a clean step.
      memory: the working memory after the step.
    """

    context: int
    sample: Sample
    calls: tuple[ToolCall, ...]
    observation: tuple[str | Page, ...]
    violations: tuple[str, ...]
    memory: Memory


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """A finished rollout (`tau`), however it ended.

    Attributes:
      question: what was asked.
      rollout: index within the question's group.
      turns: the steps, in order.
      final_answer: the answer, empty where none was given.
      memory: the terminal working memory `M_term`.
      status: one of `STATUSES`.
      error: what went wrong, in words; empty for a clean end.
    """

    question: Question
    rollout: int
    turns: tuple[Turn, ...]
    final_answer: str
    memory: Memory
    status: str
    error: str = ""

    @property
    def valid(self) -> bool:
        """False where the policy could not help the failure."""
        return self.status not in INVALID_STATUSES


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How a trajectory was judged: `s_ans` and `s_mem` of the paper, section 2.

    Attributes:
      answer_score: score of the final answer in [0, 1].
      memory_score: score of the memory-only answer in [0, 1].
      memory_answer: what the frozen reader answered from question and memory alone.
      scorer: which scorer and mode made the numbers.
      error: why there is no judgement; empty where there is one.
    """

    answer_score: float
    memory_score: float
    memory_answer: str
    scorer: str
    error: str = ""

    @property
    def answer_correct(self) -> bool:
        return self.answer_score > 0

    @property
    def memory_answerable(self) -> bool:
        return self.memory_score > 0
