"""Pages and queries as vectors from a server: Jina v4, hosted or on vLLM, and any OpenAI-like one.

A page's vectors depend on the page and on what `Embedder.name` says, not on the pages that are
embedded with it: inputs go one to a request, and what was embedded before is read from the disk.
All vectors have length 1.

Jina v4's weights are under the Qwen Research License (non-commercial). None of this was run against
Jina's servers or vLLM with its weights: requests and replies follow the services' documentation
and the model's code, and are tried against a double.
"""

import dataclasses
import hashlib
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from awm_jax import servers
from awm_jax.servers import Server
from awm_jax.types import Page

# A page as the embedder reads it: its image, or its text.
Readable = Page | str

JINA_SIZES = (128, 256, 512, 1024, 2048)
JINA_MULTI_SIZE = 128
JINA_HIDDEN_SIZE = 2048
# Jina's own cap: 768 tokens of 28 x 28 pixels.
JINA_MAX_PIXELS = 768 * 28 * 28
# What Jina v4 was trained to see before texts; the hosted service puts it there itself.
JINA_QUERY_PREFIX, JINA_PAGE_PREFIX = "Query: ", "Passage: "
JINA_IMAGE_TEXT = "Describe the image."
# Jina's image prompt has neither a system message nor an opened reply, so vLLM has to be started
# with this as --chat-template.
JINA_CHAT_TEMPLATE = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\n"
)


@dataclasses.dataclass(frozen=True)
class Embedder:
    """Pages and queries -> vectors whose dot product, or MaxSim, tells how well they match.

    Attributes:
      name: all that a vector depends on beside the page; an index built under another name must
        not be searched.
      size: of a vector.
      multi: whether there is one vector a token, `[token, size]`, instead of one, `[size]`.
      reads: "image" or "text", what of a page is embedded.
      embed_page: one page -> float32 vectors.
      embed_query: one query -> likewise.
      concurrency: pages in flight at one time.
    """

    name: str
    size: int
    multi: bool
    reads: str
    embed_page: Callable[[Readable], np.ndarray]
    embed_query: Callable[[str], np.ndarray]
    concurrency: int

    def embed_pages(self, pages: Sequence[Readable]) -> list[np.ndarray]:
        """Vectors of the pages, in order.

        Raises:
          ServerError: a page failed for good.
        """
        return servers.each(self.embed_page, pages, concurrency=self.concurrency)


