"""What the policy is told: the system prompts and the three tools, with one hash for all.

The paper (section 2, appendix B) fixes the loop: retrieve page images, append a source-linked
finding of at most 40 words after each retrieval, answer within the step budget. The wording
is ours.
"""

import hashlib
import json

from awm_jax.types import Memory

SEARCH_PAGES = {
    "type": "function",
    "function": {
        "name": "search_pages",
        "description": "Show the pages of the document that match a query best.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
UPDATE_MEMORY = {
    "type": "function",
    "function": {
        "name": "update_memory",
        "description": "Append what a page shows to the working memory, in at most 40 words.",
        "parameters": {
            "type": "object",
            "properties": {
                "source_page": {"type": "integer"},
                "finding": {"type": "string"},
            },
            "required": ["source_page", "finding"],
        },
    },
}
ANSWER = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Give the final answer and end.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
        },
    },
}
AGENT_TOOLS = (SEARCH_PAGES, UPDATE_MEMORY, ANSWER)

AGENT_SYSTEM = (
    "You answer a question about one long document by looking at its pages. "
    "Search for pages. After each search, before anything else, write what you found to the "
    "working memory, with the page it stands on. Earlier pages may be taken away; the memory "
    "stays. When you know the answer, give it. If the document does not hold it, answer "
    "Not answerable."
)
DIRECT_SYSTEM = (
    "You answer a question about one long document from the pages shown. Reply with the "
    "answer alone. If the pages do not hold it, reply Not answerable."
)


def question_text(question: str, memory: Memory) -> str:
    """The user message that opens a context of the agent: question and working memory."""
    return f"Question: {question}\nWorking memory:\n{memory.text}"


def prompt_hash() -> str:
    """Twelve hex digits that change whenever anything in this module does."""
    parts = (AGENT_SYSTEM, DIRECT_SYSTEM, json.dumps(AGENT_TOOLS, sort_keys=True))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
