"""Qdrant over pages: pages in, the best pages of one document out.

Embedded Qdrant compares a query with every point of its collection before it looks at the
filter: 0.1 s a search at 2,500 pages. So an embedded index spreads its documents over
`_EMBEDDED_BUCKETS` collections, a server keeps them in one.

A collection `<name>-documents` is the manifest: one point a document, written after the last of
its pages. It tells what an interrupted build still has to do, and keeps vectors of another
embedder or of another file by the same name from being mixed in.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import threading
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

import portalocker  # comes with qdrant-client
import qdrant_client
from qdrant_client import models

from awm_jax.documents import embed
from awm_jax.types import Document, Search

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://awm_jax/documents/index")
_VECTOR = "terms"
_EMBEDDED_BUCKETS = 128
_PAGES_A_REQUEST = 64
_MANIFEST_PAGE = 1024

Payload = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class BuildReport:
    """What a build found and did.

    Attributes:
      documents: how many the index now holds of those asked for.
      pages: their pages.
      pages_without_text: how many of these have no term to find them by; a search returns them
        only after every page that matches.
      already_there: how many of the documents an earlier build had finished.
    """

    documents: int
    pages: int
    pages_without_text: int
    already_there: int

    def __str__(self) -> str:
        return (
            f"{self.documents} documents, {self.pages} pages "
            f"({self.pages_without_text} without text); {self.already_there} documents were there"
        )


def open_client(location: str | pathlib.Path) -> qdrant_client.QdrantClient:
    """A client for the index at `location`; close it when done.

    Args:
      location: ":memory:", a folder for embedded Qdrant, or a server's http(s) URL, whose key
        is read from the environment's QDRANT_API_KEY. Embedded Qdrant unpickles what lies in
        its folder: open only one that was written here.

    Raises:
      ValueError: the folder holds other things.
      RuntimeError: another client has the folder open.
    """
    if str(location) == ":memory:":
        return qdrant_client.QdrantClient(":memory:")
    if str(location).startswith(("http://", "https://")):
        return qdrant_client.QdrantClient(
            url=str(location),
            api_key=os.environ.get("QDRANT_API_KEY"),
            timeout=60,
            # It warns where the server does not answer; the first request says so as an error.
            check_compatibility=False,
        )
    folder = pathlib.Path(location)
    if folder.exists() and not (
        folder.is_dir() and ((folder / "meta.json").exists() or not any(folder.iterdir()))
    ):
        raise ValueError(f"{folder}: expected an index, an empty folder or none; found other files")
    _refuse_if_open(folder)
    # The check is Qdrant's own and leaves a connection open, which Python 3.13 warns about;
    # searches read from memory, and writing is for one thread anyway.
    return qdrant_client.QdrantClient(path=str(folder), force_disable_check_same_thread=True)


def _refuse_if_open(folder: pathlib.Path) -> None:
    """`RuntimeError` where another client has the folder; Qdrant's own leaves a file open."""
    lock = folder / ".lock"
    if not lock.exists():
        return
    with lock.open("r+") as file:
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException as error:
            raise RuntimeError(
                f"{folder}: the index is open in another client, and embedded Qdrant serves one "
                "at a time. Close that one, share it, or run a Qdrant server and pass its URL."
            ) from error
        portalocker.unlock(file)


def _is_embedded(client: qdrant_client.QdrantClient) -> bool:
    return client.init_options["url"] is None


def _collection(name: str, document: str, embedded: bool) -> str:
    bucket = zlib.crc32(document.encode()) % (_EMBEDDED_BUCKETS if embedded else 1)
    return f"{name}-pages-{bucket}"


def _manifest_of(name: str) -> str:
    return f"{name}-documents"


def _of_document(document: str) -> models.Filter:
    match = models.MatchValue(value=document)
    return models.Filter(must=[models.FieldCondition(key="document", match=match)])


def _point_id(document: str, page: int) -> str:
    """Page 0 stands for the document itself."""
    return str(uuid.uuid5(_NAMESPACE, f"{page}/{document}"))


def _read_manifest(client: qdrant_client.QdrantClient, name: str) -> dict[str, Payload]:
    """Payloads of the finished documents, by id."""
    if not client.collection_exists(_manifest_of(name)):
        return {}
    entries, offset = {}, None
    while True:
        points, offset = client.scroll(
            _manifest_of(name), limit=_MANIFEST_PAGE, offset=offset, with_payload=True
        )
        entries |= {point.payload["document"]: point.payload for point in points}
        if offset is None:
            return entries


def _entry(document: Document, pages_without_text: int) -> Payload:
    return {
        "document": document.id,
        "digest": document.digest,
        "pages": document.page_count,
        "pages_without_text": pages_without_text,
        "embedder": embed.NAME,
    }


def _disagreements(documents: Sequence[Document], manifest: dict[str, Payload]) -> list[str]:
    """Where the index holds something else by a document's id, in words."""
    found = []
    others = sorted({entry["embedder"] for entry in manifest.values()} - {embed.NAME})
    if others:
        found.append(f"it was built with embedder {', '.join(others)}; this is {embed.NAME}")
    for document in documents:
        entry = manifest.get(document.id)
        if entry is not None and entry["digest"] != document.digest:
            found.append(
                f"{document.id}: it holds a file with digest {entry['digest'][:12]}, "
                f"this one has {document.digest[:12]}"
            )
    return found


