"""Config sections of the recipe -> questions, tools, and who answers and judges."""

import contextlib
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from awm_jax import servers
from awm_jax.commands import build
from awm_jax.datasets import doc750k, longdocurl, mmlongbench, steps, tiny_teacher, tiny_world
from awm_jax.documents import index, pdf, workers
from awm_jax.judging import reader, rule_reader, training_scorer
from awm_jax.policy_served import make_served_generate
from awm_jax.types import Generate, Question, Trajectory, Verdict

Judge = Callable[[Sequence[Trajectory]], Sequence[Verdict]]


def load_questions(
    section: ml_collections.ConfigDict,
) -> tuple[list[Question], Mapping[str, Sequence[str]], str]:
    """All questions of a data set, page images by document where it has no files, its sha256."""
    match section.dataset:
        case "tiny_world":
            questions = tiny_world.make_world(
                section.root, section.split, seed=section.seed, documents=section.documents
            )
            return questions, {}, steps.file_digest(pathlib.Path(section.root) / "questions.json")
        case "doc750k":
            questions, images, report = doc750k.load(section.root, files=section.files)
            absent = set(report.missing_documents)
            return [q for q in questions if q.document not in absent], images, report.digest
        case "mmlongbench" | "longdocurl":
            module = {"mmlongbench": mmlongbench, "longdocurl": longdocurl}[section.dataset]
            questions, report = module.load(section.root)
            return questions, {}, report.digest
        case other:
            raise ValueError(
                f"dataset {other!r}: expected tiny_world, doc750k, mmlongbench or longdocurl"
            )


@contextlib.contextmanager
def open_library(
    data: ml_collections.ConfigDict,
    questions: Sequence[Question],
    *,
    documents_in: pathlib.Path,
    index_at: str | pathlib.Path,
) -> Iterator[build.Library]:
    """The tools' side of the questions' documents; those that cannot be opened are tool errors.

    Args:
      data: `dpi`, `max_pixels` and `page_cache`.
      questions: whose documents are opened and indexed.
      documents_in: the folder that holds them.
      index_at: a folder for embedded Qdrant, or the URL of a server.
    """
    documents, failures = pdf.open_documents(
        documents_in, (question.document for question in questions), run=workers.run
    )
    opened = list(documents.values())
    with contextlib.closing(index.open_client(index_at)) as client:
        report = index.build_index(client, opened)
        yield build.Library(
            questions=tuple(questions),
            search=index.make_search(client, opened),
            render=build.make_render(data, documents),
            page_count=lambda name: documents[name].page_count,
            provenance=(f"index: {report}", *failures.values()),
        )


def make_generate(section: ml_collections.ConfigDict, questions: Sequence[Question]) -> Generate:
    """Who answers: a script, a server, or a checkpoint on this machine's devices."""
    match section.kind:
        case "script":
            return tiny_teacher.scripted_teacher(questions, **section.script)
        case "server":
            return _served(section)
        case "checkpoint":
            policy = build.load_policy(section, section.sampler)
            return policy.generate(policy.params, version=0)
        case other:
            raise ValueError(f"kind {other!r}: expected script, server or checkpoint")


def _served(section) -> Generate:
    return make_served_generate(
        servers.Server(**section.server),
        max_tokens=section.max_tokens,
        tools=section.tools,
        extra=section.extra.to_dict(),
    )


def make_judge(section: ml_collections.ConfigDict) -> Judge:
    """A reader on this machine with the rules as scorer, a served one that scores as well, or
    rules alone, which are for trying things out."""
    match section.kind:
        case "checkpoint":
            return build.load_reader(section).judge
        case "server":
            generate = _served(section)
            return functools.partial(
                training_scorer.judge,
                read=functools.partial(reader.read_memories, generate, seed=(0,)),
                score=functools.partial(training_scorer.model_scores, generate, seed=(1,)),
                scorer=f"{section.server.model} as training scorer",
            )
        case "rules":
            return functools.partial(
                training_scorer.judge, read=rule_reader.read_memories, scorer=rule_reader.NAME
            )
        case other:
            raise ValueError(f"reader kind {other!r}: expected checkpoint, server or rules")


def data_settings(data: ml_collections.ConfigDict) -> dict[str, Any]:
    """The section as a manifest holds it: all but where rendered pages are kept."""
    return {name: value for name, value in data.to_dict().items() if name != "page_cache"}


def described(section: ml_collections.ConfigDict) -> dict[str, Any]:
    """The section as a manifest holds it: what decides the results, and not where it runs.

    A local checkpoint has the sha256 over its weights beside its name.
    """
    settings = section.to_dict()
    if section.kind == "server":
        settings["server"] = section.server.model
    if section.kind == "checkpoint":
        digest = hashlib.sha256()
        for path in sorted(pathlib.Path(section.checkpoint).glob("*.safetensors")):
            digest.update(f"{path.name}\0{steps.file_digest(path)}\n".encode())
        settings["weights_sha256"] = digest.hexdigest()
    return settings
