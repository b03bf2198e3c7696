"""PDF files and page images as documents: checked first, then rendered page by page.

Pages are 1-based everywhere above the file. Inside a PDF MuPDF counts from 0, and so do
LongDocURL's image names; `_page_index` is the one place that converts.
"""

import collections
import contextlib
import functools
import hashlib
import logging
import math
import os
import pathlib
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont, ImageOps

from awm_jax.documents import page_cache, page_images
from awm_jax.types import Document, Page, Render

with warnings.catch_warnings():
    # SWIG's types warn as they are imported, and an error in that place breaks the import.
    warnings.simplefilter("ignore", DeprecationWarning)
    import pymupdf

_log = logging.getLogger(__name__)

# Qwen's image processor refuses pages whose sides differ by more than this.
MAX_ASPECT_RATIO = 200
PLACEHOLDER_TEXT = "page could not be rendered"
_PLACEHOLDER_DIGEST = "placeholder-"
_POINTS_PER_INCH = 72

# MuPDF keeps global state and is not thread-safe: whoever touches it holds this.
_mupdf_lock = threading.Lock()


class DocumentError(ValueError):
    """A file that cannot serve as a document; the message says which and why."""


class PageError(Exception):
    """This page cannot be rendered, though its document is there."""


# Calls `read_pdf` or `draw_page` with its arguments: in this process (`run_here`), or in another
# one, where a page that never ends is a `PageError` (`documents.workers`).
Run = Callable[..., Any]


def run_here(function: Callable[..., Any], *arguments) -> Any:
    """A `Run`: in this process and without a time limit."""
    return function(*arguments)


@contextlib.contextmanager
def _mupdf():
    """Exclusive use of MuPDF, with an empty list of warnings and nothing on stderr."""
    with _mupdf_lock:
        pymupdf.TOOLS.mupdf_display_errors(False)
        pymupdf.TOOLS.mupdf_display_warnings(False)
        pymupdf.TOOLS.reset_mupdf_warnings()
        try:
            yield
        finally:
            # MuPDF keeps up to 256 MB of documents that are closed by now.
            pymupdf.TOOLS.store_shrink(100)


def _page_index(document: Document, number: int) -> int:
    """The 0-based index in the file of 1-based page `number`."""
    if not 1 <= number <= document.page_count:
        raise ValueError(
            f"{document.id}: there is no page {number}; pages are 1 to {document.page_count}"
        )
    return number - 1


def _open_pdf(path: pathlib.Path) -> pymupdf.Document:
    """An open PDF with at least one page that needs no password; else `DocumentError`."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror})") from error
    if not start:
        raise DocumentError(f"{path}: the file is empty")
    if start.startswith(b"version https://git-lfs"):
        raise DocumentError(f"{path}: a Git LFS pointer; fetch the file itself (git lfs pull)")
    try:
        pdf = pymupdf.open(path)
    except Exception as error:
        raise DocumentError(f"{path}: not a PDF, or too damaged to open ({error})") from error
    try:
        # MuPDF opens HTML, images and other formats too, whatever the file is called.
        if not pdf.is_pdf:
            raise DocumentError(
                f"{path}: expected a PDF, found {pdf.metadata.get('format') or 'another format'}"
            )
        if pdf.needs_pass:
            raise DocumentError(f"{path}: needs a password; save a copy without one")
        try:
            page_count = pdf.page_count
        except Exception as error:
            raise DocumentError(f"{path}: its pages cannot be counted ({error})") from error
        if page_count == 0:
            raise DocumentError(f"{path}: has no pages")
        if page_count > path.stat().st_size:
            raise DocumentError(f"{path}: claims {page_count} pages, more than it has bytes")
    except BaseException:
        pdf.close()
        raise
    return pdf


def read_pdf(path: str, start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """What `open_document` reads of a PDF, as JSON has it.

    Args:
      path: the file's.
      start, stop: the 0-based pages whose text is read, as in a slice.

    Returns:
      "pages": how many there are. "texts": of the slice. "unreadable": number and reason of
      those whose text cannot be read. "warnings": about the file.

    Raises:
      DocumentError: missing, empty, not a PDF, needs a password, or has no pages.
    """
    with _mupdf(), _open_pdf(pathlib.Path(path)) as pdf:
        warnings = []
        if pdf.is_repaired:
            warnings.append("the file is damaged and was repaired; pages may be missing")
        texts, unreadable = [], []
        for index in range(pdf.page_count)[start:stop]:
            try:
                texts.append(pdf[index].get_text())
            except Exception as error:
                texts.append("")
                unreadable.append((index + 1, str(error)))
        warnings += filter(None, pymupdf.TOOLS.mupdf_warnings().splitlines())
        return {
            "pages": pdf.page_count,
            "texts": texts,
            "unreadable": unreadable,
            "warnings": warnings,
        }


def _read_page_by_page(path: str, run: Run) -> dict[str, Any]:
    """As `read_pdf`; a page that cannot be survived loses its text, the others keep theirs."""
    try:
        read = run(read_pdf, path, 0, 0)
    except PageError as error:
        raise DocumentError(f"{path}: cannot be opened: {error}") from error
    for index in range(read["pages"]):
        try:
            page = run(read_pdf, path, index, index + 1)
        except PageError as error:
            page = {"texts": [""], "unreadable": [(index + 1, str(error))], "warnings": []}
        for name in ("texts", "unreadable", "warnings"):
            read[name] += page[name]
    return read


def open_document(
    path: str | pathlib.Path, *, id: str | None = None, run: Run = run_here
) -> Document:
    """The PDF at `path`, checked, with the text layer of its pages, or a folder of page images.

    Args:
      path: a PDF file; one with an owner password only is read like any other. Or a folder that
        holds an image a page and nothing else, numbered in their names, from 0 or 1
        (`page_images.numbered`); such a document has no text.
      id: the document's id; the file's name where not given.
      run: who reads it; `documents.workers` has one that survives any file.

    Raises:
      DocumentError: missing, empty, not a PDF, needs a password, or has no pages.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        found = _numbered(path)
        # The separator at the end is what tells a folder from the start of image names.
        at = os.path.join(path, "")
        name = path.resolve().name if id is None else id
        return _of_images(found, id=name, path=at, page_count=max(found))
    try:
        read = run(read_pdf, str(path))
    except PageError:
        read = _read_page_by_page(str(path), run)
    found = read["warnings"]
    if unreadable := read["unreadable"]:
        numbers = ", ".join(str(number) for number, _ in unreadable)
        found.append(f"the text of pages {numbers} cannot be read ({unreadable[0][1]})")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Document(
        id=path.name if id is None else id,
        path=str(path),
        page_texts=tuple(read["texts"]),
        digest=digest,
        warnings=tuple(dict.fromkeys(found)),
    )


