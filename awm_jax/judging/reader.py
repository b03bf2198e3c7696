"""The frozen reader R: answers from the question and the terminal memory alone (section 2).

It sees no page and no trajectory, so that its answer tells what the memory is worth by itself.
"""

import collections
import dataclasses
import logging
from collections.abc import Sequence

from awm_jax.types import Generate, Memory, Message, Prompt, Sample

READER_SYSTEM = (
    "You answer a question from notes alone. Reply with the answer alone. If the notes do not "
    "hold the answer, reply Not answerable."
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the reader made of one memory.

    Attributes:
      answer: what it answered; empty where question and memory did not fit into the reader;
        None where the reader failed.
      finish_reason: why it stopped, as in `Sample`; anything unknown there is a failure.
    """

    answer: str | None
    finish_reason: str

    @classmethod
    def of(cls, sample: Sample) -> "Reading":
        match sample.finish_reason:
            case "stop" | "length":
                return cls(sample.text.strip(), sample.finish_reason)
            case "context_full":
                return cls("", sample.finish_reason)
        return cls(None, sample.finish_reason)


def reader_prompt(question: str, memory: Memory, *, seed: tuple[int, ...] = ()) -> Prompt:
    """The reader's whole conversation, to be rendered by the reader's own chat template."""
    user = f"Question: {question}\nNotes:\n{memory.text}"
    messages = (Message("system", (READER_SYSTEM,)), Message("user", (user,)))
    return Prompt(messages, seed=seed)


def readings(
    generate: Generate, items: Sequence[tuple[str, Memory]], *, seed: tuple[int, ...]
) -> list[Reading]:
    """Reads each (question, memory) at temperature 0, equal ones once, all in one call.

    Args:
      generate: the frozen reader.
      items: questions with the memory to answer from; an empty memory is read as well.
      seed: of the call; a greedy reader does not need it, a served one may.

    Raises:
      ValueError: `generate` did not give one sample a prompt.
    """
    prompts = {}
    for question, memory in items:
        key = (question, memory.text)
        if key not in prompts:
            prompts[key] = reader_prompt(question, memory, seed=(*seed, len(prompts)))
    samples = generate(list(prompts.values()), temperature=0.0) if prompts else []
    by_key = {key: Reading.of(sample) for key, sample in zip(prompts, samples, strict=True)}
    return [by_key[question, memory.text] for question, memory in items]


def read_memories(
    generate: Generate, items: Sequence[tuple[str, Memory]], *, seed: tuple[int, ...]
) -> list[str | None]:
    """The answers of `readings`, None where the reader failed; what went wrong is logged."""
    results = readings(generate, items, seed=seed)
    odd = collections.Counter(r.finish_reason for r in results if not r.answer)
    odd.pop("stop", None)
    if odd:
        logging.getLogger(__name__).warning(
            "of %d memories some could not be read, by reason: %s", len(results), dict(odd)
        )
    return [result.answer for result in results]
