"""One HTML page for one run: its numbers, and every rollout with its pages, notes and scores.

With an earlier run beside it, the page also shows which questions moved from cell to cell.

The page is a single file that needs no network. Whatever models and documents wrote is escaped
by the template; the page's own policy forbids any script but the one it came with.
"""

import base64
import collections
import dataclasses
import functools
import hashlib
import io
import pathlib
import re
from collections.abc import Mapping, Sequence

import jinja2
from PIL import Image

from awm_jax.agent import prompts, protocol
from awm_jax.evaluation import cells, tables
from awm_jax.evaluation.cells import CellSummary
from awm_jax.evaluation.statistics import Comparison
from awm_jax.types import Finding, Page, Render, Trajectory, Turn, Verdict

NO_JUDGEMENT = "no judgement"
_UPDATE = prompts.UPDATE_MEMORY["function"]["name"]
# The line before each page that the search tool shows.
_PAGE_LABEL = re.compile(r"Page \d+:\s*")
_TEMPLATE = pathlib.Path(__file__).with_name("report.html")


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much goes into the page; what is left out is said on it.

    Attributes:
      trajectories: most rollouts, the first ones given.
      images: most different page images.
      image_bytes: most bytes of JPEG together.
      image_edge: longest edge of an image, in pixels.
      text: most characters of one text in a conversation.
    """

    trajectories: int = 2_000
    images: int = 600
    image_bytes: int = 16 * 2**20
    image_edge: int = 720
    text: int = 4_000


DEFAULT_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Thumbnail:
    """A page as the report shows it.

    Attributes:
      number: 1-based.
      image: position in the page's list of images, None where it was left out.
      gold: whether the question names it as evidence.
    """

    number: int
    image: int | None
    gold: bool


@dataclasses.dataclass(frozen=True)
class Note:
    """A finding and the page that it cites, None where it cites none."""

    page: Thumbnail | None
    text: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One turn: what the policy wrote and what it was shown in return.

    Attributes:
      number: 1-based.
      context: 1-based; a new one starts with the images of earlier ones dropped.
      text: the assistant message up to its first call; all of it where one cannot be read.
      calls: name and arguments of each, without updates of the memory that the notes show.
      notes: findings that the step added to the memory.
      shown: text and pages of the observation, without the pages' labels and the violations.
      violations: what broke the protocol.
    """

    number: int
    context: int
    text: str
    calls: tuple[tuple[str, str], ...]
    notes: tuple[Note, ...]
    shown: tuple[str | Thumbnail, ...]
    violations: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Earlier:
    """The same rollout in the run that this one is compared with."""

    trajectory: Trajectory
    verdict: Verdict
    cell: str
    cell_name: str
    memory: tuple[Note, ...]


@dataclasses.dataclass(frozen=True)
class Card:
    """One rollout as the template shows it; `cell` is "11", "10", "01", "00" or "none"."""

    trajectory: Trajectory
    verdict: Verdict
    cell: str
    cell_name: str
    earlier: Earlier | None
    steps: tuple[Step, ...]
    memory: tuple[Note, ...]
    gold_pages: tuple[Thumbnail, ...]
    unseen_gold: tuple[int, ...]


