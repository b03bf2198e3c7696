"""A folder of page images: which file is which page."""

import pathlib
import re
from collections.abc import Mapping

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
# Larger numbers are dates, times or ids.
MAX_PAGES = 10_000


def numbered(folder: pathlib.Path) -> Mapping[int, pathlib.Path]:
    """The images in `folder` by their 1-based page number, in order.

    The number is where the names differ: p2.png comes before p10.png, and page-3-of-9.jpg is
    page 3. Where one is 0, they count from 0. Hidden files are left out.

    Raises:
      ValueError: there are no images or other files, or the names do not tell one number each.
      OSError: the folder cannot be read.
    """
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    other = [path.name for path in paths if path.suffix.lower() not in SUFFIXES or path.is_dir()]
    if other:
        raise ValueError(
            f"{folder}: expected page images alone ({', '.join(SUFFIXES)}), found {_some(other)}"
        )
    if not paths:
        raise ValueError(f"{folder}: expected page images, found none")
    # "page-3-of-9" -> ["page-", "3", "-of-", "9", ""]: words and numbers take turns.
    names = [re.split(r"([0-9]+)", path.stem) for path in paths]
    if len(paths) == 1:
        return {1: paths[0]}
    if len({tuple(name[::2]) for name in names}) > 1:
        raise ValueError(
            f"{folder}: expected names that differ in the page number alone, "
            f"found {_some([path.name for path in paths])}"
        )
    columns = [
        [int(number) for number in column] for column in list(zip(*names, strict=True))[1::2]
    ]
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1 or len(set(varying[0])) < len(paths):
        raise ValueError(
            f"{folder}: expected one number that tells the pages apart, "
            f"found {_some([path.name for path in paths])}"
        )
    [numbers] = varying
    if max(numbers) > MAX_PAGES:
        raise ValueError(f"{folder}: expected page numbers up to {MAX_PAGES}, found {max(numbers)}")
    first = 0 if 0 in numbers else 1
    return {n - first + 1: path for n, path in sorted(zip(numbers, paths, strict=True))}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
