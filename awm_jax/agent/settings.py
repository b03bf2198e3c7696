"""The settings beside the full agent, from its parts: gold pages given, direct input, RAG.

The paper, sections 2 and 4. What is not described here is as for `rollout.run_rollouts`.
"""

import dataclasses
from collections.abc import Callable, Sequence

from awm_jax.agent.prompts import DIRECT_SYSTEM
from awm_jax.agent.protocol import without_thoughts
from awm_jax.agent.rollout import (
    DEFAULTS,
    Conversation,
    Map,
    OnFinish,
    RolloutSettings,
    Task,
    play,
    run_agent,
)
from awm_jax.agent.tools import TaskState, ToolFailure, retrieve_pages, show_pages
from awm_jax.types import (
    ANSWERED,
    CONTEXT_FULL,
    STEP_BUDGET,
    TOOL_ERROR,
    Generate,
    Memory,
    Message,
    Question,
    Render,
    Sample,
    Search,
    Trajectory,
    Turn,
)


def evidence_given(
    tasks: Sequence[Task],
    generate: Generate,
    *,
    render: Render,
    settings: RolloutSettings = DEFAULTS,
    map_tools: Map = map,
    on_finish: OnFinish | None = None,
) -> list[Trajectory]:
    """Runs the agent with a search that finds all gold pages, whatever the query (EP-given).

    Raises:
      ValueError: a question has no gold pages.
    """
    if missing := sorted({question.id for question, _, _ in tasks if not question.evidence_pages}):
        raise ValueError(f"no evidence pages to give for questions {missing}; leave them out")

    def retrieve(question: Question, query: str) -> Sequence[int]:
        return question.evidence_pages

    return run_agent(tasks, generate, retrieve, render, settings, map_tools, on_finish)


def direct(
    tasks: Sequence[Task],
    generate: Generate,
    *,
    page_count: Callable[[str], int],
    render: Render,
    max_pages: int = 120,
    settings: RolloutSettings = DEFAULTS,
    map_tools: Map = map,
    on_finish: OnFinish | None = None,
) -> list[Trajectory]:
    """Answers from the document's first pages in one turn: no tools, no memory.

    Args:
      page_count: a document's id -> how many pages it has.
      max_pages: shown at most; 120 is what MMLongBench-Doc's official run shows.
    """

    def pages(question: Question) -> Sequence[int]:
        return range(1, min(page_count(question.document), max_pages) + 1)

    return _answer_at_once(tasks, generate, pages, render, settings, map_tools, on_finish)


def rag(
    tasks: Sequence[Task],
    generate: Generate,
    *,
    search: Search,
    render: Render,
    settings: RolloutSettings = DEFAULTS,
    map_tools: Map = map,
    on_finish: OnFinish | None = None,
) -> list[Trajectory]:
    """Answers in one turn from the `top_k` pages that match the question: no tools, no memory."""

    def pages(question: Question) -> Sequence[int]:
        return search(question.document, question.text, settings.top_k)

    return _answer_at_once(tasks, generate, pages, render, settings, map_tools, on_finish)


def _answer_at_once(tasks, generate, pages, render, settings, map_tools, on_finish):
    def begin(task: Task) -> Conversation:
        question = task[0]
        try:
            numbers = retrieve_pages(
                lambda _: pages(question),
                question.document,
                question.text,
                timeout_s=settings.tool_timeout_s,
            )
            shown = show_pages(
                question.document, numbers, render, timeout_s=settings.tool_timeout_s
            )
        except ToolFailure as error:
            return Conversation(task).end(TOOL_ERROR, str(error))
        user = Message("user", (*shown, f"Question: {question.text}"))
        return Conversation(task, (Message("system", (DIRECT_SYSTEM,)), user))

    def advance(conversation: Conversation, sample: Sample) -> Conversation:
        if sample.finish_reason == "context_full":
            return conversation.end(CONTEXT_FULL, "the pages did not fit")
        if sample.finish_reason not in ("stop", "length"):
            return conversation.end(TOOL_ERROR, f"no message of the policy, {sample.finish_reason}")
        answer = without_thoughts(sample.text).strip()
        turn = Turn(0, sample, calls=(), observation=(), violations=(), memory=Memory())
        after = dataclasses.replace(conversation, state=TaskState(final_answer=answer))
        return after.add(turn).end(*(ANSWERED,) if answer else (STEP_BUDGET, "no answer given"))

    return play(tasks, generate, begin, advance, settings, map_tools, on_finish)
