"""Images -> what the decoder needs of them, in batches of few static shapes, each once."""

import collections
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image

from awm_jax.models.processor import ImageSettings, Processor, image_grid, process_images
from awm_jax.models.qwen3_vl import Model, PatchLayout, patch_layout

# Images of one call of the vision tower, and how many patches they may have together.
_FRAMES = (64, 16, 4, 1)
_PATCHES_AT_ONCE = 16384


class PageFeatures:
    """What the vision tower makes of pages; those used last are remembered by their digest.

    A page has an `image` as `process_image` takes it, and a `digest` that tells images apart.
    What is remembered holds for the vision parameters that this was made with: for one policy
    version where the tower is trained, for the whole run where it is frozen.

    Attributes:
      counts: of the pages asked for so far, `page_misses` were encoded and `page_hits` were not.
    """

    def __init__(
        self,
        model: Model,
        params: dict,
        processor: Processor,
        *,
        capacity_bytes: int = 4 * 2**30,
        at_once: int = _FRAMES[0],
    ):
        """Remembers features of up to `capacity_bytes`, on the host; see `encode_images`."""
        self._model, self._visual, self._processor = model, params["visual"], processor
        self._capacity, self._at_once = capacity_bytes, at_once
        self._known: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._bytes = 0
        self.counts = collections.Counter(page_hits=0, page_misses=0)

    def __call__(self, page: Any) -> np.ndarray:
        """`[token, 1 + taps, hidden]` of one page: merged features, then DeepStack's taps."""
        return self.encode([page])[0]

    def encode(self, pages: Sequence[Any]) -> list[np.ndarray]:
        """The features of each page, in order. New pages are encoded together, each once."""
        images = {page.digest: page.image for page in pages}
        found = {digest: self._known.pop(digest) for digest in images if digest in self._known}
        self._bytes -= sum(features.nbytes for features in found.values())
        new = {digest: image for digest, image in images.items() if digest not in found}
        self.counts.update(page_hits=len(pages) - len(new), page_misses=len(new))
        features = encode_images(
            self._model,
            self._visual,
            list(new.values()),
            self._processor.image,
            at_once=self._at_once,
        )
        found |= zip(new, features, strict=True)
        # Those of this call go last, so that they are the last to be forgotten.
        self._known |= found
        self._bytes += sum(features.nbytes for features in found.values())
        while self._bytes > self._capacity:
            self._bytes -= self._known.popitem(last=False)[1].nbytes
        return [found[page.digest] for page in pages]


def encode_images(
    model: Model,
    visual: dict,
    images: Sequence[np.ndarray | PIL.Image.Image],
    settings: ImageSettings,
    *,
    at_once: int = _FRAMES[0],
) -> list[np.ndarray]:
    """Features of each image, `[token, 1 + taps, hidden]`: merged ones, then DeepStack's taps.

    Images of like size go through the tower together. Sizes are rounded up by less than a
    quarter and batches are filled, so that pages of all kinds share a few programs.

    Args:
      model: of the parameters.
      visual: the vision tower's part of the parameters, `params["visual"]`.
      images: as `process_image` takes them.
      settings: the checkpoint's.
      at_once: images that go through the tower together, at most. With 1 an image's features do
        not depend on its neighbours; with more, another batch is another program, whose sums
        are rounded otherwise.
    """
    if at_once < 1:
        raise ValueError(f"found {at_once} images at once, expected at least 1")
    by_patches = collections.defaultdict(list)
    for index, image in enumerate(images):
        height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]
        grid = image_grid(height, width, settings)
        by_patches[rounded_up(int(np.prod(grid)))].append(index)
    features = {}
    for patches, waiting in by_patches.items():
        while waiting:
            most = max(1, min(len(waiting), at_once, _PATCHES_AT_ONCE // patches))
            frames = next(count for count in _FRAMES if count <= most)
            batch, waiting = waiting[:frames], waiting[frames:]
            parts = _encode_batch(model, visual, [images[i] for i in batch], settings, patches)
            features |= zip(batch, parts, strict=True)
    return [features[index] for index in range(len(images))]


def rounded_up(patches: int) -> int:
    """The next of 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ..., all multiples of four."""
    if patches <= 16:
        return 16
    octave = max(2, (patches - 1).bit_length() - 3)
    return -(-patches >> octave) << octave


def program_count() -> int:
    """How many programs of the vision tower this process has compiled."""
    return _features._cache_size()


def _encode_batch(model, visual, images, settings, patches) -> list[np.ndarray]:
    vision, count = model.config.vision, patches * len(images)
    pixels, grids, first = np.zeros((count, vision.patch_features), np.float32), [], 0
    for values, grid in process_images(images, settings):
        pixels[first : first + len(values)] = values
        first += len(values)
        grids.append(grid)
    merged = vision.spatial_merge_size**2
    layout = patch_layout(
        np.array(grids), vision, frames=len(grids), patches=patches, tokens=count // merged
    )
    features = np.asarray(_features(visual, pixels, layout, model=model))
    ends = np.cumsum([np.prod(grid) // merged for grid in grids])
    # Copied, so that one image that is kept does not keep the whole batch.
    return [part.copy() for part in np.split(features, ends)[:-1]]


@functools.partial(jax.jit, static_argnames="model")
def _features(visual, pixels, layout: PatchLayout, *, model: Model) -> jax.Array:
    features = model.image_features({"visual": visual}, pixels, layout)
    return jnp.stack([features.merged, *features.deepstack], axis=1)
