"""The one adapter between host and device: prompts -> tokens and images -> sampler -> samples."""

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from awm_jax.models import encode
from awm_jax.models import generate as sampler
from awm_jax.models import processor as processors
from awm_jax.models.encode import PageFeatures
from awm_jax.models.processor import Processor
from awm_jax.models.qwen3 import Model
from awm_jax.models.serving import Conversations, Request
from awm_jax.types import CONTEXT_FULL, Page, Prompt, Sample

# `Sample.finish_reason` begins so where a page cannot be shown; the reason follows.
ERROR = "error: "


def page_grid(processor: Processor, page: Page) -> tuple[int, int, int]:
    """Frames, rows and columns of a page's patches."""
    if processor.image is None:
        raise ValueError(f"page {page.number} of {page.document} was shown to a text model")
    try:
        return processors.image_grid(*page.image.shape[:2], processor.image)
    except ValueError as error:
        raise ValueError(f"page {page.number} of {page.document}: {error}") from error


def page_positions(
    processor: Processor, input_ids: np.ndarray, pages: Sequence[Page]
) -> np.ndarray:
    """`[3, time]` int32 positions of a whole sequence `[time]` that shows `pages`, in order.

    Raises:
      ValueError: the sequence's image tokens are not the pages' merged patches.
    """
    return processor.positions(input_ids, [page_grid(processor, page) for page in pages])[0]


