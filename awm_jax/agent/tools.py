"""What the tools do: a call and the state of the task -> the next state and what is shown.

The order is strict. After a retrieval one finding has to be written before anything else is
done, and nothing of the same message is done after a retrieval: its pages have not been seen.
"""

import concurrent.futures
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from awm_jax.agent.memory import append_finding
from awm_jax.agent.prompts import AGENT_TOOLS
from awm_jax.agent.protocol import checked_call
from awm_jax.types import Memory, Page, Render, ToolCall

# A query -> 1-based pages of the question's document, best first.
Retrieve = Callable[[str], Sequence[int]]

# A longer query is the policy's fault; it must not bring down a search server and so become a
# tool error, which is not scored.
LONGEST_QUERY = 1000

Result = TypeVar("Result")


class ToolFailure(Exception):
    """A tool broke; no fault of the policy."""


@dataclasses.dataclass(frozen=True)
class TaskState:
    """What the calls so far have led to.

    Attributes:
      memory: the working memory.
      shown_pages: 1-based pages that were shown, each once, in the order of first showing.
      unnoted: True from a retrieval to the first finding after it.
      final_answer: None before there is one.
    """

    memory: Memory = Memory()
    shown_pages: tuple[int, ...] = ()
    unnoted: bool = False
    final_answer: str | None = None


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What came of a call.

    Attributes:
      state: after the call; as before it where it was refused.
      content: what the policy is shown in return.
      call: the call with checked arguments; None where it was refused.
      retrieved: True where `content` holds pages.
    """

    state: TaskState
    content: tuple[str | Page, ...]
    call: ToolCall | None
    retrieved: bool = False

    @property
    def refused(self) -> bool:
        return self.call is None


def within(seconds: float | None, function: Callable[..., Result], *arguments) -> Result:
    """`function(*arguments)`, waited for no longer than so many seconds, None for ever.

    What hangs goes on in a thread of its own, since no thread can be ended from outside; it does
    not keep the process alive.

    Raises:
      TimeoutError: it did not end in time. What `function` raises is passed on.
    """
    if seconds is None:
        return function(*arguments)
    outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def work():
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    # Not by `outcome.result(seconds)`: a TimeoutError of the function itself keeps its words.
    concurrent.futures.wait([outcome], seconds)
    if not outcome.done():
        raise TimeoutError(f"no result in {seconds:g} s")
    return outcome.result()


def show_pages(
    document: str, numbers: Sequence[int], render: Render, *, timeout_s: float | None = None
) -> tuple[str | Page, ...]:
    """Each page after a line with its number, in the given order.

    Raises:
      ToolFailure: a page could not be rendered, or not in time.
    """
    content: list[str | Page] = []
    for number in numbers:
        try:
            page = within(timeout_s, render, document, number)
        except Exception as error:
            raise _failure(f"page {number} of {document} cannot be rendered", error) from error
        content += [f"Page {number}:", page]
    return tuple(content)


def retrieve_pages(
    retrieve: Retrieve, document: str, query: str, *, timeout_s: float | None = None
) -> tuple[int, ...]:
    """The pages that `retrieve` finds, each once.

    Raises:
      ToolFailure: the search broke, or took too long.
    """
    try:
        found = within(timeout_s, retrieve, query)
        return tuple(dict.fromkeys(int(number) for number in found))
    except Exception as error:
        raise _failure(f"search of {document} for {query!r} failed", error) from error


def do_calls(
    calls: Sequence[ToolCall],
    state: TaskState,
    document: str,
    *,
    retrieve: Retrieve,
    render: Render,
    max_words: int,
    timeout_s: float | None = None,
) -> list[ToolResult]:
    """Does the calls of one message in order; refuses what is wrong in words for the policy.

    A query that was made before is done again: in `context="memory"` the pages were taken away,
    and asking is the way to see them once more.

    Args:
      calls: as parsed.
      state: before the message.
      document: id of the question's document.
      retrieve: finds pages of it.
      render: shows them.
      max_words: of a finding.
      timeout_s: seconds that one search, or the rendering of one page, may take.

    Returns:
      One result a call; the last one's state is that after the message.

    Raises:
      ToolFailure: search or render broke, or took too long.
    """
    results: list[ToolResult] = []
    for call in calls:
        checked = checked_call(call, AGENT_TOOLS)
        if state.final_answer is not None:
            result = _refuse(state, f"{call.name} was not done: the answer ends the task.")
        elif any(result.retrieved for result in results):
            result = _refuse(state, f"{call.name} was not done: look at the pages first.")
        elif isinstance(checked, str):
            result = _refuse(state, checked)
        elif state.unnoted and checked.name != "update_memory":
            result = _refuse(state, f"{call.name} was not done: first note a finding.")
        elif checked.name == "search_pages":
            result = _search(checked, state, document, retrieve, render, timeout_s)
        elif checked.name == "update_memory":
            result = _note(checked, state, max_words)
        else:
            answered = dataclasses.replace(state, final_answer=checked.arguments["answer"])
            result = ToolResult(answered, (), checked)
        results.append(result)
        state = result.state
    return results


def _refuse(state: TaskState, why: str) -> ToolResult:
    return ToolResult(state, (why,), None)


def _search(
    call: ToolCall,
    state: TaskState,
    document: str,
    retrieve: Retrieve,
    render: Render,
    timeout_s: float | None,
) -> ToolResult:
    query = call.arguments["query"]
    if len(query) > LONGEST_QUERY:
        return _refuse(state, f"The query has {len(query)} characters, at most {LONGEST_QUERY}.")
    numbers = retrieve_pages(retrieve, document, query, timeout_s=timeout_s)
    if not numbers:
        # There is nothing to cite, so nothing has to be noted.
        return ToolResult(state, ("No page was found.",), call)
    shown = tuple(dict.fromkeys(state.shown_pages + numbers))
    content = show_pages(document, numbers, render, timeout_s=timeout_s)
    state = dataclasses.replace(state, shown_pages=shown, unnoted=True)
    return ToolResult(state, content, call, retrieved=True)


def _note(call: ToolCall, state: TaskState, max_words: int) -> ToolResult:
    memory = append_finding(
        state.memory, **call.arguments, shown_pages=state.shown_pages, max_words=max_words
    )
    if isinstance(memory, str):
        return _refuse(state, memory)
    return ToolResult(dataclasses.replace(state, memory=memory, unnoted=False), ("Noted.",), call)


def _failure(what: str, error: Exception) -> ToolFailure:
    logging.getLogger(__name__).warning("%s: %s: %s", what, type(error).__name__, error)
    return ToolFailure(f"{what}: {type(error).__name__}: {error}")
