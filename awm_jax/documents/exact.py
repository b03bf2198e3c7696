"""Search by an embedder's vectors, each page of the document compared: no index, nothing missed.

Only the pages of one document are compared, so that no approximation is needed. All vectors are
held in memory: 0.4 MB for a page of 768 tokens of 128 numbers.
"""

import functools
from collections.abc import Sequence

import numpy as np

from awm_jax.documents.embed_served import Embedder, Readable
from awm_jax.types import Document, Render, Search


def similarity(query: np.ndarray, page: np.ndarray) -> float:
    """Dot product of two vectors, `[size]`; of two lists of them, `[token, size]`, MaxSim.

    MaxSim is the sum, over the query's tokens, of the best dot product with any of the page's
    (ColBERT, https://arxiv.org/abs/2004.12832, section 3.3). Without padding no zero vector can
    beat a negative product.
    """
    if query.ndim != page.ndim or query.shape[-1] != page.shape[-1]:
        raise ValueError(f"query {list(query.shape)} and page {list(page.shape)} do not compare")
    return float(query @ page) if query.ndim == 1 else float((query @ page.T).max(axis=1).sum())


def make_vector_search(
    embedder: Embedder,
    documents: Sequence[Document],
    *,
    render: Render,
    cache_size: int = 16_384,
) -> Search:
    """A `Search` over the documents, whose pages are embedded now; for any number of threads.

    With `embed_served.kept` a call that was interrupted goes on: only what is missing is
    embedded. Pages come best first, equal scores in page order.

    Args:
      embedder: of pages and queries.
      documents: what is searched, with ids that differ.
      render: gives the pages of an embedder that reads images; as many are held at one time as
        the embedder takes at once.
      cache_size: how many answers are remembered.

    Raises:
      ValueError: documents with the same id.
      ServerError: a page could not be embedded.
    """
    ids = [document.id for document in documents]
    if repeated := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"documents with the same id: {repeated}")
    vectors = {document.id: _embed(embedder, document, render) for document in documents}

    @functools.lru_cache(maxsize=cache_size)
    def ranked(document: str, query: str) -> tuple[int, ...]:
        asked = embedder.embed_query(query)
        # Rounded: equal pages may differ in the last bits.
        scores = [round(similarity(asked, page), 4) for page in vectors[document]]
        pages = range(1, len(scores) + 1)
        return tuple(sorted(pages, key=lambda page: (-scores[page - 1], page)))

    def search(document: str, query: str, k: int) -> tuple[int, ...]:
        if document not in vectors:
            raise ValueError(f"no document {document!r} among the {len(vectors)} embedded")
        if k < 1:
            raise ValueError(f"expected at least one page to be asked for, found k={k}")
        return ranked(document, query)[:k]

    return search


def _embed(embedder: Embedder, document: Document, render: Render) -> list[np.ndarray]:
    vectors = []
    for start in range(0, document.page_count, embedder.concurrency):
        numbers = range(start + 1, min(start + embedder.concurrency, document.page_count) + 1)
        pages: list[Readable] = [
            document.page_texts[number - 1]
            if embedder.reads == "text"
            else render(document.id, number)
            for number in numbers
        ]
        vectors += embedder.embed_pages(pages)
    return vectors
