"""Many conversations on few cache rows: which row holds what, and who is sampled next.

Host code. A conversation is recognised by its content: the ids and images that were read and
sampled so far. Where a row still holds them, only what is new is read; where it was given away,
all is read again and the result is the same. Rows that were not used for longest go first.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from awm_jax.models import generate
from awm_jax.models.qwen3 import Model
from awm_jax.models.qwen3_vl import ImageFeatures


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A conversation to continue by one message.

    Attributes:
      ids: `[time]` int32, all of it; the last is no image.
      positions: `[3, time]` int32.
      pages: its images, in order; each has a `digest` that tells images apart.
      page_tokens: how many tokens each image has.
      is_image: `[time]` bool, True for the tokens of images.
      kept, kept_pages: how many of the ids and images stood there when the last message had
        been sampled; 0 where none was.
      seed: of the message's randomness.
    """

    ids: np.ndarray
    positions: np.ndarray
    pages: tuple[Any, ...]
    page_tokens: tuple[int, ...]
    is_image: np.ndarray
    kept: int
    kept_pages: int
    seed: tuple[int, ...]

    @property
    def content(self):
        """Equal for conversations that the model cannot tell apart; shorter ones come first."""
        return len(self.ids), *_content(self.ids, self.pages)


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
    """One sampled message: `[time]` arrays as in `generate.Samples`, without padding."""

    token_ids: np.ndarray
    log_probs: np.ndarray
    raw_log_probs: np.ndarray
    finished: bool


@dataclasses.dataclass(eq=False)
class _Live:
    """A request that has a row: `index` of its tokens are held, `parts` were sampled."""

    number: int
    request: Request
    row: int
    index: int
    parts: list[Completion] = dataclasses.field(default_factory=list)

    @property
    def sampled(self) -> int:
        return sum(len(part.token_ids) for part in self.parts)

    @property
    def completion(self) -> Completion:
        fields = ("token_ids", "log_probs", "raw_log_probs")
        joined = (np.concatenate([getattr(part, name) for part in self.parts]) for name in fields)
        return Completion(*joined, self.parts[-1].finished)