class _Images:
    """Page images as JPEG, each once, until a limit is reached."""

    def __init__(self, render: Render | None, limits: Limits):
        self._render, self._limits = render, limits
        self._positions: dict[tuple[str, int], int | None] = {}
        self.encoded: list[str] = []
        self._bytes, self._full = 0, False
        self._not_given: set[tuple[str, int]] = set()

    @property
    def left_out(self) -> int:
        """How many pages have no image for want of room, or since they could not be rendered."""
        missing = {key for key, position in self._positions.items() if position is None}
        return len(missing - self._not_given)

    def position(self, document: str, number: int, page: Page | None = None) -> int | None:
        """Where the page's image is in `encoded`; None where there is none."""
        key = (document, number)
        if key not in self._positions or (key in self._not_given and page is not None):
            self._positions[key] = self._encode(document, number, page)
        return self._positions[key]

    def _encode(self, document: str, number: int, page: Page | None) -> int | None:
        self._not_given.discard((document, number))
        if self._full or len(self.encoded) >= self._limits.images:
            return None
        if page is None or page.image.size == 0:
            if self._render is None:
                self._not_given.add((document, number))
                return None
            try:
                page = self._render(document, number)
            except (LookupError, ValueError, OSError, RuntimeError):
                # A page that cannot be rendered is shown as its number.
                return None
        image = Image.fromarray(page.image)
        image.thumbnail((self._limits.image_edge, self._limits.image_edge))
        data = io.BytesIO()
        image.save(data, format="JPEG", quality=72, optimize=True)
        if self._bytes + data.tell() > self._limits.image_bytes:
            # Without trying smaller ones: a run's pages are many, and encoding them takes long.
            self._full = True
            return None
        self._bytes += data.tell()
        self.encoded.append(base64.b64encode(data.getvalue()).decode("ascii"))
        return len(self.encoded) - 1


def _arguments(arguments: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}: {value}" if len(arguments) > 1 else str(value)
        for name, value in arguments.items()
    )


def _cell(verdict: Verdict) -> tuple[str, str]:
    """Key and name of the cell."""
    if verdict.error:
        return "none", NO_JUDGEMENT
    answer, memory = cells.cell(verdict)
    return f"{answer:d}{memory:d}", cells.CELLS[answer, memory]


def _key(trajectory: Trajectory) -> tuple[str, str, int]:
    return trajectory.question.document, trajectory.question.id, trajectory.rollout


def _card(
    trajectory: Trajectory,
    verdict: Verdict,
    images: _Images,
    limits: Limits,
    earlier: tuple[Trajectory, Verdict] | None,
) -> Card:
    question = trajectory.question
    gold = set(question.evidence_pages)

    def thumbnail(number: int, page: Page | None = None) -> Thumbnail:
        position = images.position(question.document, number, page)
        return Thumbnail(number, position, number in gold)

    def note(finding: Finding) -> Note:
        page = thumbnail(finding.source_page) if finding.source_page > 0 else None
        return Note(page, finding.text)

    def short(text: str) -> str:
        left = len(text) - limits.text
        return text if left <= 0 else f"{text[: limits.text]}\n\u2026 {left:,} more characters"

    def step(number: int, turn: Turn, known: int) -> Step:
        shown = tuple(
            thumbnail(item.number, item) if isinstance(item, Page) else short(item)
            for item in turn.observation
            if isinstance(item, Page)
            or not (item in turn.violations or _PAGE_LABEL.fullmatch(item))
        )
        notes = tuple(map(note, turn.memory.findings[known:]))
        # As written: `turn.calls` has those alone that were done.
        parsed = protocol.parse_calls(turn.sample.text)
        text = turn.sample.text
        if not parsed.errors:
            text = text.partition(protocol.OPEN)[0].strip()
        calls = parsed.calls or turn.calls
        updates = [call for call in calls if call.name == _UPDATE]
        if len(updates) == len(notes):
            calls = [call for call in calls if call.name != _UPDATE]
        calls = tuple((call.name, _arguments(call.arguments)) for call in calls)
        text = short(text)
        return Step(number, turn.context + 1, text, calls, notes, shown, turn.violations)

    steps, known, seen = [], 0, set()
    for number, turn in enumerate(trajectory.turns, start=1):
        steps.append(step(number, turn, known))
        known = len(turn.memory.findings)
        pages = (*turn.sample.pages, *turn.observation)
        seen |= {item.number for item in pages if isinstance(item, Page)}
    return Card(
        trajectory,
        verdict,
        *_cell(verdict),
        earlier=None
        if earlier is None
        else Earlier(*earlier, *_cell(earlier[1]), tuple(map(note, earlier[0].memory.findings))),
        steps=tuple(steps),
        memory=tuple(map(note, trajectory.memory.findings)),
        gold_pages=tuple(thumbnail(number) for number in question.evidence_pages),
        # Records of other agents may not say which pages were shown; then nothing is claimed.
        unseen_gold=tuple(n for n in question.evidence_pages if seen and n not in seen),
    )


