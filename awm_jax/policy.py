"""The one adapter between host and device: prompts -> tokens and images -> sampler -> samples."""

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from awm_jax.models import generate as sampler
from awm_jax.models import processor as processors
from awm_jax.models.encode import encode_images
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


class PageFeatures:
    """What the vision tower makes of pages; those used last are remembered by their digest.

    Holds for the vision parameters that it was made with: for one policy version where the
    tower is trained, for the whole run where it is frozen.
    """

    def __init__(
        self, model: Model, params: dict, processor: Processor, *, capacity_bytes: int = 4 * 2**30
    ):
        """Remembers features of up to `capacity_bytes`, on the host."""
        self._model, self._visual, self._processor = model, params["visual"], processor
        self._capacity = capacity_bytes
        self._known: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._bytes = 0

    def __call__(self, page: Page) -> np.ndarray:
        """`[token, 1 + taps, hidden]` of one page: merged features, then DeepStack's taps."""
        return self.encode([page])[0]

    def encode(self, pages: Sequence[Page]) -> list[np.ndarray]:
        """The features of each page, in order. New pages are encoded together, each once."""
        found = {page.digest: self._known.pop(page.digest, None) for page in pages}
        self._bytes -= sum(features.nbytes for features in found.values() if features is not None)
        new = {page.digest: page.image for page in pages if found[page.digest] is None}
        features = encode_images(
            self._model, self._visual, list(new.values()), self._processor.image
        )
        found |= zip(new, features, strict=True)
        # Those of this call go last, so that they are the last to be forgotten.
        self._known |= found
        self._bytes += sum(features.nbytes for features in found.values())
        while self._bytes > self._capacity:
            self._bytes -= self._known.popitem(last=False)[1].nbytes
        return [found[page.digest] for page in pages]


class _Conversation(NamedTuple):
    """A prompt on its way to the device: `[time]` ids and the pages they show."""

    index: int
    ids: np.ndarray
    pages: tuple[Page, ...]


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
            seeds = [prompts[row.index].seed for row in rows] + [()] * (size - len(rows))
            samples = sampler.sample(
                model,
                params,
                *_arrays(rows, time, size, processor, page_features),
                sampler.row_keys(seeds),
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
    waiting = sorted(conversations, key=lambda row: len(row.ids))
    for time in sorted(prompt_buckets):
        rows = [row for row in waiting if len(row.ids) <= time]
        waiting = waiting[len(rows) :]
        while rows:
            larger = [size for size in batch_buckets if size >= len(rows)]
            size = min(larger, default=max(batch_buckets))
            yield rows[:size], time, size
            rows = rows[size:]


def _arrays(rows, time, size, processor, page_features):
    """Ids, lengths, positions and image features of a batch, as `sampler.sample` takes them."""
    prompts = np.full((size, time), processor.pad_id, np.int32)
    lengths, positions = np.zeros(size, np.int32), np.zeros((3, size, time), np.int32)
    for place, row in enumerate(rows):
        count = lengths[place] = len(row.ids)
        prompts[place, :count] = row.ids
        positions[:, place, :count] = page_positions(processor, row.ids, row.pages)
    pages = [page for row in rows for page in row.pages]
    if not pages:
        return prompts, lengths, positions, None
    features = page_features.encode(pages)
    tokens = sum(map(len, features))
    room = size * time // 2 if tokens <= size * time // 2 else size * time
    table = np.zeros((room, *features[0].shape[1:]), features[0].dtype)
    np.concatenate(features, out=table[:tokens])
    return prompts, lengths, positions, ImageFeatures(table[:, 0], np.moveaxis(table[:, 1:], 1, 0))
