"""What `ask` shows in the terminal: steps as they are done, then answer and notes."""

from collections.abc import Callable, Iterator

import rich.text

from awm_jax.agent.rollout import Conversation, Map
from awm_jax.commands import display
from awm_jax.types import ANSWERED, Document, Page, Trajectory, Verdict


def make_shown_map() -> Map:
    """`map` over the steps of one rollout that shows each as soon as it is done."""
    shown = 0

    def shown_map(function: Callable, *items) -> Iterator[Conversation]:
        nonlocal shown
        for conversation in map(function, *items):
            # A rollout may also end without another step.
            if len(conversation.turns) > shown:
                _show_step(conversation)
                shown = len(conversation.turns)
            yield conversation

    return shown_map


def _line(label: str, text: str, style: str = "") -> None:
    """A label and text as they are: what models and files say is no markup."""
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    indented = printable.replace("\n", "\n" + " " * 13)
    display.console.print(
        rich.text.Text.assemble((f"{label:<13}", "bold"), (indented, style)), soft_wrap=True
    )


def show_document(document: Document, policy: str, reads: str) -> None:
    """The document, with what is odd about it, and who plays policy and reader."""
    blank = sum(not text.strip() for text in document.page_texts)
    pages = f"{document.id}, {document.page_count} pages"
    if blank:
        pages += f"; {blank} without text, which a search by words does not find"
    _line("document", pages)
    for warning in document.warnings:
        _line("", warning, "yellow")
    _line("policy", policy)
    _line("reader", reads)


def _show_step(conversation: Conversation) -> None:
    """The newest turn: what was called, which pages came, what was noted, what was refused."""
    turn = conversation.turns[-1]
    known = len(conversation.turns[-2].memory.findings) if len(conversation.turns) > 1 else 0
    label = f"step {len(conversation.turns)}"
    findings = iter(turn.memory.findings[known:])
    pages = ", ".join(str(part.number) for part in turn.observation if isinstance(part, Page))
    lines = []
    for call in turn.calls:
        match call.name:
            case "search_pages":
                lines.append((f"search: {call.arguments['query']}", ""))
                lines.append((f"looks at page {pages}" if pages else "no page was found", ""))
            case "update_memory":
                finding = next(findings)
                lines.append((f"notes [page {finding.source_page}] {finding.text}", "green"))
            case "answer":
                lines.append(("answers", ""))
    lines += [(f"refused: {violation}", "yellow") for violation in turn.violations]
    for place, (text, style) in enumerate(lines or [("nothing was done", "")]):
        _line(label if place == 0 else "", text, style)


def show_outcome(trajectory: Trajectory, verdict: Verdict) -> None:
    """Answer, memory-only answer and notes."""
    display.console.print()
    if trajectory.status == ANSWERED:
        _line("answer", trajectory.final_answer, "bold")
    else:
        _line("no answer", f"{trajectory.status}: {trajectory.error}", "red")
    if verdict.error:
        _line("from notes", verdict.error, "red")
    else:
        _line("from notes", verdict.memory_answer or "(nothing)", "bold")
    for place, finding in enumerate(trajectory.memory.findings):
        _line("notes" if place == 0 else "", f"[page {finding.source_page}] {finding.text}")
    if not trajectory.memory.findings:
        _line("notes", "(none)")
