"""Pages and queries as sparse vectors whose dot product is BM25 inside one document.

Okapi BM25 (Robertson and Zaragoza, 2009, https://doi.org/10.1561/1500000019, section 3.2):

  score(query, page) = sum over terms t of  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * l))

with `tf` the count of t on the page, `l` the page's length in words over the document's mean and
`idf(t) = log(1 + (N - n + 0.5) / (n + 0.5))`, where n of the document's N pages hold t. All of
it but the query's own counts is in the page's vector, so a query needs no statistics.

Beside its words a page has two kinds of terms, which do not count in its length:

* Neighbouring words, joined. Inside one document single words tell little, since all its pages
  share a subject; a phrase is on few. What a query spells apart also meets what a page spells
  together, and characters of languages without spaces are found in twos.
* Its numbers, as `page:N`: its place in the file, and the number that is printed on it. People
  mean either by "page 5". A number printed on an edge of the page counts where the page before
  holds one less or the page after one more.
"""

import collections
import math
import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

NAME = "bm25-words-3"

# (indices, values) as Qdrant takes them: uint32 in ascending order, each once, and floats.
SparseVector = tuple[list[int], list[float]]

# A number with its separators, a single Han, kana or Hangul character, or a word.
_TERM = re.compile(
    r"\d+(?:[.,]\d+)*|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_\u3040-\u9fff\uac00-\ud7af]+"
)


def terms(text: str) -> list[str]:
    """The terms of `text` in order: lower case, without accents, ligatures and plural endings.

    Numbers stay whole and lose their thousands separators, so "1,234.5" is "1234.5".
    """
    text = unicodedata.normalize("NFKD", text).casefold()
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    # A word broken at the end of a line is one word.
    text = re.sub(r"(?<=[^\W\d_])[-\u00ad]\n\s*(?=[^\W\d_])", "", text)
    return [_normal_form(term) for term in _TERM.findall(text)]


def _normal_form(term: str) -> str:
    if term[0].isdigit():
        return term.replace(",", "")
    if len(term) > 3 and term.endswith("ies"):
        return term[:-3] + "y"
    if len(term) > 3 and term.endswith("s") and not term.endswith(("ss", "us", "is")):
        return term[:-1]
    return term


# Words that say how a question is asked, not what about; in their normal form.
_QUESTION_WORDS = frozenset(
    terms(
        "a about all an and any are as at be been being between both but by can could did do does "
        "doing each for from had has have he her his how i if in into is it its many more most "
        "much of on or other our out over she should so some such than that the their them there "
        "these they this those through to under was we were what when where which while who whom "
        "whose why will with would you your"
    )
)


_NUMERALS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
)  # fmt: skip
_NUMBERS = {word: n for words in (_NUMERALS, _ORDINALS) for n, word in enumerate(words, start=1)}
_ASKED_PAGE = re.compile(
    rf"\b(?:(?:pages?|slides?|p\.)\s*(\d+|{'|'.join(_NUMERALS)})"
    rf"|({'|'.join(_ORDINALS)}|last)\s+(?:page|slide))\b",
    re.IGNORECASE,
)
# Lines at the top and at the bottom where a page's number is looked for.
_EDGE_LINES = 3
_EDGE_NUMBER = re.compile(r"^\d{1,4}(?=\s|$)|(?<!\S)\d{1,4}$|(?i:\bpage\s+(\d{1,4}))\b")


def _pairs(words: Sequence[str]) -> list[str]:
    """Neighbouring words, joined; a number keeps apart, so that "1 2" is not "12"."""
    return [
        first + second if first.isalpha() and second.isalpha() else f"{first} {second}"
        for first, second in zip(words, words[1:], strict=False)
    ]


def _asked_pages(query: str) -> list[str]:
    """The terms of the pages that a query names, such as "page 5" or "the last slide"."""
    names = (number or ordinal for number, ordinal in _ASKED_PAGE.findall(query.casefold()))
    return [f"page:{_NUMBERS.get(name, name)}" for name in names]


def _edge_numbers(text: str) -> set[int]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {
        int(match[1] or match[0])
        for line in lines[:_EDGE_LINES] + lines[-_EDGE_LINES:]
        for match in _EDGE_NUMBER.finditer(line)
    }


def _page_terms(texts: Sequence[str]) -> list[list[str]]:
    """For each page the terms of its place in the file and of the numbers printed on it."""
    edges = [set(), *map(_edge_numbers, texts), set()]
    found = []
    for place, (before, here, after) in enumerate(
        zip(edges, edges[1:], edges[2:], strict=False), 1
    ):
        printed = {n for n in here if n - 1 in before or n + 1 in after}
        names = sorted({place} | printed) + ["last"] * (place == len(texts))
        found.append([f"page:{name}" for name in names])
    return found


def _counts(words: Iterable[str]) -> collections.Counter[int]:
    """How often each term occurs, by the term's 32-bit hash."""
    return collections.Counter(zlib.crc32(word.encode()) for word in words)


def embed_pages(texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> list[SparseVector]:
    """One vector a page, for all pages of one document together.

    Args:
      texts: the document's pages in order.
      k1: how slowly repeated terms stop to count.
      b: 0 ignores the pages' lengths, 1 discounts long pages in full.

    Returns:
      As many vectors as texts; a page without a term has an empty one.
    """
    pages, lengths = [], []
    for text, numbers in zip(texts, _page_terms(texts), strict=True):
        words = terms(text)
        lengths.append(len(words))
        content = [word for word in words if word not in _QUESTION_WORDS]
        # A page without text is found by nothing, its number included.
        pages.append(_counts(words + _pairs(content) + numbers if words else ()))
    holding = collections.Counter(term for page in pages for term in page)
    mean_length = sum(lengths) / max(1, sum(length > 0 for length in lengths))
    vectors = []
    for page, length in zip(pages, lengths, strict=True):
        indices = sorted(page)
        values = []
        for term in indices:
            count = page[term]
            idf = math.log1p((len(pages) - holding[term] + 0.5) / (holding[term] + 0.5))
            norm = k1 * (1 - b + b * length / mean_length)
            values.append(idf * count * (k1 + 1) / (count + norm))
        vectors.append((indices, values))
    return vectors


def embed_query(text: str) -> SparseVector:
    """The query's terms with their counts; empty where it has none.

    Question words are left out where other words remain: on pages with little text the idf
    does not make them small enough.
    """
    words = terms(text)
    content = [word for word in words if word not in _QUESTION_WORDS]
    counts = _counts((content or words) + _pairs(content) + _asked_pages(text))
    indices = sorted(counts)
    return indices, [float(counts[term]) for term in indices]
