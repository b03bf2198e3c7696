"""Render, embed and index a data set's PDFs, then ask each question verbatim.

python experiments/benchmark_documents/retrieval.py DIR

DIR is in MMLongBench-Doc's form: samples.json and documents/. Prints JSON.
"""

import argparse
import collections
import json
import math
import pathlib
import re
import resource
import time
from collections.abc import Callable, Sequence

from awm_jax.datasets import mmlongbench
from awm_jax.documents import embed, index, pdf
from awm_jax.documents.pdf import pymupdf
from awm_jax.types import Document, Question

KS = (1, 3, 5)


def plain_bm25(texts: Sequence[str], query: str, *, k1: float = 1.2, b: float = 0.75) -> list[int]:
    """The pages, best first: lower-case words with all their endings, and all of the query's."""
    pages = [collections.Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(page.total() for page in pages) / len(pages) or 1.0
    scores = [0.0] * len(pages)
    for term in re.findall(r"\w+", query.lower()):
        holding = sum(term in page for page in pages)
        idf = math.log1p((len(pages) - holding + 0.5) / (holding + 0.5))
        for place, page in enumerate(pages):
            norm = k1 * (1 - b + b * page.total() / mean)
            scores[place] += idf * page[term] * (k1 + 1) / (page[term] + norm)
    return sorted(range(1, len(pages) + 1), key=lambda page: (-scores[page - 1], page))


def asked(questions: Sequence[Question], documents: dict[str, Document]) -> list[Question]:
    """Those with an answer, all of whose evidence pages have text."""

    def has_text(question: Question) -> bool:
        texts = documents[question.document].page_texts
        return all(texts[page - 1].strip() for page in question.evidence_pages)

    return [
        question
        for question in questions
        if question.answer_format != "None" and question.evidence_pages and has_text(question)
    ]


def recall(questions: Sequence[Question], rank: Callable[[Question], Sequence[int]]) -> dict:
    """By k: mean share of the evidence pages found, share of questions with any and with all."""
    rates = {"questions": len(questions)}
    ranked = [rank(question) for question in questions]
    for k in KS:
        shares = [
            len(set(question.evidence_pages) & set(pages[:k])) / len(set(question.evidence_pages))
            for question, pages in zip(questions, ranked, strict=True)
        ]
        counts = (sum(shares), sum(share > 0 for share in shares), shares.count(1))
        rates[f"@{k}"] = [round(count / len(questions), 3) for count in counts]
    return rates


def by_source(questions: Sequence[Question], rank: Callable[[Question], Sequence[int]]) -> dict:
    """Overall and by evidence source; a question with several counts for each."""
    sources = sorted({source for question in questions for source in question.evidence_sources})
    return {"all": recall(questions, rank)} | {
        source: recall([q for q in questions if source in q.evidence_sources], rank)
        for source in sources
    }


def timed(pages: int, work: Callable[[], object]) -> tuple[object, dict]:
    began = time.process_time()
    result = work()
    seconds = time.process_time() - began
    # The peak of the process so far, in MB (Linux counts kilobytes).
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result, {
        "cpu_s": round(seconds, 2),
        "pages_per_cpu_s": round(pages / seconds, 1),
        "peak_mb": round(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--max_pixels", type=int, default=768 * 594)
    arguments = parser.parse_args()
    questions, _ = mmlongbench.load(arguments.data)
    names = list(dict.fromkeys(question.document for question in questions))
    began = time.process_time()
    documents, failures = pdf.open_documents(arguments.data / "documents", names)
    open_seconds = time.process_time() - began
    pages = sum(document.page_count for document in documents.values())

    def render() -> None:
        for document in documents.values():
            for number in range(1, document.page_count + 1):
                pdf.render_page(document, number, max_pixels=arguments.max_pixels)

    client = index.open_client(":memory:")
    stages = {
        "open and read text": {
            "cpu_s": round(open_seconds, 2),
            "pages_per_cpu_s": round(pages / open_seconds, 1),
        }
    }
    _, stages["embed"] = timed(
        pages, lambda: [embed.embed_pages(d.page_texts) for d in documents.values()]
    )
    report, stages["embed and index"] = timed(
        pages, lambda: index.build_index(client, list(documents.values()))
    )
    _, stages["render"] = timed(pages, render)
    search = index.make_search(client, list(documents.values()))
    counted = asked(questions, documents)
    results = {
        "pymupdf": pymupdf.VersionBind,
        "embedder": embed.NAME,
        "max_pixels": arguments.max_pixels,
        "documents": len(documents),
        "failures": failures,
        "pages": pages,
        "pages_without_text": report.pages_without_text,
        "stages": stages,
        "recall": {
            "plain BM25": by_source(
                counted, lambda q: plain_bm25(documents[q.document].page_texts, q.text)
            ),
            "lexical": by_source(counted, lambda q: search(q.document, q.text, max(KS))),
        },
    }
    client.close()
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