class Conversations:
    """Continues conversations of one set of parameters, `batch_buckets` of them at a time.

    Rows whose message ended are given to those that wait. What is compiled is bounded by the
    buckets: for each number of rows and length of conversation one decode program; for each
    number of rows, length of piece and length of conversation up to three that read (no images,
    up to half of the tokens, more); for each number of rows a copy.

    Attributes:
      counts: what was done so far, by name.
    """

    def __init__(
        self,
        model: Model,
        params: dict,
        *,
        encode: Callable[[Sequence[Any]], list[np.ndarray]],
        pad_id: int,
        stop_ids: Sequence[int],
        banned: np.ndarray,
        max_new_tokens: int,
        prompt_buckets: Sequence[int],
        batch_buckets: Sequence[int],
        cache_rows: int | None,
        prefill_chunk: int | None,
        decode_chunk: int,
        choice: tuple[float, int, float],
    ):
        """Options as in `awm_jax.policy.make_generate`; `encode` gives features of images."""
        self._model, self._params, self._encode, self._pad_id = model, params, encode, pad_id
        self._stop_ids, self._banned = np.array(stop_ids, np.int32), banned
        self._budget, self._choice = max_new_tokens, choice
        self._lengths, self._batches = sorted(prompt_buckets), sorted(batch_buckets)
        self._rows = self._batches[-1] if cache_rows is None else cache_rows
        if self._rows < self._batches[-1]:
            raise ValueError(f"cache_rows {self._rows}: expected at least {self._batches[-1]}")
        self._piece = self._lengths[-1] if prefill_chunk is None else prefill_chunk
        self._pieces = [n for n in self._lengths if n < self._piece] + [self._piece]
        self._steps = min(decode_chunk, max_new_tokens)
        self.counts = collections.Counter()
        self.release()

    @property
    def cache_bytes(self) -> int:
        """What the store needs, planned before it is made."""
        return sum(x.size * x.dtype.itemsize for x in jax.eval_shape(self._make_store))

    def _make_store(self):
        slots = self._lengths[-1] + self._budget
        return generate.make_store(self._params, model=self._model, rows=self._rows, slots=slots)

    def release(self):
        """Forgets all conversations and gives the store's memory back."""
        self._store = None
        self._free = list(range(self._rows))
        # Content -> the row that holds all of it but the last token; used longest ago first.
        self._parked: collections.OrderedDict[Any, int] = collections.OrderedDict()

    def __call__(self, requests: Sequence[Request], temperature: float) -> list[Completion | None]:
        """One message a request, in order; None for those longer than all buckets."""
        try:
            return self._continue(requests, temperature)
        except BaseException:
            # The store was given to a program that may not have returned it.
            self.release()
            raise

    def _continue(self, requests, temperature):
        fitting = [i for i, r in enumerate(requests) if len(r.ids) <= self._lengths[-1]]
        fitting.sort(key=lambda number: requests[number].content)
        # Conversations whose rows are here go first, before others need the rows.
        waiting, fresh = collections.deque(), []
        for number in fitting:
            request = requests[number]
            kept = _content(request.ids[: request.kept], request.pages[: request.kept_pages])
            row = self._parked.pop(kept, None) if request.kept else None
            if row is None:
                fresh.append(_Live(number, request, -1, 0))
            else:
                waiting.append(_Live(number, request, row, request.kept - 1))
                self.counts["reused_tokens"] += request.kept - 1
        waiting.extend(fresh)
        if waiting and self._store is None:
            self._store = self._make_store()
        results, live, begun = [None] * len(requests), [], {}
        while waiting or live:
            admitted = []
            while waiting and len(live) + len(admitted) < self._batches[-1]:
                if waiting[0].row < 0 and not self._free and not self._parked:
                    break
                each = waiting.popleft()
                if each.row < 0:
                    free = self._free.pop(0) if self._free else self._parked.popitem(last=False)[1]
                    begun = {content: row for content, row in begun.items() if row != free}
                    each.row = free
                admitted.append(each)
            self._read(admitted, begun)
            live += admitted
            self._sample(live, temperature)
            for each in live:
                if each.parts[-1].finished or each.sampled == self._budget:
                    results[each.number] = each.completion
                    self._park(each)
            live = [each for each in live if results[each.number] is None]
        return results

    def _park(self, each: _Live):
        ids = np.concatenate([each.request.ids, *(part.token_ids for part in each.parts)])
        content = _content(ids, each.request.pages)
        if content in self._parked:
            self._free.append(self._parked.pop(content))
        self._parked[content] = each.row

    def _read(self, admitted: list[_Live], begun: dict):
        """Fills the rows of new conversations up to their last token, piece by piece.

        Those that begin alike, as the rollouts of a group do, are read once and copied.
        """
        reading, copied = [], []
        for each in admitted:
            content = each.request.content
            if each.index == 0 and content in begun:
                copied.append((begun[content], each.row))
                each.index = len(each.request.ids) - 1
            else:
                begun[content] = each.row
                reading.append(each)
        while reading := [each for each in reading if each.index < len(each.request.ids) - 1]:
            for time in self._pieces:
                fitting = [each for each in reading if self._piece_bucket(each) == time]
                for first in range(0, len(fitting), self._batches[-1]):
                    self._read_pieces(fitting[first : first + self._batches[-1]], time)
        for first in range(0, len(copied), self._batches[-1]):
            pairs = copied[first : first + self._batches[-1]]
            size = _bucket(len(pairs), self._batches)
            pairs += [(0, self._rows)] * (size - len(pairs))
            source, target = np.array(pairs, np.int32).T
            self._store = generate.copy_rows(self._store, source, target)

    def _next_piece(self, each: _Live) -> int:
        return min(self._piece, len(each.request.ids) - 1 - each.index)

    def _piece_bucket(self, each: _Live) -> int:
        return _bucket(self._next_piece(each), self._pieces)

    def _read_pieces(self, batch: list[_Live], time: int):
        size = _bucket(len(batch), self._batches)
        tokens = np.full((size, time), self._pad_id, np.int32)
        rows, index, lengths = _rows_of(batch, size, self._rows)
        positions = np.zeros((3, size, time), np.int32)
        spans = []
        for place, each in enumerate(batch):
            count = lengths[place] = self._next_piece(each)
            piece = slice(each.index, each.index + count)
            tokens[place, :count] = each.request.ids[piece]
            positions[:, place, :count] = each.request.positions[:, piece]
            spans += _page_spans(each.request, piece)
            each.index += count
            self.counts["read_tokens"] += count
        self._store = generate.prefill(
            self._store,
            self._params,
            rows,
            index,
            tokens,
            lengths,
            positions,
            self._features(spans, tokens.size),
            model=self._model,
            reach=_bucket(int(np.max(index + lengths)), self._lengths),
        )

    def _features(self, spans, size: int) -> ImageFeatures | None:
        """A table of the features of parts of pages, padded to half of the tokens or to all."""
        if not spans:
            return None
        pages = self._encode([page for page, _ in spans])
        parts = [features[part] for features, (_, part) in zip(pages, spans, strict=True)]
        count = sum(map(len, parts))
        room = size // 2 if count <= size // 2 else size
        table = np.zeros((room, *parts[0].shape[1:]), parts[0].dtype)
        np.concatenate(parts, out=table[:count])
        return ImageFeatures(table[:, 0], np.moveaxis(table[:, 1:], 1, 0))

    def _sample(self, live: list[_Live], temperature: float):
        """Adds a part of up to `decode_chunk` tokens to each."""
        size = _bucket(len(live), self._batches)
        rows, index, budget = _rows_of(live, size, self._rows)
        tokens, positions, step = (np.zeros(size, np.int32) for _ in range(3))
        for place, each in enumerate(live):
            step[place] = each.sampled
            budget[place] = self._budget - each.sampled
            last = each.parts[-1].token_ids if each.parts else each.request.ids
            tokens[place] = last[-1]
            positions[place] = each.request.positions[0, -1] + each.sampled
        furthest = int(np.max(index + np.minimum(budget, self._steps)))
        self._store, samples = generate.decode(
            self._store,
            self._params,
            generate.Pending(rows, index, tokens, positions, step, budget),
            generate.row_keys([each.request.seed for each in live] + [()] * (size - len(live))),
            self._banned,
            self._stop_ids,
            np.float32(temperature),
            model=self._model,
            reach=_bucket(furthest, [length + self._budget for length in self._lengths]),
            steps=self._steps,
            choice=self._choice,
        )
        ids, log_probs, counts, finished, raw = jax.tree.map(np.asarray, samples)
        for place, each in enumerate(live):
            count = int(counts[place])
            arrays = (array[place, :count].copy() for array in (ids, log_probs, raw))
            each.parts.append(Completion(*arrays, bool(finished[place])))
            each.index += count
        self.counts["sampled_tokens"] += int(counts.sum())


def _content(ids: np.ndarray, pages: Sequence[Any]):
    return ids.tobytes(), tuple(page.digest for page in pages)


def _bucket(count: int, buckets: Sequence[int]) -> int:
    return min(size for size in buckets if size >= count)


def _rows_of(batch: list[_Live], size: int, none: int):
    """Rows, indices and zeros, `[size]` int32 each; those without a conversation out of range."""
    rows, index, zeros = np.full(size, none, np.int32), *np.zeros((2, size), np.int32)
    rows[: len(batch)] = [each.row for each in batch]
    index[: len(batch)] = [each.index for each in batch]
    return rows, index, zeros


def _page_spans(request: Request, piece: slice) -> list[tuple[Any, slice]]:
    """The parts of pages whose tokens lie in a piece of the conversation."""
    ends = np.cumsum(request.page_tokens, dtype=np.int64)
    first, last = (int(request.is_image[:place].sum()) for place in (piece.start, piece.stop))
    return [
        (page, slice(max(first - (end - count), 0), min(last, end) - (end - count)))
        for page, count, end in zip(request.pages, request.page_tokens, ends, strict=True)
        if first < end and last > end - count
    ]
