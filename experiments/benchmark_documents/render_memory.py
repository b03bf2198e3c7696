"""Does memory stay flat over thousands of pages? In workers, and in the process itself.

python experiments/benchmark_documents/render_memory.py DIR --out render_memory.json

DIR holds PDFs; their pages are drawn round and round. RSS in MB is read from /proc (Linux).
"""

import argparse
import itertools
import json
import os
import pathlib
import resource

import PIL

from awm_jax.documents import pdf, workers
from awm_jax.documents.pdf import pymupdf


def resident_mb(process: int) -> float:
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return round(int(kilobytes) / 1024, 1)


def worker_mb() -> float:
    """Of the one worker, the only child of this process; 0 where there is none."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return max(map(resident_mb, map(int, children)), default=0.0)


def cpu_seconds() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def draw(documents, run, *, pages: int, every: int, max_pixels: int) -> dict:
    wanted = ((d, n) for d in documents for n in range(1, d.page_count + 1))
    placeholders, rows, began = 0, [], cpu_seconds()
    for count, (document, number) in enumerate(
        itertools.islice(itertools.cycle(wanted), pages), start=1
    ):
        page = pdf.render_page(document, number, max_pixels=max_pixels, run=run)
        placeholders += pdf.is_placeholder(page)
        if count % every == 0:
            rows.append((count, resident_mb(os.getpid()), worker_mb()))
            print(*rows[-1], flush=True)
    return {
        "pages": pages,
        "placeholders": placeholders,
        "cpu_s": round(cpu_seconds() - began, 1),
        "columns": ["pages", "process_mb", "worker_mb"],
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--max_pixels", type=int, default=768 * 594)
    arguments = parser.parse_args()
    sizes = {"every": arguments.every, "max_pixels": arguments.max_pixels}
    names = sorted(path.name for path in arguments.documents.glob("*.pdf"))
    results = {"pymupdf": pymupdf.VersionBind, "pillow": PIL.__version__, **sizes}
    began = cpu_seconds()
    with workers.run_in_workers() as run:
        documents, failures = pdf.open_documents(arguments.documents, names, run=run)
        documents = list(documents.values())
        results["documents"] = len(documents)
        results["failures"] = failures
        results["in_workers"] = draw(documents, run, pages=arguments.pages, **sizes)
    # The worker's is known once it has ended; opening the documents is in it.
    results["in_workers"]["cpu_s"] = round(cpu_seconds() - began, 1)
    results["in_this_process"] = draw(documents, pdf.run_here, pages=arguments.pages, **sizes)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
