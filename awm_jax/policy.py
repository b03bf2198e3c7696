"""The one adapter between host and device: prompts -> tokens and images -> sampler -> samples."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from awm_jax.models import generate as sampler
from awm_jax.models import processor as processors
from awm_jax.models.encode import PageFeatures
from awm_jax.models.processor import Processor
from awm_jax.models.qwen3 import Model
from awm_jax.models.qwen3_vl import ImageFeatures
from awm_jax.types import CONTEXT_FULL, Generate, Page, Prompt, Sample


def page_grid(processor: Processor, page: Page) -> tuple[int, int, int]:
    """Frames, rows and columns of a page's patches."""
    if processor.image is None:
        raise ValueError(f"page {page.number} of {page.document} was shown to a text model")
    return processors.image_grid(*page.image.shape[:2], processor.image)


def page_positions(
    processor: Processor, input_ids: np.ndarray, pages: Sequence[Page]
) -> np.ndarray:
    """`[3, time]` int32 positions of a whole sequence `[time]` that shows `pages`, in order.

    Raises:
      ValueError: the sequence's image tokens are not the pages' merged patches.
    """
    return processor.positions(input_ids, [page_grid(processor, page) for page in pages])[0]


class _Conversation(NamedTuple):
    """A prompt on its way to the device: `[time]` ids and the pages they show."""

    index: int
    ids: np.ndarray
    pages: tuple[Page, ...]

    @property
    def content(self):
        """Equal for prompts that the model cannot tell apart; shorter ones come first."""
        return len(self.ids), self.ids.tobytes(), [page.digest for page in self.pages]


def make_generate(
    model: Model,
    params: dict,
    processor: Processor,
    *,
    max_new_tokens: int,
    prompt_buckets: Sequence[int],
    batch_buckets: Sequence[int],
    top_p: float = 1.0,
    top_k: int = 0,
    enable_thinking: bool | None = None,
    policy_version: int = 0,
    page_features: PageFeatures | None = None,
) -> Generate:
    """A policy, or a frozen reader, that samples on this machine's devices.

    What is compiled is bounded by the buckets, whatever the prompts: for each pair of them one
    decode program and up to three for the prompt (no images, up to half of the tokens, more).

    Args:
      model, params, processor: a text model is shown no pages.
      max_new_tokens: of a sample.
      prompt_buckets: lengths, in tokens, to which prompts are padded. One that is longer than
        all of them gets an empty sample with the finish reason "context_full".
      batch_buckets: numbers of rows that are sampled together.
      top_p, top_k: see `awm_jax.models.generate.sample`.
      enable_thinking: see `awm_jax.models.processor.render_chat`.
      policy_version: noted in the samples.
      page_features: remembers pages beyond this function; None for a memory of its own.
    """
    if not min(prompt_buckets, default=0) > 0 or not min(batch_buckets, default=0) > 0:
        raise ValueError(f"buckets {prompt_buckets} and {batch_buckets}: expected positive sizes")
    if (model.config.vision is None) != (processor.image is None):
        raise ValueError("of model and processor one reads images and the other does not")
    if page_features is None and model.config.vision is not None:
        page_features = PageFeatures(model, params, processor)
    banned = processor.banned(model.config.text.vocab_size)

    def generate(prompts: Sequence[Prompt], *, temperature: float) -> list[Sample]:
        conversations = _conversations(prompts, processor, enable_thinking)
        sampled = {}
        for rows, time, size in _batches(conversations, prompt_buckets, batch_buckets):
            shown, places = _shared(rows, size, batch_buckets)
            seeds = [prompts[row.index].seed for row in rows] + [()] * (size - len(rows))
            samples = sampler.sample(
                model,
                params,
                *_arrays(shown, time, processor, page_features),
                sampler.row_keys(seeds),
                rows=places,
                max_new_tokens=max_new_tokens,
                stop_ids=processor.stop_ids,
                banned=banned,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
            )
            samples = jax.tree.map(np.asarray, samples)
            for place, row in enumerate(rows):
                count = int(samples.lengths[place])
                sampled[row.index] = (
                    samples.token_ids[place, :count].copy(),
                    samples.log_probs[place, :count].copy(),
                    "stop" if samples.finished[place] else "length",
                )
        nothing = (np.zeros(0, np.int32), np.zeros(0, np.float32), CONTEXT_FULL)
        results = [sampled.get(index, nothing) for index in range(len(prompts))]
        texts = processor.decode(
            [ids[:-1] if reason == "stop" else ids for ids, _, reason in results]
        )
        return [
            Sample(row.ids, ids, log_probs, text, reason, row.pages, policy_version)
            for row, (ids, log_probs, reason), text in zip(
                conversations, results, texts, strict=True
            )
        ]

    return generate