def page_image_path(document: Document, number: int) -> pathlib.Path:
    """Where the image of 1-based page `number` lies: LongDocURL counts names from 0."""
    return _image_path(document.path, _page_index(document, number))


def _image_path(path: str, index: int) -> pathlib.Path:
    return pathlib.Path(f"{path}_{index}.png")


def open_page_images(
    folder: str | pathlib.Path, name: str, *, page_count: int | None = None
) -> Document:
    """The images `<name>_0.png`, `<name>_1.png`, ... in `folder` as one document without text.

    LongDocURL is published so. The path of such a document is what its image names share.

    Args:
      folder: where the images lie.
      name: the document's id and the start of its image names.
      page_count: how many pages the document has; else the last image decides.

    Raises:
      DocumentError: there is no image of that name.
    """
    folder = pathlib.Path(folder)
    found = {}
    for path in sorted(folder.glob(f"{_glob_literal(name)}_*.png")):
        index = path.stem[len(name) + 1 :]
        if index.isascii() and index.isdigit():
            found[int(index) + 1] = path
    if not found:
        raise DocumentError(f"{folder}: expected page images {name}_0.png and so on, found none")
    count = max(found) if page_count is None else page_count
    return _of_images(found, id=name, path=str(folder / name), page_count=count)


def _numbered(folder: pathlib.Path) -> Mapping[int, pathlib.Path]:
    try:
        return page_images.numbered(folder)
    except (OSError, ValueError) as error:
        raise DocumentError(str(error)) from error


def _of_images(
    images: Mapping[int, pathlib.Path], *, id: str, path: str, page_count: int
) -> Document:
    """The document of images by 1-based page number."""
    missing = [number for number in range(1, page_count + 1) if number not in images]
    digest = hashlib.sha256()
    for number in sorted(images):
        digest.update(number.to_bytes(8) + hashlib.sha256(images[number].read_bytes()).digest())
    return Document(
        id=id,
        path=path,
        page_texts=("",) * page_count,
        digest=digest.hexdigest(),
        warnings=(f"no image for pages {missing}",) if missing else (),
    )