def _refuse_to_mix(name: str, documents: Sequence[Document], manifest: dict[str, Payload]) -> None:
    ids = [document.id for document in documents]
    if repeated := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"documents with the same id: {repeated}")
    if found := _disagreements(documents, manifest):
        raise ValueError(
            f"index {name!r} does not fit these documents; build another one.\n  "
            + "\n  ".join(found)
        )


def build_index(
    client: qdrant_client.QdrantClient, documents: Sequence[Document], *, name: str = "pages"
) -> BuildReport:
    """Puts the documents' pages into the index; those that are there already are left alone.

    An interrupted build is finished by calling it again. Write from one thread of one process:
    embedded Qdrant does not survive concurrent writers.

    Args:
      client: from `open_client`.
      documents: with ids that differ.
      name: several indexes may live side by side under different names.

    Raises:
      ValueError: the index was built with another embedder, or holds a different file by the
        id of one of the documents. Nothing was written.
    """
    embedded = _is_embedded(client)
    manifest = _read_manifest(client, name)
    _refuse_to_mix(name, documents, manifest)
    if not client.collection_exists(_manifest_of(name)):
        client.create_collection(_manifest_of(name), vectors_config={})
    entries = []
    for document in documents:
        if document.id not in manifest:
            entries.append(_add_document(client, document, name, embedded))
    entries += [manifest[document.id] for document in documents if document.id in manifest]
    return BuildReport(
        documents=len(documents),
        pages=sum(entry["pages"] for entry in entries),
        pages_without_text=sum(entry["pages_without_text"] for entry in entries),
        already_there=sum(document.id in manifest for document in documents),
    )


def _add_document(
    client: qdrant_client.QdrantClient, document: Document, name: str, embedded: bool
) -> Payload:
    collection = _collection(name, document.id, embedded)
    if client.collection_exists(collection):
        # Pages of a build that was cut short, perhaps of another file by this name.
        client.delete(collection, models.FilterSelector(filter=_of_document(document.id)))
    else:
        client.create_collection(
            collection,
            vectors_config={},
            sparse_vectors_config={_VECTOR: models.SparseVectorParams()},
        )
        if not embedded:
            # Embedded Qdrant has no payload index and warns.
            client.create_payload_index(
                collection, "document", field_schema=models.PayloadSchemaType.KEYWORD
            )
    points = [
        models.PointStruct(
            id=_point_id(document.id, number),
            payload={"document": document.id, "page": number},
            vector={_VECTOR: models.SparseVector(indices=indices, values=values)},
        )
        for number, (indices, values) in enumerate(embed.embed_pages(document.page_texts), start=1)
        if indices
    ]
    for start in range(0, len(points), _PAGES_A_REQUEST):
        client.upsert(collection, points[start : start + _PAGES_A_REQUEST], wait=True)
    entry = _entry(document, document.page_count - len(points))
    client.upsert(
        _manifest_of(name),
        [models.PointStruct(id=_point_id(document.id, 0), payload=entry, vector={})],
        wait=True,
    )
    return entry


def make_search(
    client: qdrant_client.QdrantClient,
    documents: Sequence[Document],
    *,
    name: str = "pages",
    cache_size: int = 16_384,
) -> Search:
    """A `Search` over documents that are in the index; for any number of threads.

    Pages come best first, equal scores in page order. Pages that share no term with the query,
    those without text among them, fill up to k in page order. More than the document's pages
    are never returned.

    Args:
      client: from `open_client`; it stays open as long as the search is used.
      documents: what is searched, as given to `build_index`.
      name: the index.
      cache_size: how many answers are remembered.

    Raises:
      ValueError: a document is not in the index, or differs from what is.
    """
    embedded = _is_embedded(client)
    manifest = _read_manifest(client, name)
    _refuse_to_mix(name, documents, manifest)
    if missing := [document.id for document in documents if document.id not in manifest]:
        raise ValueError(f"not in index {name!r}, build it first: {missing}")
    page_counts = {document.id: document.page_count for document in documents}
    # Embedded Qdrant is not made for threads.
    one_at_a_time = threading.Lock() if embedded else contextlib.nullcontext()

    @functools.lru_cache(maxsize=cache_size)
    def ranked(document: str, query: str) -> tuple[int, ...]:
        indices, values = embed.embed_query(query)
        if not indices:
            return ()
        with one_at_a_time:
            found = client.query_points(
                _collection(name, document, embedded),
                query=models.SparseVector(indices=indices, values=values),
                using=_VECTOR,
                query_filter=_of_document(document),
                limit=page_counts[document],
                with_payload=["page"],
            ).points
        # Rounded: equal pages differ in the last bits, by the order of summation.
        scores = {point.payload["page"]: round(point.score, 4) for point in found}
        return tuple(sorted(scores, key=lambda page: (-scores[page], page)))

    def search(document: str, query: str, k: int) -> tuple[int, ...]:
        if document not in page_counts:
            raise ValueError(f"no document {document!r} among the {len(page_counts)} indexed")
        if k < 1:
            raise ValueError(f"expected at least one page to be asked for, found k={k}")
        best = ranked(document, query)[:k]
        if len(best) < k:
            rest = (page for page in range(1, page_counts[document] + 1) if page not in best)
            best += tuple(page for page, _ in zip(rest, range(k - len(best)), strict=False))
        return best

    return search
