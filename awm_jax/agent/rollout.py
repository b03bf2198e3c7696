"""Rollouts of the agent: many conversations in lock step (the paper, section 2).

Each round asks the policy once, with the prompts of all live conversations, and then does the
tools' work of each. What comes out for a task does not depend on the other tasks, so a policy
that does not need its prompts together can have them one by one: `each_alone`.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from awm_jax import types
from awm_jax.agent import prompts
from awm_jax.agent.protocol import parse_calls
from awm_jax.agent.tools import TaskState, ToolFailure, do_calls
from awm_jax.types import Generate, Message, Question, Render, Sample, Search, Trajectory, Turn

# A rollout to make: the question, its index in the group, its seed.
Task = tuple[Question, int, tuple[int, ...]]
# Calls a function on each item and keeps the order: `map`, or that of an executor.
Map = Callable[..., Iterable]
# (index of the task, its trajectory).
OnFinish = Callable[[int, Trajectory], None]

# So many messages without a call that can be read, one after the other, end a rollout.
UNPARSED_LIMIT = 3


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """What a rollout may do. Steps, pages and words are the paper's (section 4, appendix C).

    Attributes:
      max_steps: assistant messages before the rollout ends without an answer.
      top_k: pages that a retrieval shows.
      max_words: of a finding.
      context: "memory" starts a new context at each retrieval, with question, memory and the
        newest pages; "full" keeps everything in one.
      temperature: of the policy.
      max_live: conversations that are open at one time, None for all. No result depends on it.
      tool_timeout_s: seconds that one search, or the rendering of one page, may take before the
        rollout ends with a tool error; None for no limit.
    """

    max_steps: int = 15
    top_k: int = 3
    max_words: int = 40
    context: str = "memory"
    temperature: float = 1.0
    max_live: int | None = None
    tool_timeout_s: float | None = 300.0

    def __post_init__(self):
        counts = [self.max_steps, self.top_k, self.max_words]
        if self.max_live is not None:
            counts.append(self.max_live)
        if min(counts) < 1 or self.temperature < 0:
            raise ValueError(f"expected counts of 1 or more and no negative temperature: {self}")
        if self.context not in ("memory", "full"):
            raise ValueError(f"context {self.context!r}: expected 'memory' or 'full'")
        if self.tool_timeout_s is not None and self.tool_timeout_s <= 0:
            raise ValueError(f"tool_timeout_s {self.tool_timeout_s}: expected seconds above 0")


DEFAULTS = RolloutSettings()


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A rollout under way; `status` is empty until it ends."""

    task: Task
    messages: tuple[Message | Sample, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    context: int = 0
    state: TaskState = TaskState()
    turns: tuple[Turn, ...] = ()
    unparsed: int = 0
    status: str = ""
    error: str = ""

    @property
    def question(self) -> Question:
        return self.task[0]

    @property
    def prompt(self) -> types.Prompt:
        return types.Prompt(self.messages, self.tools, seed=(*self.task[2], len(self.turns)))

    @property
    def trajectory(self) -> Trajectory:
        question, rollout, _ = self.task
        answer = self.state.final_answer or ""
        memory = self.state.memory
        return Trajectory(question, rollout, self.turns, answer, memory, self.status, self.error)

    def add(self, turn: Turn) -> "Conversation":
        return dataclasses.replace(self, turns=(*self.turns, turn))

    def end(self, status: str, error: str = "") -> "Conversation":
        return dataclasses.replace(self, status=status, error=error)


def run_rollouts(
    tasks: Sequence[Task],
    generate: Generate,
    *,
    search: Search,
    render: Render,
    settings: RolloutSettings = DEFAULTS,
    map_tools: Map = map,
    on_finish: OnFinish | None = None,
) -> list[Trajectory]:
    """Runs the agent on each task (the paper, section 2).

    Args:
      tasks: (question, index in its group, seed). A turn's prompt has the seed and its index.
      generate: the policy, called once a round. What it raises is passed on. A sample with a
        finish reason that is none of `Sample`'s, which is how a served policy reports a failure,
        ends that rollout with a tool error.
      search: finds pages. What it raises ends that rollout alone, with a tool error, and so does
        a call that takes longer than `settings.tool_timeout_s`. It is called from threads, one
        call at a time a rollout; where no limit is set, from the caller's.
      render: shows pages; likewise.
      settings: limits, context and temperature.
      map_tools: does the tools' work of a round, an executor's `map` where both bear threads.
      on_finish: is given a task's index and its trajectory as soon as that has ended.

    Returns:
      One trajectory a task, in order, whatever became of it.
    """

    def retrieve(question: Question, query: str) -> Sequence[int]:
        return search(question.document, query, settings.top_k)

    return run_agent(tasks, generate, retrieve, render, settings, map_tools, on_finish)


class _Ended(Exception):
    """Another rollout has failed."""


def each_alone(
    roll_out: Callable[..., Sequence[Trajectory]], generate: Generate, *, at_once: int
) -> Callable[[Sequence[Task]], list[Trajectory]]:
    """`roll_out` with each task by itself in a thread, `at_once` of them at one time.

    For a policy on a server: in lock step every conversation waits for the slowest reply of the
    round, and the server waits for the tools. The trajectories are the same.

    Args:
      roll_out: (tasks, generate=...) -> trajectories, such as `run_rollouts` with its other
        arguments given. Its search and render have to bear threads.
      generate: the policy; is asked from all threads. After an exception of any rollout, or an
        interrupt, it is not asked again and the exception is passed on.
      at_once: conversations that are open at one time.
    """

    def run(tasks: Sequence[Task]) -> list[Trajectory]:
        ended = threading.Event()

        def ask(prompts_now, *, temperature):
            if ended.is_set():
                raise _Ended
            return generate(prompts_now, temperature=temperature)

        def one(task):
            try:
                return roll_out([task], generate=ask)
            except BaseException:
                ended.set()
                raise

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(one, task) for task in tasks]
            try:
                concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            finally:
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
        errors = [future.exception() for future in futures if not future.cancelled()]
        for error in errors:
            if error is not None and not isinstance(error, _Ended):
                raise error
        return [trajectory for future in futures for trajectory in future.result()]

    return run