@functools.cache
def _template() -> tuple[jinja2.Template, str]:
    """The page's template, and the hash of the one script that may run in it."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = _TEMPLATE.read_text(encoding="utf-8")
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = hashlib.sha256(script.encode()).digest()
    return environment.from_string(text), base64.b64encode(digest).decode()


def build_report(
    judged: Sequence[tuple[Trajectory, Verdict]],
    *,
    title: str,
    provenance: Mapping[str, str],
    render: Render | None = None,
    rows: Sequence[tuple[str, CellSummary]] = (),
    curves: bytes | None = None,
    limits: Limits = DEFAULT_LIMITS,
    before: tuple[str, Sequence[tuple[Trajectory, Verdict]]] | None = None,
    changes: Comparison | None = None,
    left_out: Sequence[str] = (),
    gold: bool = True,
) -> str:
    """The page as HTML.

    Args:
      judged: rollouts with their verdicts, in the order to show them in.
      title: what the run is called.
      provenance: what the numbers come from: data and hash, scorer, seed, config, commit.
      render: gives pages whose image the trajectories do not hold (those read from records,
        and gold pages that were never shown); None: they are shown as numbers.
      rows: lines of the table; by default one, this run's.
      curves: a PNG to show.
      limits: how much to put into the page.
      before: name and rollouts of a run to compare with; rollouts are paired by document,
        question and rollout.
      changes: the differences from that run to this one.
      left_out: records that could not be read, a line each.
      gold: False where questions have no gold answers: neither scores nor cells are shown, and
        the rollouts lie open.
    """
    summary = cells.summarize(verdict for _, verdict in judged)
    images = _Images(render, limits)
    earlier = {_key(pair[0]): pair for pair in before[1]} if before else {}
    cards = [
        _card(*pair, images, limits, earlier.get(_key(pair[0])))
        for pair in judged[: limits.trajectories]
    ]
    counts = collections.Counter(_cell(verdict)[0] for _, verdict in judged)
    moves = collections.Counter(
        (_cell(earlier[_key(trajectory)][1])[0], _cell(verdict)[0])
        for trajectory, verdict in judged
        if _key(trajectory) in earlier
    )
    template, script_hash = _template()
    html = template.render(
        title=title,
        script_hash=script_hash,
        provenance=provenance,
        summary=summary,
        counts=counts,
        cell_names={
            f"{answer:d}{memory:d}": name for (answer, memory), name in cells.CELLS.items()
        },
        columns=tables.COLUMNS,
        rows=[tables.cells_of_row(*row) for row in rows or [(title, summary)]],
        curves=None if curves is None else base64.b64encode(curves).decode("ascii"),
        cards=cards,
        total=len(judged),
        images=images.encoded,
        images_left_out=images.left_out,
        statuses=sorted({card.trajectory.status for card in cards}),
        documents=sorted({card.trajectory.question.document for card in cards} - {""}),
        sources=sorted(
            {source for card in cards for source in card.trajectory.question.evidence_sources}
        ),
        before=None if before is None else before[0],
        moves=moves,
        changes={}
        if changes is None
        else {
            "final answers": changes.final_acc,
            "memory only": changes.mem_acc,
            "P_mmc": changes.p_mmc,
        },
        left_out=left_out,
        gold=gold,
        percent=tables.percent,
    )
    # Lone surrogates, which a damaged text may hold, cannot be written as UTF-8.
    return html.encode("utf-8", "replace").decode("utf-8")


def write_report(
    path: str | pathlib.Path, judged: Sequence[tuple[Trajectory, Verdict]], **options
) -> pathlib.Path:
    """Writes the page of `build_report`, which names the options, to `path`."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build_report(judged, **options), encoding="utf-8")
    return path
