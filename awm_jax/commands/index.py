"""Puts all documents of a folder into an index, to be searched later.

python -m awm_jax index DIR --out INDEX
python -m awm_jax ask DIR/report.pdf "What was the rate in 2020?" --index INDEX --policy URL

A document is a PDF file or a folder of numbered page images; its id is its path inside DIR.
Killed, the same command goes on with the document at which it was.
"""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Sequence

import rich.progress
import rich.text

from awm_jax.commands import display
from awm_jax.documents import index, page_images, pdf, workers


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m awm_jax index",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("documents", type=pathlib.Path, metavar="DIR", help="with PDFs and folders of page images")
    add(
        "--out",
        required=True,
        metavar="DIR|URL",
        help="a folder for the index, or a Qdrant server; its key is read from QDRANT_API_KEY",
    )
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status: 1 where a document was left out, 2 for errors."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments.documents, arguments.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"index: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("index: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def find_documents(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """PDFs and folders with images in `folder`, at any depth, by their path inside it.

    Raises:
      ValueError: there is none.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        if path.suffix.lower() == ".pdf" and path.is_file():
            found[inside.as_posix()] = path
        elif path.suffix.lower() in page_images.SUFFIXES and path.parent != folder:
            found[inside.parent.as_posix()] = path.parent
    if not found:
        raise ValueError(f"{folder}: expected PDFs or folders of page images, found none")
    return found


def _run(folder: pathlib.Path, out: str) -> int:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with documents")
    paths, left_out, pages, without_text, there = find_documents(folder), 0, 0, 0, 0
    bar = rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        console=display.console,
        transient=True,
        disable=not display.console.is_terminal,
    )
    with contextlib.closing(index.open_client(out)) as client, bar:
        for count, (id, path) in enumerate(bar.track(paths.items(), total=len(paths)), start=1):
            try:
                document = pdf.open_document(path, id=id, run=workers.run)
            except pdf.DocumentError as error:
                left_out += 1
                said = f"left out: {error}"
            else:
                report = index.build_index(client, [document])
                pages += report.pages
                without_text += report.pages_without_text
                there += report.already_there
                said = "; ".join(
                    [
                        f"{report.pages} pages ({report.pages_without_text} without text)",
                        *["was there"] * report.already_there,
                        *document.warnings,
                    ]
                )
            display.console.print(rich.text.Text(f"[{count}/{len(paths)}] {id}: {said}"))
    indexed = len(paths) - left_out
    display.console.print(
        rich.text.Text(
            f"{out}: {indexed} documents, {pages} pages ({without_text} without text); "
            f"{there} documents were there, {left_out} left out"
        )
    )
    return 1 if left_out else 0