def _conversations(prompts, processor, enable_thinking) -> list[_Conversation]:
    """Tokenizes what follows the last sample of each prompt; ids before it stay as sampled."""
    texts, kept, shown = [], [], []
    for prompt in prompts:
        samples = [i for i, m in enumerate(prompt.messages) if isinstance(m, Sample)]
        messages = prompt.messages[samples[-1] + 1 :] if samples else prompt.messages
        shown.append([p for m in messages for p in m.content if not isinstance(p, str)])
        if not samples:
            kept.append((np.zeros(0, np.int32), ()))
            texts.append(
                processors.render_chat(messages, prompt.tools, enable_thinking=enable_thinking)
            )
            continue
        sample = prompt.messages[samples[-1]]
        if not len(sample.prompt_ids) or not len(sample.token_ids):
            raise ValueError("a prompt continues a sample without token ids; they cannot be kept")
        kept.append((np.concatenate([sample.prompt_ids, sample.token_ids]), sample.pages))
        ended = sample.token_ids[-1] == processor.stop_ids[0]
        texts.append(
            processors.render_continuation(messages, ended=ended, enable_thinking=enable_thinking)
        )
    grids = [[page_grid(processor, page) for page in pages] for pages in shown]
    encoded = processor.encode(texts, grids)
    return [
        _Conversation(index, np.concatenate([ids, new]).astype(np.int32), (*earlier, *pages))
        for index, ((ids, earlier), new, pages) in enumerate(zip(kept, encoded, shown, strict=True))
    ]


def _batches(
    conversations, prompt_buckets, batch_buckets
) -> Iterator[tuple[list[_Conversation], int, int]]:
    """Rows that are sampled together, their padded length and the padded number of rows."""
    waiting = sorted(conversations, key=lambda row: row.content)
    for time in sorted(prompt_buckets):
        rows = [row for row in waiting if len(row.ids) <= time]
        waiting = waiting[len(rows) :]
        while rows:
            size = _bucket(min(len(rows), max(batch_buckets)), batch_buckets)
            yield rows[:size], time, size
            rows = rows[size:]


def _bucket(count, buckets) -> int:
    return min(size for size in buckets if size >= count)


def _shared(rows, size, batch_buckets) -> tuple[list[_Conversation | None], np.ndarray | None]:
    """The prompts to be read, padded with None, and which of them each row continues.

    The rollouts of a group begin with one prompt. It is read once where that makes for a smaller
    batch; otherwise each row has its own and there is nothing to look up.
    """
    starts = [i for i, row in enumerate(rows) if i == 0 or row.content != rows[i - 1].content]
    count = _bucket(len(starts), batch_buckets)
    if count == size:
        return rows + [None] * (size - len(rows)), None
    places = np.full(size, -1, np.int32)
    places[: len(rows)] = np.repeat(np.arange(len(starts)), np.diff([*starts, len(rows)]))
    return [rows[i] for i in starts] + [None] * (count - len(starts)), places


def _arrays(rows, time, processor, page_features):
    """Ids, lengths, positions and image features of a batch, as `sampler.sample` takes them."""
    prompts = np.full((len(rows), time), processor.pad_id, np.int32)
    lengths, positions = np.zeros(len(rows), np.int32), np.zeros((3, *prompts.shape), np.int32)
    pages = []
    for place, row in enumerate(rows):
        if row is not None:
            count = lengths[place] = len(row.ids)
            prompts[place, :count] = row.ids
            positions[:, place, :count] = page_positions(processor, row.ids, row.pages)
            pages += row.pages
    if not pages:
        return prompts, lengths, positions, None
    features = page_features.encode(pages)
    tokens = sum(map(len, features))
    room = prompts.size // 2 if tokens <= prompts.size // 2 else prompts.size
    table = np.zeros((room, *features[0].shape[1:]), features[0].dtype)
    np.concatenate(features, out=table[:tokens])
    return prompts, lengths, positions, ImageFeatures(table[:, 0], np.moveaxis(table[:, 1:], 1, 0))
