"""Who judges: readers and extractors by URL, folder or name, and their verdicts."""

import functools
import pathlib
from collections.abc import Callable, Sequence

from awm_jax.commands import served
from awm_jax.evaluation import foreign
from awm_jax.judging import extraction, model_extraction, reader, rule_reader, training_scorer
from awm_jax.policy_served import make_served_generate
from awm_jax.types import Generate, Memory, Question, Verdict

RECORDED = "recorded"
# (question, reply) of each -> short answers, None where it failed.
Extract = Callable[[Sequence[tuple[Question, str]]], Sequence[str | None]]


def load_reader(
    where: str, model: str, key_variable: str | None, *, hosted: bool, dtype: str
) -> tuple[training_scorer.Read | None, str]:
    """Who reads the memories, and its name; None where the records hold the answers.

    Args:
      where: a server's URL, a checkpoint's folder, "rule" or `RECORDED`.
      model: as the server calls it; empty for its only one.
      key_variable: environment variable with the server's key.
      hosted: the server is a hosted service, which is not told to leave thinking off.
      dtype: of a checkpoint's weights.

    Raises:
      ValueError: `where` is none of these.
      ServerError: the server does not answer.
    """
    if where == "rule":
        return rule_reader.read_memories, rule_reader.NAME
    if where == RECORDED:
        return None, "as recorded in the file"
    if served.is_url(where):
        server = served.find_server(where, model, key_variable)
        extra = None if hosted else served.THINKING_OFF
        generate, name = make_served_generate(server, max_tokens=256, extra=extra), str(server)
    else:
        expected = f"--reader {where}: expected a URL, rule, {RECORDED}"
        generate, name = _local(where, dtype, expected), where
    return functools.partial(reader.read_memories, generate, seed=(0,)), name


def load_extractor(
    where: str,
    model: str,
    key_variable: str | None,
    *,
    hosted: bool,
    dtype: str,
    benchmark: str,
    prompt: pathlib.Path | None,
    cache: pathlib.Path,
) -> tuple[Extract, str]:
    """Who makes answers short, and its name; arguments and errors as in `load_reader`.

    Args:
      where: or "none", which takes answers as they are.
      hosted: gets the benchmark's own sequence of messages.
      benchmark: "mmlongbench" or "longdocurl", whose instructions are sent.
      prompt: file of instructions to send instead of ours.
      cache: file of what a server replied before.
    """
    if where == "rule":
        return extraction.extract_all, extraction.NAME
    if where == "none":
        return lambda items: [answer for _, answer in items], "none, answers taken as they are"
    instructions = model_extraction.Instructions(
        benchmark,
        prompt.read_text(encoding="utf-8") if prompt else "",
        # Local chat templates take a last assistant message for one to go on with.
        one_turn=not hosted,
    )
    if served.is_url(where):
        server = served.find_server(where, model, key_variable)
        extract = functools.partial(
            model_extraction.extract_served, server, cache=model_extraction.Cache(cache)
        )
        name = str(server)
    else:
        generate = _local(where, dtype, f"extractor {where}: expected a URL, rule, none")
        extract, name = functools.partial(model_extraction.extract_local, generate), where
    return functools.partial(extract, instructions=instructions), f"{name}, {instructions.name}"


def judge(
    entries: Sequence[foreign.Entry],
    read: training_scorer.Read | None,
    extract: Extract,
    score: Callable,
    scorer: str,
) -> list[Verdict]:
    """One verdict a record, in order.

    Args:
      entries: the records.
      read: who reads the memories, None for the answers that the records hold.
      extract: who makes answers short.
      score: (gold, short answer, answer format) -> score in [0, 1].
      scorer: the name of all this, which the verdicts carry.
    """
    recorded = iter([_recorded(entry) for entry in entries if entry.trajectory.valid])

    def as_recorded(items: Sequence[tuple[str, Memory]]) -> list[str | None]:
        return [next(recorded) for _ in items]

    return training_scorer.judge(
        [entry.trajectory for entry in entries],
        read=read or as_recorded,
        score=functools.partial(training_scorer.extracted_scores, extract=extract, score=score),
        scorer=scorer,
    )


def _recorded(entry: foreign.Entry) -> str | None:
    """The memory-only answer that the record holds; None, which is no judgement, without one."""
    if entry.verdict is not None and not entry.verdict.error:
        return entry.verdict.memory_answer
    return entry.memory_answer


def _local(where: str, dtype: str, expected: str) -> Generate:
    """The model in a checkpoint's folder, thinking off."""
    if not pathlib.Path(where).is_dir():
        raise ValueError(f"{expected} or the folder of a Qwen3 checkpoint")
    # Imported where it is used: servers and rules need no JAX.
    from awm_jax.models import hf
    from awm_jax.models.processor import load_processor
    from awm_jax.policy import make_generate

    model = hf.load_model(where, dtype=dtype)
    return make_generate(
        model,
        model.params,
        load_processor(hf.checkpoint_directory(where)),
        enable_thinking=False,
        max_new_tokens=256,
        prompt_buckets=(256, 512, 1024, 2048, 4096, 8192),
        batch_buckets=(1, 4, 16),
    )