class PolicyGenerate:
    """A `Generate` that keeps the caches of its conversations from one call to the next.

    It has one version of the parameters for life, so no cache can be that of another. Calls
    from several threads are done one after the other. Made by `make_generate`.
    """

    def __init__(
        self,
        conversations: Conversations,
        processor: Processor,
        *,
        enable_thinking: bool | None,
        policy_version: int,
    ):
        self._conversations, self._processor = conversations, processor
        self._thinking, self._version = enable_thinking, policy_version
        self._lock = threading.Lock()

    def __call__(self, prompts: Sequence[Prompt], *, temperature: float) -> list[Sample]:
        """Continues each conversation once, see `awm_jax.types.Generate`.

        One that shows a page that cannot be read, such as a strip more than 200 times as long
        as wide, gets a sample without tokens whose finish reason says which and why.
        """
        if not temperature >= 0:
            raise ValueError(f"found temperature {temperature}, expected 0 or more")
        asked = _conversations(prompts, self._processor, self._thinking, self._version)
        with self._lock:
            completions = self._conversations(
                [request for request in asked if isinstance(request, Request)], temperature
            )
        nothing = np.zeros(0, np.int32), *np.zeros((2, 0), np.float32)
        completions, results = iter(completions), []
        for request in asked:
            if isinstance(request, _Refused):
                results.append((*nothing, f"{ERROR}{request.error}"))
            elif (done := next(completions)) is None:
                results.append((*nothing, CONTEXT_FULL))
            else:
                reason = "stop" if done.finished else "length"
                results.append((done.token_ids, done.log_probs, done.raw_log_probs, reason))
        texts = self._processor.decode(
            [ids[:-1] if reason == "stop" else ids for ids, *_, reason in results]
        )
        return [
            Sample(
                prompt_ids=request.ids,
                token_ids=ids,
                log_probs=log_probs,
                text=text,
                finish_reason=reason,
                pages=request.pages,
                policy_version=self._version,
                raw_log_probs=raw_log_probs,
            )
            for request, (ids, log_probs, raw_log_probs, reason), text in zip(
                asked, results, texts, strict=True
            )
        ]

    @property
    def metrics(self) -> dict[str, int]:
        """Programs compiled by this process, bytes planned for the cache, and tokens so far.

        Of the tokens, `reused` were found in a cache and `read` were not.
        """
        counts = self._conversations.counts
        return {
            "compiled/sampler": sampler.program_count(),
            "compiled/vision": encode.program_count(),
            "cache/bytes": self._conversations.cache_bytes,
            "cache/reused_tokens": counts["reused_tokens"],
            "cache/read_tokens": counts["read_tokens"],
            "cache/sampled_tokens": counts["sampled_tokens"],
        }

    def release(self):
        """Gives the cache's memory back; conversations can be continued all the same."""
        with self._lock:
            self._conversations.release()


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
    min_p: float = 0.0,
    enable_thinking: bool | None = None,
    policy_version: int = 0,
    page_features: PageFeatures | None = None,
    cache_rows: int | None = None,
    prefill_chunk: int | None = None,
    decode_chunk: int = 32,
) -> PolicyGenerate:
    """A policy, or a frozen reader, that samples on this machine's devices.

    A conversation that goes on after a sample of this policy reads what is new and nothing
    twice, while its cache is there. What is compiled is bounded by the buckets, whatever the
    prompts, see `awm_jax.models.serving.Conversations`.

    Args:
      model, params, processor: a text model is shown no pages.
      max_new_tokens: of a sample.
      prompt_buckets: lengths, in tokens, to which prompts are padded. One that is longer than
        all of them gets an empty sample with the finish reason "context_full".
      batch_buckets: numbers of rows that are sampled together.
      top_p, top_k, min_p: see `awm_jax.models.generate.sample`.
      enable_thinking: see `awm_jax.models.processor.render_chat`.
      policy_version: noted in the samples; those of another version are read anew.
      page_features: remembers pages beyond this function; None for a memory of its own.
      cache_rows: conversations whose cache is kept; None for the largest batch.
      prefill_chunk: prompts are read in pieces of so many tokens at most; None for whole ones.
      decode_chunk: tokens that are sampled before rows that ended are given to others.
    """
    sizes = [*prompt_buckets, *batch_buckets, max_new_tokens, decode_chunk]
    sizes += [size for size in (cache_rows, prefill_chunk) if size is not None]
    if not prompt_buckets or not batch_buckets or min(sizes) < 1:
        raise ValueError(
            f"buckets {prompt_buckets} and {batch_buckets}, max_new_tokens {max_new_tokens}, "
            f"cache_rows {cache_rows}, prefill_chunk {prefill_chunk}, decode_chunk "
            f"{decode_chunk}: expected positive sizes"
        )
    sampler.check_choice(top_p, top_k, min_p)
    if (model.config.vision is None) != (processor.image is None):
        raise ValueError("of model and processor one reads images and the other does not")
    if page_features is None and model.config.vision is not None:
        page_features = PageFeatures(model, params, processor)
    conversations = Conversations(
        model,
        params,
        encode=None if page_features is None else page_features.encode,
        pad_id=processor.pad_id,
        stop_ids=processor.stop_ids,
        banned=processor.banned(model.config.text.vocab_size),
        max_new_tokens=max_new_tokens,
        prompt_buckets=prompt_buckets,
        batch_buckets=batch_buckets,
        cache_rows=cache_rows,
        prefill_chunk=prefill_chunk,
        decode_chunk=decode_chunk,
        choice=(top_p, top_k, min_p),
    )
    return PolicyGenerate(
        conversations, processor, enable_thinking=enable_thinking, policy_version=policy_version
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Refused:
    """A conversation with a page that cannot be shown, as it stood before, and why."""

    ids: np.ndarray
    pages: tuple[Page, ...]
    error: str


def _conversations(
    prompts: Sequence[Prompt], processor: Processor, enable_thinking: bool | None, version: int = 0
) -> list[Request | _Refused]:
    """Tokenizes what follows the last sample of each prompt; ids before it stay as sampled."""
    before, texts, grids, shown, refused = [], {}, {}, {}, {}
    for index, prompt in enumerate(prompts):
        samples = [i for i, m in enumerate(prompt.messages) if isinstance(m, Sample)]
        sample = prompt.messages[samples[-1]] if samples else None
        messages = prompt.messages[samples[-1] + 1 :] if samples else prompt.messages
        before.append(_before(sample))
        shown[index] = [p for m in messages for p in m.content if not isinstance(p, str)]
        try:
            grids[index] = [page_grid(processor, page) for page in shown[index]]
        except ValueError as error:
            if processor.image is None:
                raise
            refused[index] = str(error)
            continue
        if sample is None:
            texts[index] = processors.render_chat(
                messages, prompt.tools, enable_thinking=enable_thinking
            )
        else:
            ended = sample.token_ids[-1] == processor.stop_ids[0]
            texts[index] = processors.render_continuation(
                messages, ended=ended, enable_thinking=enable_thinking
            )
    encoded = dict(
        zip(texts, processor.encode(list(texts.values()), list(grids.values())), strict=True)
    )
    conversations = []
    for index, (prompt, (kept, earlier, sampled_by)) in enumerate(
        zip(prompts, before, strict=True)
    ):
        if index in refused:
            conversations.append(_Refused(kept, earlier, refused[index]))
            continue
        ids = np.concatenate([kept, encoded[index]]).astype(np.int32)
        pages, own = (*earlier, *shown[index]), sampled_by == version
        conversations.append(
            Request(
                ids=ids,
                positions=page_positions(processor, ids, pages),
                pages=pages,
                page_tokens=tuple(processor.image_tokens(page_grid(processor, p)) for p in pages),
                is_image=ids == processor.image_token_id,
                kept=len(kept) if own else 0,
                kept_pages=len(earlier) if own else 0,
                seed=prompt.seed,
            )
        )
    return conversations


def _before(sample: Sample | None) -> tuple[np.ndarray, tuple[Page, ...], int | None]:
    """Ids and pages up to a sample's end, which stay as they are, and the policy's version."""
    if sample is None:
        return np.zeros(0, np.int32), (), None
    if not len(sample.prompt_ids) or not len(sample.token_ids):
        raise ValueError("a prompt continues a sample without token ids; they cannot be kept")
    ids = np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int32)
    return ids, sample.pages, sample.policy_version