def _glob_literal(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def open_documents(
    folder: str | pathlib.Path, names: Iterable[str], *, run: Run = run_here
) -> tuple[dict[str, Document], dict[str, str]]:
    """Opens each named document of `folder`: a PDF, a folder or a set of page images.

    Args:
      folder: where they lie.
      names: of the documents, which become their ids.
      run: as for `open_document`.

    Returns:
      The documents by id, and why the others could not be opened, by id.
    """
    folder = pathlib.Path(folder)
    documents, failures = {}, {}
    for name in dict.fromkeys(names):
        try:
            if (folder / name).suffix.lower() == ".pdf" or (folder / name).is_dir():
                documents[name] = open_document(folder / name, run=run)
            else:
                documents[name] = open_page_images(folder, name)
        except DocumentError as error:
            failures[name] = str(error)
    return documents, failures


def _fit(width: float, height: float, zoom: float, max_pixels: int) -> tuple[float, int, int]:
    """The largest zoom up to `zoom` that keeps to `max_pixels`, and the size in pixels at it.

    What counts is the page with the padding that `_pad_to_aspect` will add.
    """
    padded = max(width, height / MAX_ASPECT_RATIO) * max(height, width / MAX_ASPECT_RATIO)
    zoom = min(zoom, math.sqrt(max_pixels / padded))
    while True:
        columns = max(1, math.ceil(width * zoom - 1e-3))
        rows = max(1, math.ceil(height * zoom - 1e-3))
        padding = math.ceil(max(columns, rows) / MAX_ASPECT_RATIO)
        pixels = max(columns, padding) * max(rows, padding)
        if pixels <= max_pixels:
            return zoom, columns, rows
        # Whole pixels go over by a little, or by much where a side is less than a pixel.
        zoom *= min(0.999, max_pixels / pixels)


def _render_pdf(path: str, index: int, dpi: float, max_pixels: int) -> np.ndarray:
    """Pixels of the page at 0-based `index`; anything may be raised."""
    with _mupdf(), _open_pdf(pathlib.Path(path)) as pdf:
        try:
            page = pdf[index]
            rect = page.rect
            if not (0 < rect.width < math.inf and 0 < rect.height < math.inf):
                raise RuntimeError(f"its page box is {tuple(rect)}")
            zoom, _, _ = _fit(rect.width, rect.height, dpi / _POINTS_PER_INCH, max_pixels)
            pixmap = page.get_pixmap(
                matrix=pymupdf.Matrix(zoom, zoom), colorspace=pymupdf.csRGB, alpha=False
            )
            rows = np.frombuffer(pixmap.samples, np.uint8).reshape(pixmap.height, pixmap.stride)
            return rows[:, : pixmap.width * 3].reshape(pixmap.height, pixmap.width, 3)
        except Exception as error:
            raise PageError(str(error)) from error


def _read_image(path: pathlib.Path, max_pixels: int) -> np.ndarray:
    try:
        with Image.open(path) as file:
            # Transparent parts are paper, not the black that `convert("RGB")` leaves.
            image = ImageOps.exif_transpose(file).convert("RGBA")
        _, *size = _fit(*image.size, 1.0, max_pixels)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
        if tuple(size) != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        return np.array(image)
    except Exception as error:
        raise PageError(str(error)) from error


def draw_page(path: str, index: int, dpi: float, max_pixels: int) -> np.ndarray:
    """Pixels of one page, drawn in this process.

    Args:
      path: a document's.
      index: of the page in the file, 0-based.
      dpi, max_pixels: as for `render_page`.

    Raises:
      PageError: this page cannot be drawn.
      DocumentError: the document's file is gone or no longer what it was.
    """
    if path.endswith(os.sep):
        images = _numbered(pathlib.Path(path))
        if index + 1 not in images:
            raise PageError("there is no image of it")
        return _read_image(images[index + 1], max_pixels)
    if path.lower().endswith(".pdf") or pathlib.Path(path).is_file():
        return _render_pdf(path, index, dpi, max_pixels)
    image = _image_path(path, index)
    if not image.parent.is_dir():
        raise DocumentError(f"{image.parent}: the folder of page images is gone")
    return _read_image(image, max_pixels)


def _placeholder(max_pixels: int) -> np.ndarray:
    """A white page of at most `max_pixels` that says in words what it stands for."""
    _, columns, rows = _fit(612, 792, 1.0, max_pixels)
    image = Image.new("RGB", (columns, rows), "white")
    font = ImageFont.load_default(size=max(6, columns / 16))
    ImageDraw.Draw(image).text(
        (columns / 2, rows / 2), PLACEHOLDER_TEXT, fill="black", font=font, anchor="mm"
    )
    return np.array(image)


def is_placeholder(page: Page) -> bool:
    """True where the page could not be rendered and a notice was put in its place."""
    return page.digest.startswith(_PLACEHOLDER_DIGEST)


def _pad_to_aspect(image: np.ndarray) -> np.ndarray:
    """White is added to the right or below until no side is too long for the other."""
    height, width, _ = image.shape
    shortest = math.ceil(max(height, width) / MAX_ASPECT_RATIO)
    rows, columns = max(0, shortest - height), max(0, shortest - width)
    if not rows and not columns:
        return image
    return np.pad(image, ((0, rows), (0, columns), (0, 0)), constant_values=255)


def render_page(
    document: Document,
    number: int,
    *,
    dpi: float = 144,
    max_pixels: int = 1024 * 1024,
    run: Run = run_here,
) -> Page:
    """Page `number` of `document` as the policy sees it.

    The size is computed before anything is drawn, so a poster of 14,400 points costs no more
    than a letter. Rotation and crop box are obeyed. The same call gives the same bytes.

    Args:
      document: from `open_document` or `open_page_images`.
      number: 1-based.
      dpi: resolution, in pixels per inch; page images keep their own.
      max_pixels: the image is made smaller until it has at most so many. A page more than
        `MAX_ASPECT_RATIO` times as long as wide is then padded with white.
      run: who draws it; `documents.workers` has one that survives any page.

    Returns:
      The page, its image read-only. Where the page cannot be rendered, a notice in its place
      (see `is_placeholder`) and a logged warning.

    Raises:
      ValueError: there is no such page.
      DocumentError: the document's file is gone or no longer what it was.
    """
    if dpi <= 0 or max_pixels < 1:
        raise ValueError(f"expected dpi > 0 and max_pixels >= 1, found {dpi} and {max_pixels}")
    index = _page_index(document, number)
    prefix = ""
    try:
        image = run(draw_page, document.path, index, dpi, max_pixels)
    except PageError as error:
        _log.warning("%s: page %d could not be rendered: %s", document.id, number, error)
        image, prefix = _placeholder(max_pixels), _PLACEHOLDER_DIGEST
    image = np.ascontiguousarray(_pad_to_aspect(image))
    image.flags.writeable = False
    return Page(document.id, number, image, prefix + page_cache.page_digest(image))


def _keeping_on_disk(
    folder: pathlib.Path, document: Document, number: int, *, dpi: float, max_pixels: int, run: Run
) -> Page:
    """`render_page` that looks into `folder` first and keeps there what it had to draw."""
    # Whatever may change a pixel.
    settings = (float(dpi), max_pixels, MAX_ASPECT_RATIO, pymupdf.VersionBind, PIL.__version__)
    settings_digest = hashlib.sha256(repr(settings).encode()).hexdigest()
    path = folder / document.digest / f"{number}-{settings_digest[:16]}.png"
    if (kept := page_cache.read(path)) is not None:
        return Page(document.id, number, *kept)
    page = render_page(document, number, dpi=dpi, max_pixels=max_pixels, run=run)
    if not is_placeholder(page):
        page_cache.write(path, page.image, page.digest)
    return page


def make_render(
    documents: Mapping[str, Document],
    *,
    dpi: float = 144,
    max_pixels: int = 1024 * 1024,
    cache_bytes: int = 256 * 2**20,
    cache_folder: str | pathlib.Path | None = None,
    run: Run = run_here,
) -> Render:
    """A `Render` over `documents` that keeps the pages shown last; for any number of threads.

    Pages at hand are given out while others are rendered. How many are rendered at once is up
    to `run`; the same page is never rendered twice at once.

    Args:
      documents: by id.
      dpi: as for `render_page`.
      max_pixels: as for `render_page`.
      cache_bytes: how much the kept images may take together. 0 keeps none.
      cache_folder: where pages are kept for later runs and other processes; it grows without
        limit, and may be deleted. None keeps none.
      run: as for `render_page`.
    """
    documents = dict(documents)
    draw = render_page
    if cache_folder:
        draw = functools.partial(_keeping_on_disk, pathlib.Path(cache_folder))
    pages: collections.OrderedDict[tuple[str, int], Page] = collections.OrderedDict()
    kept_bytes = 0
    pages_lock = threading.Lock()
    page_locks: collections.defaultdict[tuple[str, int], threading.Lock]
    page_locks = collections.defaultdict(threading.Lock)

    def kept(key: tuple[str, int]) -> Page | None:
        with pages_lock:
            if key in pages:
                pages.move_to_end(key)
            return pages.get(key)

    def keep(key: tuple[str, int], page: Page) -> None:
        nonlocal kept_bytes
        with pages_lock:
            pages[key] = page
            kept_bytes += page.image.nbytes
            while kept_bytes > cache_bytes:
                kept_bytes -= pages.popitem(last=False)[1].image.nbytes

    def render(document: str, number: int) -> Page:
        if document not in documents:
            raise ValueError(f"no document {document!r} among the {len(documents)} opened")
        key = (document, number)
        if (page := kept(key)) is not None:
            return page
        with pages_lock:
            page_lock = page_locks[key]
        with page_lock:
            # Another thread may have rendered it while this one waited.
            if (page := kept(key)) is None:
                page = draw(documents[document], number, dpi=dpi, max_pixels=max_pixels, run=run)
                keep(key, page)
        return page

    return render
