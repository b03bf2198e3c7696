"""The tiny world's scripted teacher in the policy's place: it says what it always says."""

import json
from collections.abc import Sequence

import numpy as np

from awm_jax.datasets import tiny_world
from awm_jax.types import Generate, Prompt, Question, Sample

_NOTHING = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))


def scripted_teacher(
    questions: Sequence[Question],
    *,
    seed: int,
    generic_last: float,
    generic_earlier: float,
    wrong: float = 0.0,
) -> Generate:
    """A teacher for rollouts of these questions.

    It tells the question by the prompt's seed, whose last three numbers must be the question's
    place, the rollout and the turn, as `evaluation.run.evaluate` seeds them.

    Args:
      questions: of the tiny world.
      seed: of the teacher's choices.
      generic_last, generic_earlier: see `tiny_world.teacher_turns`.
      wrong: share of rollouts whose final answer is a wrong one.
    """

    def say(prompt: Prompt) -> str:
        *_, place, rollout, turn = prompt.seed
        rng = np.random.default_rng((seed, place, rollout))
        turns = tiny_world.teacher_turns(
            questions[place], rng, generic_last=generic_last, generic_earlier=generic_earlier
        )
        lie = turn == len(turns) - 1 and rng.random() < wrong
        calls = []
        for call in turns[turn]:
            # Values of the world have two digits.
            arguments = {"answer": "100"} if lie and call.name == "answer" else call.arguments
            body = json.dumps({"name": call.name, "arguments": dict(arguments)})
            calls.append(f"<tool_call>\n{body}\n</tool_call>")
        return "\n".join(calls)

    def generate(prompts: Sequence[Prompt], *, temperature: float) -> list[Sample]:
        return [Sample(*_NOTHING, say(prompt), "stop") for prompt in prompts]

    return generate
