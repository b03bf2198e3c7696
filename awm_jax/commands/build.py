"""Config sections -> the objects that a command works with."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import ml_collections

from awm_jax.datasets import longdocurl, mmlongbench, tiny_world
from awm_jax.documents import index, pdf
from awm_jax.types import Question, Render, Search


@dataclasses.dataclass(frozen=True)
class Library:
    """Questions and what the agent's tools need to work on their documents.

    Attributes:
      questions: all of the data set's. One whose document could not be opened stays: its
        rollouts end with a tool error and are counted.
      search: the search tool's.
      render: likewise.
      provenance: what the data are and what is odd about them, one line each.
    """

    questions: tuple[Question, ...]
    search: Search
    render: Render
    provenance: tuple[str, ...]


@contextlib.contextmanager
def open_library(
    data: ml_collections.ConfigDict, *, index_at: str | pathlib.Path
) -> Iterator[Library]:
    """Opens the data set's documents and indexes those that are not in the index yet.

    Args:
      data: `dataset`, `root`, `dpi`, `max_pixels` and, for the tiny world, what to make.
      index_at: a folder for embedded Qdrant, or the URL of a server.
    """
    root = pathlib.Path(data.root)
    match data.dataset:
        case "tiny_world":
            questions = tiny_world.make_world(
                root, data.split, seed=data.seed, documents=data.documents
            )
            notes = [f"tiny world, split {data.split!r}, seed {data.seed}"]
        case "mmlongbench":
            questions, report = mmlongbench.load(root)
            notes = str(report).splitlines()
        case "longdocurl":
            questions, report = longdocurl.load(root)
            notes = str(report).splitlines()
        case other:
            raise ValueError(f"dataset {other!r}: expected tiny_world, mmlongbench or longdocurl")
    documents, failures = pdf.open_documents(
        root / "documents", (question.document for question in questions)
    )
    notes.append(f"{len(questions)} questions on {len(documents)} documents")
    notes += [f"cannot be opened: {name}: {why}" for name, why in failures.items()]
    notes += [
        f"{document.id}: {warning}"
        for document in documents.values()
        for warning in document.warnings
    ]
    with contextlib.closing(index.open_client(index_at)) as client:
        report = index.build_index(client, list(documents.values()))
        yield Library(
            questions=tuple(questions),
            search=index.make_search(client, list(documents.values())),
            render=pdf.make_render(documents, dpi=data.dpi, max_pixels=data.max_pixels),
            provenance=(*notes, f"index: {report}"),
        )