def run_agent(
    tasks: Sequence[Task],
    generate: Generate,
    retrieve: Callable[[Question, str], Sequence[int]],
    render: Render,
    settings: RolloutSettings,
    map_tools: Map,
    on_finish: OnFinish | None,
) -> list[Trajectory]:
    """`run_rollouts` with a search that knows the question, not its document alone."""

    def begin(task: Task) -> Conversation:
        return Conversation(task, _opening(task[0], types.Memory()), prompts.AGENT_TOOLS)

    def advance(conversation: Conversation, sample: Sample) -> Conversation:
        return _step(conversation, sample, retrieve, render, settings)

    return play(tasks, generate, begin, advance, settings, map_tools, on_finish)


def play(
    tasks: Sequence[Task],
    generate: Generate,
    begin: Callable[[Task], Conversation],
    advance: Callable[[Conversation, Sample], Conversation],
    settings: RolloutSettings,
    map_tools: Map,
    on_finish: OnFinish | None,
) -> list[Trajectory]:
    """Plays every conversation to its end, `settings.max_live` of them at one time.

    `begin` and `advance` give a conversation whose status is set where it ends.
    """
    trajectories: dict[int, Trajectory] = {}
    unopened = list(enumerate(tasks))
    live: dict[int, Conversation] = {}
    while live or unopened:
        room = len(tasks) if settings.max_live is None else settings.max_live - len(live)
        opened, unopened = unopened[:room], unopened[room:]
        begun = map_tools(begin, [task for _, task in opened])
        live |= zip([index for index, _ in opened], begun, strict=True)
        asked = [index for index, conversation in live.items() if not conversation.status]
        if asked:
            prompts_now = [live[index].prompt for index in asked]
            samples = generate(prompts_now, temperature=settings.temperature)
            if len(samples) != len(asked):
                raise ValueError(f"generate gave {len(samples)} samples for {len(asked)} prompts")
            advanced = map_tools(advance, [live[index] for index in asked], samples)
            live |= zip(asked, advanced, strict=True)
        for index in [index for index, conversation in live.items() if conversation.status]:
            trajectories[index] = live.pop(index).trajectory
            if on_finish is not None:
                on_finish(index, trajectories[index])
    return [trajectories[index] for index in range(len(tasks))]


def _opening(question: Question, memory: types.Memory) -> tuple[Message, ...]:
    user = prompts.question_text(question.text, memory)
    return Message("system", (prompts.AGENT_SYSTEM,)), Message("user", (user,))


def _step(
    conversation: Conversation,
    sample: Sample,
    retrieve: Callable[[Question, str], Sequence[int]],
    render: Render,
    settings: RolloutSettings,
) -> Conversation:
    """The conversation after one more assistant message."""
    question, before = conversation.question, conversation.state
    if sample.finish_reason == "context_full":
        step = len(conversation.turns) + 1
        return conversation.end(types.CONTEXT_FULL, f"the prompt of step {step} did not fit")
    if sample.finish_reason not in ("stop", "length"):
        return conversation.end(
            types.TOOL_ERROR, f"no message of the policy, {sample.finish_reason}"
        )
    parsed = parse_calls(sample.text)
    errors = parsed.errors
    if errors and sample.finish_reason == "length":
        errors += ("The message was cut off. Write less.",)
    try:
        results = do_calls(
            parsed.calls,
            before,
            question.document,
            retrieve=functools.partial(retrieve, question),
            render=render,
            max_words=settings.max_words,
            timeout_s=settings.tool_timeout_s,
        )
    except ToolFailure as error:
        turn = Turn(conversation.context, sample, (), (), errors, before.memory)
        return conversation.add(turn).end(types.TOOL_ERROR, str(error))
    state = results[-1].state if results else before
    retrieval = next((result for result in results if result.retrieved), None)
    new_context = retrieval is not None and settings.context == "memory"
    if new_context:
        call = Message("assistant", calls=(retrieval.call,))
        messages = (*_opening(question, state.memory), call)
    else:
        messages = (*conversation.messages, sample)
    replies = [(error,) for error in errors]
    for result in results:
        # In a new context the memory shows what was noted; what was refused is still to be told.
        told = result.retrieved or result.refused or not new_context
        if told and result.content and not (result.refused and result.content in replies):
            replies.append(result.content)
    turn = Turn(
        context=conversation.context,
        sample=sample,
        calls=tuple(result.call for result in results if not result.refused),
        observation=tuple(itertools.chain.from_iterable(replies)),
        violations=errors + tuple(result.content[0] for result in results if result.refused),
        memory=state.memory,
    )
    after = dataclasses.replace(
        conversation,
        messages=(*messages, *(Message("tool", content) for content in replies)),
        context=conversation.context + new_context,
        state=state,
        unparsed=0 if parsed.calls else conversation.unparsed + 1,
    ).add(turn)
    if state.final_answer is not None:
        return after.end(types.ANSWERED)
    if after.unparsed == UNPARSED_LIMIT:
        return after.end(types.MALFORMED, f"no tool call in {UNPARSED_LIMIT} messages: {errors[0]}")
    if len(after.turns) == settings.max_steps:
        return after.end(types.STEP_BUDGET, f"no answer in {settings.max_steps} steps")
    return after