def jina_hosted(
    server: Server,
    *,
    multi: bool = False,
    size: int = 2048,
    max_pixels: int = JINA_MAX_PIXELS,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Embedder:
    """Jina v4 by Jina's own service: base URL https://api.jina.ai/v1, model jina-embeddings-v4.

    Args:
      server: with `key_variable`.
      multi: 128 numbers a token instead of one vector a page.
      size: of a single vector, one of `JINA_SIZES`.
      max_pixels: larger pages are scaled down before they are sent.
      on_tokens: is given what each request cost, in tokens, from any thread.
    """
    size = _jina_size(multi, size)

    def embed(item: Mapping[str, str], task: str) -> np.ndarray:
        body = {"model": server.model, "task": task, "input": [item]}
        body |= {"return_multivector": True} if multi else {"dimensions": size}
        return _request(server, "embeddings", body, size, multi, on_tokens)

    def embed_page(page: Readable) -> np.ndarray:
        # The service takes the bare base64 of an image, or a URL.
        data = servers.png_uri(_capped(_image(page), max_pixels)).partition(",")[2]
        return embed({"image": data}, "retrieval.passage")

    return Embedder(
        name=f"{server.model}, hosted, {_shape_name(multi, size)}, {max_pixels} pixels",
        size=size,
        multi=multi,
        reads="image",
        embed_page=embed_page,
        embed_query=lambda query: embed({"text": query}, "retrieval.query"),
        concurrency=server.concurrency,
    )


def jina_vllm(
    server: Server,
    *,
    projector: np.ndarray | None = None,
    size: int = 2048,
    max_pixels: int = JINA_MAX_PIXELS,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Embedder:
    """Jina v4 on vLLM: the model jinaai/jina-embeddings-v4-vllm-retrieval.

    Without a projector, single vectors from /v1/embeddings, as vLLM pools them; Jina averages the
    tokens of an image alone, so that they need not be equal to the hosted service's. With one,
    multi-vectors: that model leaves out the last layer, so vLLM (--runner pooling, --pooler-config
    with the task token_embed) gives each token's hidden state at /pooling and the layer is
    applied here. Start vLLM with `JINA_CHAT_TEMPLATE`.

    Args:
      server: base URL with /v1.
      projector: `[128, 2048]` float, with the retrieval adapter merged; see `load_projector`.
      size: a single vector is cut to, one of `JINA_SIZES`.
      max_pixels: larger pages are scaled down before they are sent.
      on_tokens: is given what each request cost, in tokens, from any thread.
    """
    multi = projector is not None
    size = _jina_size(multi, size)
    if multi:
        _check_projector(projector, "the projector")

    def embed(body: Mapping[str, Any]) -> np.ndarray:
        body = {"model": server.model, **body}
        if not multi:
            whole = _request(server, "embeddings", body, JINA_HIDDEN_SIZE, False, on_tokens)
            # Matryoshka: the first numbers of the vector are a vector.
            return _unit(whole[:size])
        hidden = _request(server, "/pooling", body, JINA_HIDDEN_SIZE, True, on_tokens, unit=False)
        return _unit(hidden @ projector.T.astype(np.float32))

    def embed_page(page: Readable) -> np.ndarray:
        url = servers.png_uri(_capped(_image(page), max_pixels))
        content = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": JINA_IMAGE_TEXT},
        ]
        messages = [{"role": "user", "content": content}]
        return embed({"messages": messages, "add_generation_prompt": False})

    layer = f", projector {_digest(projector)}" if multi else ""
    return Embedder(
        name=f"{server.model}, vLLM, {_shape_name(multi, size)}, {max_pixels} pixels{layer}",
        size=size,
        multi=multi,
        reads="image",
        embed_page=embed_page,
        embed_query=lambda query: embed({"input": [JINA_QUERY_PREFIX + query]}),
        concurrency=server.concurrency,
    )


def text_embedder(
    server: Server,
    *,
    size: int,
    query_prefix: str = "",
    page_prefix: str = "",
    max_characters: int = 8_000,
    extra: Mapping[str, Any] | None = None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Embedder:
    """Any embedding server with the OpenAI API, over the pages' text layer.

    Args:
      server: whom to ask.
      size: of its vectors; another one is an error.
      query_prefix: what the model wants before a query, such as "Query: ".
      page_prefix: and before a page.
      max_characters: what goes beyond is cut off, since servers refuse long texts.
      extra: further fields of the request, such as `{"dimensions": 512}`.
      on_tokens: is given what each request cost, in tokens, from any thread.
    """
    extra = dict(extra or {})

    def embed(text: str) -> np.ndarray:
        # An empty text is refused by most servers; a blank page is a page nonetheless.
        body = {"model": server.model, "input": [text[:max_characters] or " "], **extra}
        return _request(server, "embeddings", body, size, False, on_tokens)

    def embed_page(page: Readable) -> np.ndarray:
        if not isinstance(page, str):
            raise ValueError(f"page {page.number} of {page.document}: expected its text")
        return embed(page_prefix + page)

    prefixes = f"prefixes {query_prefix!r} and {page_prefix!r}, {max_characters} characters"
    return Embedder(
        name=f"{server.model}, text, {size} numbers, {prefixes}"
        + "".join(f", {name} {value!r}" for name, value in sorted(extra.items())),
        size=size,
        multi=False,
        reads="text",
        embed_page=embed_page,
        embed_query=lambda query: embed(query_prefix + query),
        concurrency=server.concurrency,
    )


def kept(embedder: Embedder, folder: str | pathlib.Path) -> Embedder:
    """`embedder` that keeps each page's vectors in a folder and never asks for them again.

    A page is known by what it shows, so that one that comes twice is paid for once, and a build
    that was killed goes on where it was. Several processes may share the folder.

    Args:
      embedder: whose name picks the subfolder.
      folder: where the vectors lie, a file a page.
    """
    place = pathlib.Path(folder) / hashlib.sha256(embedder.name.encode()).hexdigest()[:16]

    def embed_page(page: Readable) -> np.ndarray:
        shown = page if isinstance(page, str) else page.digest
        path = place / f"{hashlib.sha256(shown.encode('utf-8', 'replace')).hexdigest()[:32]}.npy"
        try:
            return np.load(path, allow_pickle=False)
        except FileNotFoundError:
            vectors = embedder.embed_page(page)
        place.mkdir(parents=True, exist_ok=True)
        # Moved into place when it is whole: a killed process leaves no half of a file.
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as file:
            np.save(file, vectors)
        os.replace(file.name, path)
        return vectors

    return dataclasses.replace(embedder, embed_page=embed_page)


def load_projector(path: str | pathlib.Path) -> np.ndarray:
    """Jina v4's multi-vector projector from a .npy file, `[128, 2048]`.

    It is the model's multi_vector_projector weight plus what its retrieval adapter adds.

    Raises:
      ValueError: something else is there.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    _check_projector(found, str(path))
    return found


def _check_projector(found: np.ndarray, what: str) -> None:
    expected = (JINA_MULTI_SIZE, JINA_HIDDEN_SIZE)
    if found.shape != expected or not np.issubdtype(found.dtype, np.floating):
        raise ValueError(f"{what}: found {found.shape} {found.dtype}, expected {expected} floats")


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<f4")).hexdigest()[:12]


def _jina_size(multi: bool, size: int) -> int:
    if size not in JINA_SIZES:
        raise ValueError(f"size {size}: Jina v4 has vectors of {JINA_SIZES}")
    return JINA_MULTI_SIZE if multi else size


def _shape_name(multi: bool, size: int) -> str:
    return f"{size} numbers a token" if multi else f"{size} numbers"


def _request(
    server: Server,
    path: str,
    body: Mapping[str, Any],
    size: int,
    multi: bool,
    on_tokens: Callable[[int], None],
    *,
    unit: bool = True,
) -> np.ndarray:
    """The vectors of the one input in `body`, of the expected shape, of length 1 where `unit`."""

    def read(reply: Mapping[str, Any]) -> tuple[np.ndarray, int]:
        [array] = servers.read_embeddings(reply, count=1, size=size if multi else None)
        if array.ndim != 1 + multi or array.shape[-1] != size:
            expected = f"[token, {size}]" if multi else f"[{size}]"
            raise servers.Malformed(f"vectors of shape {list(array.shape)}, expected {expected}")
        if unit and not np.linalg.norm(array, axis=-1).all():
            raise servers.Malformed("a vector of length 0")
        usage = reply.get("usage") or {}
        return array, usage.get("total_tokens") or usage.get("prompt_tokens") or 0

    (array, tokens), _ = servers.post(server, path, body, read=read)
    on_tokens(tokens)
    return _unit(array) if unit else array


def _unit(array: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(array.astype(np.float64), axis=-1, keepdims=True)
    return (array / np.maximum(length, np.finfo(np.float32).tiny)).astype(np.float32)


def _image(page: Readable) -> np.ndarray:
    if isinstance(page, str):
        raise ValueError("found a text, expected a page with its image")
    return page.image


def _capped(image: np.ndarray, max_pixels: int) -> np.ndarray:
    """The image, scaled down where it has more than `max_pixels`."""
    height, width = image.shape[:2]
    if height * width <= max_pixels:
        return image
    scale = math.sqrt(max_pixels / (height * width))
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
