"""The working memory `M_t`: append-only and source-linked (the paper, section 2, appendix C)."""

import re
from collections.abc import Collection

from awm_jax.types import Finding, Memory

# What white space separates is a word; scripts that do not separate words count by character.
_IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


def word_count(text: str) -> int:
    return len(_WORD.findall(text))


def append_finding(
    memory: Memory,
    source_page: int,
    finding: str,
    *,
    shown_pages: Collection[int],
    max_words: int = 40,
) -> Memory | str:
    """`memory` with one more finding, or the violation that keeps it as it is.

    Args:
      memory: what was noted before.
      source_page: 1-based page that shows the finding.
      finding: white space, line ends included, is kept as single spaces, because a line of the
        memory is a finding and begins with its page.
      shown_pages: all pages that were shown so far.
      max_words: a finding with more is refused, not cut.
    """
    finding = " ".join(finding.split())
    if not shown_pages:
        return "Not noted: no page was shown yet. Search first."
    if source_page not in shown_pages:
        shown = ", ".join(map(str, shown_pages))
        return f"Not noted: page {source_page} was not shown. Shown: {shown}."
    if not finding:
        return "Not noted: the finding is empty."
    if (words := word_count(finding)) > max_words:
        return f"Not noted: the finding has {words} words, at most {max_words} are allowed."
    return Memory((*memory.findings, Finding(source_page, finding)))
