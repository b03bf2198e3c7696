"""The controlled memory comparison (the paper, section 2 and appendix D).

The same questions are answered from an empty memory, from the agent's own, and from one that a
stronger model wrote with the gold pages before it. Answer generator, reader and scorer are the
same for all three; the tables are in `evaluation.paper` (3, 8 and 9).
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence

from awm_jax.evaluation.paper import Controlled
from awm_jax.judging.training_scorer import Read
from awm_jax.types import (
    ANSWERED,
    TOOL_ERROR,
    Finding,
    Generate,
    Memory,
    Message,
    Prompt,
    Question,
    Render,
    Trajectory,
    Verdict,
)

# Of a finding, as for the agent.
MOST_WORDS = 40
WRITER_SYSTEM = (
    "You write the notes from which somebody else will answer a question about a document without "
    "seeing it. Write down what the pages shown say that is needed for the answer: names, numbers "
    "with their units, what they are of. One finding a line, each as [page N] finding, with the "
    f"number of its page and at most {MOST_WORDS} words. Write nothing else."
)
_LINE = re.compile(r"^\W*p(?:age|\.)\s*(\d{1,6})\W*\s+(\S.*)$", re.IGNORECASE | re.MULTILINE)


def parse_memory(reply: str, pages: Sequence[int]) -> Memory:
    """The findings in a writer's reply: those that cite one of `pages`, cut to the agent's length.

    A finding without a page is one of the page shown where only one was.
    """
    findings = [
        Finding(int(number), " ".join(text.split()[:MOST_WORDS]))
        for number, text in _LINE.findall(reply)
    ]
    if not findings and len(pages) == 1 and reply.strip():
        lines = (line.strip(" -*\u2022") for line in reply.splitlines())
        findings = [
            Finding(pages[0], " ".join(line.split()[:MOST_WORDS])) for line in lines if line
        ]
    return Memory(tuple(finding for finding in findings if finding.source_page in pages))


def improved_memories(
    generate: Generate, questions: Sequence[Question], render: Render, *, seed: tuple[int, ...]
) -> list[Memory | None]:
    """A stronger model's memory of each question's gold pages; None where it could not be had.

    Args:
      generate: the stronger model, as a rule a served one; it sees the gold pages' images.
      questions: with gold pages.
      render: gives them.
      seed: of the call.

    Raises:
      ValueError: a question has no gold pages.
    """
    if missing := [question.id for question in questions if not question.evidence_pages]:
        raise ValueError(f"no evidence pages to write from for questions {missing}")
    prompts = []
    for place, question in enumerate(questions):
        shown = []
        for number in question.evidence_pages:
            shown += [f"Page {number}:", render(question.document, number)]
        user = Message("user", (*shown, f"Question: {question.text}"))
        prompts.append(Prompt((Message("system", (WRITER_SYSTEM,)), user), seed=(*seed, place)))
    samples = generate(prompts, temperature=0.0) if prompts else []
    memories = [
        parse_memory(sample.text, question.evidence_pages)
        if sample.finish_reason in ("stop", "length")
        else Memory()
        for question, sample in zip(questions, samples, strict=True)
    ]
    if failed := sum(not memory.findings for memory in memories):
        logging.getLogger(__name__).warning(
            "%d of %d improved memories could not be had", failed, len(memories)
        )
    return [memory if memory.findings else None for memory in memories]


def compare(
    original: Sequence[tuple[Trajectory, Verdict]],
    improved: Sequence[Memory | None],
    *,
    answer: Read,
    judge: Callable[[Sequence[Trajectory]], Sequence[Verdict]],
    answer_anew: bool = False,
) -> Controlled:
    """The three conditions, judged.

    Args:
      original: the agent's EP-given run with its verdicts.
      improved: a memory for each of its rollouts; None is no judgement in that condition.
      answer: the answer generator: (question, memory) -> final answers, None where it failed.
      judge: reads each memory and scores both answers, such as `training_scorer.judge` with the
        reader and scorer of the original run.
      answer_anew: answer from the original memory with `answer` as well. The paper's original
        condition has the agent's own final answers (181 of 500 in its Tables 2 and 8).

    Raises:
      ValueError: `improved` has another length than `original`.
    """
    if len(improved) != len(original):
        raise ValueError(f"found {len(improved)} memories for {len(original)} rollouts")
    trajectories = [trajectory for trajectory, _ in original]

    def condition(memories: Sequence[Memory | None]) -> list[tuple[Trajectory, Verdict]]:
        there = [place for place, memory in enumerate(memories) if memory is not None]
        answers = answer([(trajectories[i].question.text, memories[i]) for i in there])
        found = dict(zip(there, answers, strict=True))
        changed = []
        for place, (trajectory, memory) in enumerate(zip(trajectories, memories, strict=True)):
            failed = found.get(place) is None
            changed.append(
                dataclasses.replace(
                    trajectory,
                    turns=(),
                    memory=Memory() if memory is None else memory,
                    final_answer=found.get(place) or "",
                    status=TOOL_ERROR if failed else ANSWERED,
                    error="no memory or no answer from it" if failed else "",
                )
            )
        return list(zip(changed, judge(changed), strict=True))

    return Controlled(
        empty=condition([Memory()] * len(trajectories)),
        original=condition([t.memory for t in trajectories]) if answer_anew else list(original),
        improved=condition(improved),
    )
