"""Rendered pages on disk, for any number of processes at once.

A page is a PNG that carries its `Page.digest`. It is written beside its place and then moved
there, so a kill leaves all of it or nothing; what does not have its digest is not there.
"""

import contextlib
import hashlib
import logging
import os
import pathlib
import tempfile

import numpy as np
from PIL import Image, PngImagePlugin

_log = logging.getLogger(__name__)
_KEY = "digest"


def page_digest(image: np.ndarray) -> str:
    """sha256 over shape and pixels of an image."""
    return hashlib.sha256(repr(image.shape).encode() + image.data).hexdigest()


def read(path: pathlib.Path) -> tuple[np.ndarray, str] | None:
    """The image at `path`, read-only, and its digest; None where there is none that is whole."""
    try:
        with Image.open(path, formats=("PNG",)) as file:
            digest = file.info.get(_KEY)
            image = np.array(file)
    except FileNotFoundError:
        return None
    except Exception as error:
        _log.warning("%s: a kept page cannot be read and is drawn anew: %s", path, error)
        return None
    if page_digest(image) != digest:
        _log.warning("%s: a kept page is not what was written and is drawn anew", path)
        return None
    image.flags.writeable = False
    return image, digest


def write(path: pathlib.Path, image: np.ndarray, digest: str) -> None:
    """Keeps an image, `[rows, columns, 3]` uint8; a full disk is a warning, not an error."""
    facts = PngImagePlugin.PngInfo()
    facts.add_text(_KEY, digest)
    new = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
        with os.fdopen(descriptor, "wb") as file:
            # Text on white: level 1 is several times faster than 6 and hardly larger.
            Image.fromarray(image).save(file, "PNG", pnginfo=facts, compress_level=1)
        os.replace(new, path)
    except OSError as error:
        _log.warning("%s: the page is not kept: %s", path, error)
        if new is not None:
            with contextlib.suppress(OSError):
                os.unlink(new)
