"""Qwen3-VL: the vision tower, DeepStack, and positions with three axes.

Follows `modeling_qwen3_vl.py` and `vision_utils.py` of HF transformers 5.24. What depends on
the sizes of the images (which patches belong together, where they lie, how the position table
is interpolated) is worked out on the host, in numpy, into a `PatchLayout`; the device sees
arrays of fixed shape only.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from awm_jax.models import attention as attention_lib
from awm_jax.models import layers, qwen3
from awm_jax.models.config import Config, VisionConfig
from awm_jax.models.processor import mrope_positions
from awm_jax.models.qwen3 import is_concrete


class ImageFeatures(NamedTuple):
    """What the decoder needs of images, one row an image token, in the tokens' order.

    Attributes:
      merged: `[tokens, hidden]`, takes the place of the token embedding.
      deepstack: `[taps, tokens, hidden]`; tap k is added after decoder layer k.
    """

    merged: jax.Array
    deepstack: jax.Array


class PatchLayout(NamedTuple):
    """Where the patches of a batch of images lie; made by `patch_layout`.

    A frame is one image (or one frame of a video): patches attend within it. Frames are padded
    to the largest, patches in blocks of `spatial_merge_size` squared that merge to one token.

    Attributes:
      patches: `[frame, patch]` int32, the row of `pixel_values`; 0 where padded.
      valid: `[frame, patch]` bool, False where padded.
      places: `[frame, patch, 2]` int32, row and column in the frame's grid.
      taps: `[frame, patch, 4]` int32, rows of the position table.
      weights: `[frame, patch, 4]` float32, the taps' weights.
      tokens: `[token]` int32, each image token's block among all blocks of the padded frames.
    """

    patches: np.ndarray
    valid: np.ndarray
    places: np.ndarray
    taps: np.ndarray
    weights: np.ndarray
    tokens: np.ndarray


def _table_taps(places, size, side):
    """Two taps into a table of `side` and their weights, for places on an axis of `size`.

    The ends of the axis meet the ends of the table. All in float32, as HF has it: jnp.linspace
    differs in the last bit, which moves a floor now and then.
    """
    source = places.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(source)
    taps = floor.astype(np.int32)[:, None] + np.arange(2, dtype=np.int32)
    distance = np.abs(source[:, None] - taps.astype(np.float32))
    weights = np.maximum(np.float32(1) - distance, np.float32(0))
    return np.clip(taps, 0, side - 1), weights


def concrete_grid(image_grid_thw) -> np.ndarray:
    """The grid as `[image, 3]` int64 in numpy; ValueError where it is traced."""
    if not is_concrete(image_grid_thw):
        raise ValueError(
            "image_grid_thw is traced, but shapes depend on it: close over it as numpy, or make a "
            "PatchLayout outside with qwen3_vl.patch_layout and pass that in its place"
        )
    grid = np.asarray(image_grid_thw).astype(np.int64)
    if grid.ndim != 2 or grid.shape[1] != 3:
        raise ValueError(f"image_grid_thw: found shape {grid.shape}, expected [image, 3]")
    return grid


def patch_layout(
    image_grid_thw, vision: VisionConfig, *, frames=None, patches=None, tokens=None
) -> PatchLayout:
    """Works out on the host how a batch of images is laid out.

    Args:
      image_grid_thw: `[image, 3]` frames, rows and columns of patches.
      vision: the vision tower's shape.
      frames, patches, tokens: sizes to pad to, so that batches of several image sizes share one
        compiled program; None for what the images need.
    """
    grid = concrete_grid(image_grid_thw)
    merge, side = vision.spatial_merge_size, int(vision.num_position_embeddings**0.5)
    if (grid <= 0).any() or (grid[:, 1:] % merge).any():
        raise ValueError(f"image grids {grid.tolist()}: rows and columns must divide by {merge}")
    lengths = np.repeat(grid[:, 1] * grid[:, 2], grid[:, 0])
    needed = {
        "frames": len(lengths),
        "patches": int(lengths.max(initial=merge**2)),
        "tokens": int(lengths.sum()) // merge**2,
    }
    sizes = {"frames": frames, "patches": patches, "tokens": tokens}
    sizes = {name: needed[name] if size is None else size for name, size in sizes.items()}
    if any(sizes[name] < needed[name] for name in sizes) or sizes["patches"] % merge**2:
        raise ValueError(
            f"patch layout: found sizes {sizes}, expected at least {needed} and patches that "
            f"divide by {merge**2}"
        )
    shape = (sizes["frames"], sizes["patches"])
    layout = PatchLayout(
        patches=np.zeros(shape, np.int32),
        valid=np.zeros(shape, bool),
        places=np.zeros((*shape, 2), np.int32),
        taps=np.zeros((*shape, 4), np.int32),
        weights=np.zeros((*shape, 4), np.float32),
        tokens=np.zeros((sizes["tokens"],), np.int32),
    )
    frame, first = 0, 0
    for count, rows, columns in grid:
        # Raster numbers in the order in which patches come: block by block.
        order = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
        order = order.transpose(0, 2, 1, 3).reshape(-1)
        row, column = order // columns, order % columns
        row_taps, row_weights = _table_taps(row, rows, side)
        column_taps, column_weights = _table_taps(column, columns, side)
        taps = (row_taps[:, :, None] * side + column_taps[:, None, :]).reshape(-1, 4)
        weights = (row_weights[:, :, None] * column_weights[:, None, :]).reshape(-1, 4)
        length, blocks = rows * columns, rows * columns // merge**2
        for _ in range(count):
            layout.patches[frame, :length] = first + np.arange(length)
            layout.valid[frame, :length] = True
            layout.places[frame, :length] = np.stack([row, column], axis=-1)
            layout.taps[frame, :length] = taps
            layout.weights[frame, :length] = weights
            start = first // merge**2
            block = frame * (sizes["patches"] // merge**2) + np.arange(blocks)
            layout.tokens[start : start + blocks] = block
            frame, first = frame + 1, first + length
    return layout


class VisionBlock(nnx.Module):
    """One layer of the vision tower."""

    def __init__(self, v: VisionConfig):
        scale = (2 * v.depth) ** -0.5
        self.norm1 = layers.LayerNorm(v.hidden_size)
        self.norm2 = layers.LayerNorm(v.hidden_size)
        self.attn = nnx.Dict(
            qkv=layers.Linear(v.hidden_size, 3 * v.hidden_size, bias=True),
            proj=layers.Linear(v.hidden_size, v.hidden_size, scale=scale, bias=True),
        )
        self.mlp = nnx.Dict(
            linear_fc1=layers.Linear(v.hidden_size, v.intermediate_size, bias=True),
            linear_fc2=layers.Linear(v.intermediate_size, v.hidden_size, scale=scale, bias=True),
        )
        self.num_heads = v.num_heads

    def __call__(self, x, cos, sin, mask):
        """`x` is `[frame, patch, features]`; `mask` `[frame, 1, patch]`, True for real patches."""
        qkv = self.attn.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, self.num_heads, -1)
        query, key, value = (qkv[:, :, i] for i in range(3))
        query, key = layers.rotate(query, cos, sin), layers.rotate(key, cos, sin)
        out = attention_lib.attention(query, key, value, mask)
        x = x + self.attn.proj(out.reshape(x.shape))
        inner = jax.nn.gelu(self.mlp.linear_fc1(self.norm2(x)), approximate=True)
        return x + self.mlp.linear_fc2(inner)


class Merger(nnx.Module):
    """Merges a block of patches to one token of the decoder's width.

    The main merger norms each patch, those of DeepStack the whole block. The activation is the
    exact GELU, unlike the tower's.
    """

    def __init__(self, v: VisionConfig, *, norm_block: bool):
        width = v.hidden_size * v.spatial_merge_size**2
        self.norm = layers.LayerNorm(width if norm_block else v.hidden_size)
        self.linear_fc1 = layers.Linear(width, width, bias=True)
        self.linear_fc2 = layers.Linear(width, v.out_hidden_size, bias=True)
        self.norm_block, self.width = norm_block, width

    def __call__(self, x):
        """`[frame, patch, features]` -> `[frame, patch / merge**2, out_hidden]`."""
        x = x if self.norm_block else self.norm(x)
        x = x.reshape(x.shape[0], -1, self.width)
        x = self.norm(x) if self.norm_block else x
        return self.linear_fc2(jax.nn.gelu(self.linear_fc1(x), approximate=False))


class PatchEmbed(nnx.Module):
    """HF's convolution over non-overlapping patches, as a product: kernel `[c, t, h, w, out]`."""

    def __init__(self, v: VisionConfig):
        shape = (v.in_channels, v.temporal_patch_size, v.patch_size, v.patch_size, v.hidden_size)
        self.proj = layers.Linear(v.patch_features, v.hidden_size, bias=True)
        self.proj.kernel = layers.parameter(*shape, deviation=v.patch_features**-0.5)

    def __call__(self, patches):
        kernel = self.proj.kernel[...]
        y = patches.astype(kernel.dtype) @ kernel.reshape(-1, kernel.shape[-1])
        return y + self.proj.bias[...].reshape((1,) * (y.ndim - 1) + (-1,))


class VisionTower(nnx.Module):
    """Patches -> one feature row an image token, and the DeepStack taps on the way."""

    def __init__(self, v: VisionConfig):
        self.patch_embed = PatchEmbed(v)
        self.pos_embed = layers.Embedding(v.num_position_embeddings, v.hidden_size)
        self.blocks = layers.stacked(lambda: VisionBlock(v), v.depth)
        self.merger = Merger(v, norm_block=False)
        self.deepstack_merger_list = layers.stacked(
            lambda: Merger(v, norm_block=True), len(v.deepstack_visual_indexes)
        )
        self.config = v

    def embed(self, pixel_values, layout: PatchLayout):
        """`[frame, patch, features]`: embedded patches with their interpolated position."""
        x = self.patch_embed(jnp.take(pixel_values, layout.patches, axis=0, mode="clip"))
        position = jnp.zeros(x.shape, jnp.float32)
        for tap in range(4):
            weight = jnp.asarray(layout.weights)[:, :, tap, None]
            position += self.pos_embed(layout.taps[:, :, tap]).astype(jnp.float32) * weight
        return x + position.astype(x.dtype)

    def rotation(self, layout: PatchLayout):
        """Cosines and sines, `[frame, patch, head_dim]` float32 each.

        Of a head's pairs the first half turns with the row, the second with the column.
        """
        v = self.config
        frequencies = layers.inverse_frequencies(v.hidden_size // v.num_heads // 2, 1e4)
        angles = jnp.asarray(layout.places)[..., None] * frequencies[None, None, None, :]
        angles = angles.reshape(*angles.shape[:2], -1)
        angles = jnp.concatenate([angles, angles], axis=-1)
        return jnp.cos(angles), jnp.sin(angles)

    def __call__(self, pixel_values, layout: PatchLayout, *, model) -> ImageFeatures:
        v = self.config
        x = self.embed(pixel_values, layout)
        cos, sin = self.rotation(layout)
        mask = jnp.asarray(layout.valid)[:, None, :]

        # Each block writes its output to its tap's place, or to a last one that nobody reads:
        # a scan over all blocks with no copy of the taps, nor of the stacked parameters.
        taps = len(v.deepstack_visual_indexes)
        places = np.full(v.depth, taps, np.int32)
        places[list(v.deepstack_visual_indexes)] = np.arange(taps)

        def body(carry, step):
            x, kept = carry
            block, place = step
            x = block(x, cos, sin, mask)
            kept = jax.lax.dynamic_update_index_in_dim(kept, x, place, axis=0)
            return (x, kept), None

        kept = jnp.zeros((taps + 1, *x.shape), x.dtype)
        body = jax.checkpoint(body, prevent_cse=False) if model.remat else body
        (x, kept), _ = jax.lax.scan(body, (x, kept), (self.blocks, places))

        def token_rows(merger, x):
            blocks = merger(x)
            blocks = blocks.reshape(-1, blocks.shape[-1])
            return jnp.take(blocks, layout.tokens, axis=0, mode="clip")

        token_rows = jax.checkpoint(token_rows) if model.remat else token_rows
        _, deepstack = jax.lax.scan(
            lambda _, tap: (None, token_rows(*tap)), None, (self.deepstack_merger_list, kept[:taps])
        )
        return ImageFeatures(token_rows(self.merger, x), deepstack)


class Qwen3VL(nnx.Module):
    """The parameters of a vision-language model."""

    def __init__(self, c: Config):
        self.language_model = qwen3.Decoder(c.text)
        self.visual = VisionTower(c.vision)
        if not c.tie_word_embeddings:
            self.lm_head = layers.Embedding(c.text.vocab_size, c.text.hidden_size)


@functools.lru_cache
def _tower_graph(v: VisionConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: VisionTower(v)))[0]


def merged_tower(v: VisionConfig, params) -> VisionTower:
    """The vision tower with the arrays under `params["visual"]`."""
    return nnx.merge(_tower_graph(v), params["visual"])


def packed_positions(input_ids, image_grid_thw, segment_ids, config: Config) -> np.ndarray:
    """`[3, batch, time]` int32 positions of rows that hold segments; 0 at padding.

    Args:
      input_ids: `[batch, time]` int, on the host.
      image_grid_thw: `[image, 3]` patches, images in row-major order of their tokens.
      segment_ids: `[batch, time]` int, 0 for padding; each segment counts from 0.
      config: the model's.
    """
    ids, segments = np.asarray(input_ids), np.asarray(segment_ids)
    merge, grids = config.vision.spatial_merge_size, concrete_grid(image_grid_thw).tolist()
    positions = np.zeros((3, *ids.shape), np.int32)
    waiting = list(grids)
    for row, segment in enumerate(segments):
        for number in dict.fromkeys(segment[segment != 0].tolist()):
            (places,) = np.nonzero(segment == number)
            tokens, shown = np.sum(ids[row, places] == config.image_token_id), []
            while tokens > 0 and waiting:
                shown.append(waiting.pop(0))
                tokens -= math.prod(shown[-1]) // merge**2
            positions[:, row, places], _ = mrope_positions(
                ids[row, places], shown, image_token_id=config.image_token_id, merge_size=merge
            )
    if waiting:
        raise ValueError(f"found no image tokens for the image grids {waiting}")
    return positions


@dataclasses.dataclass(frozen=True, eq=False)
class Model(qwen3.Model):
    """As `qwen3.Model`, with images."""

    def image_features(self, params, pixel_values, image_grid_thw) -> ImageFeatures:
        """Features of a batch of images, flat over images, one row an image token.

        Args:
          params: parameters in the form of `self.params`; only `params["visual"]` is read.
          pixel_values: `[patch, channels * frames * height * width]`, images one after another.
          image_grid_thw: `[image, 3]` patches, numpy or any array that can be read now, also
            under `jax.jit`; or a `PatchLayout`, which may be traced.
        """
        layout = image_grid_thw
        if not isinstance(layout, PatchLayout):
            layout = patch_layout(image_grid_thw, self.config.vision)
            found, expected = pixel_values.shape, int(layout.valid.sum())
            if found != (expected, self.config.vision.patch_features):
                raise ValueError(
                    f"pixel_values: found shape {found}, expected "
                    f"{(expected, self.config.vision.patch_features)} for the image grids"
                )
        tower = merged_tower(self.config.vision, params)
        return tower(jnp.asarray(pixel_values), layout, model=self)

    def hidden(
        self,
        params,
        input_ids,
        *,
        attention_mask=None,
        position_ids=None,
        segment_ids=None,
        pixel_values=None,
        image_grid_thw=None,
        image_features=None,
        cache=None,
    ):
        """As `qwen3.Model.hidden`, with images.

        Args:
          position_ids: `[3, batch, time]` int32, or `[batch, time]` for all three axes. None
            works them out where the ids can be read now. With a cache they must be given: where
            a row stands depends on the images that went before.
          pixel_values: `[patch, features]` of all images, in row-major order of their tokens.
          image_grid_thw: as in `image_features`.
          image_features: in the place of pixel_values and grids, what `image_features` returned;
            row i belongs to the i-th image token, and rows may follow that belong to none.
            `position_ids` or `image_grid_thw` must come with them.
        """
        segments = qwen3.token_segments(input_ids, attention_mask, segment_ids, cache)
        visibility, moved = qwen3.visibility_of(segments, cache)
        if pixel_values is not None:
            if image_features is not None or image_grid_thw is None:
                raise ValueError(
                    "pixel_values: expected image_grid_thw with them and no image_features"
                )
            image_features = self.image_features(params, pixel_values, image_grid_thw)
        elif image_features is None and image_grid_thw is not None:
            raise ValueError("image_grid_thw: expected pixel_values or image_features with it")
        is_image = (input_ids == self.config.image_token_id) & (segments != 0)
        if is_concrete(input_ids, is_image):
            self._check_image_tokens(int(is_image.sum()), pixel_values, image_features)
        if position_ids is None:
            position_ids = self._positions(
                input_ids, segments, image_grid_thw, image_features, visibility, cache
            )
        elif position_ids.ndim == 2:
            position_ids = jnp.broadcast_to(position_ids[None], (3, *position_ids.shape))

        decoder = qwen3.merged_decoder(self.config.text, params)
        x = decoder.embed_tokens(input_ids)
        after_layer = None
        if image_features is not None:
            x, after_layer = self._insert(x, is_image, image_features)
        x, moved = decoder(x, position_ids, visibility, moved, model=self, after_layer=after_layer)
        return x if cache is None else (x, moved)

    def _insert(self, x, is_image, features: ImageFeatures):
        """Puts the merged features at image tokens; returns what adds the DeepStack taps."""
        rows = jnp.cumsum(is_image.reshape(-1), dtype=jnp.int32).reshape(is_image.shape) - 1
        # An image token without a feature (one that was sampled, say) stays a plain token.
        has_feature = (is_image & (rows < features.merged.shape[0]))[..., None]

        def at_tokens(table):
            return jnp.take(table, rows, axis=0, mode="clip").astype(x.dtype)

        taps = features.deepstack.shape[0]

        def add_tap(hidden, layer):
            tap = jax.lax.dynamic_index_in_dim(features.deepstack, layer, keepdims=False)
            return hidden + jnp.where(has_feature, at_tokens(tap), 0).astype(hidden.dtype)

        def after_layer(hidden, layer):
            return jax.lax.cond(layer < taps, add_tap, lambda hidden, _: hidden, hidden, layer)

        return jnp.where(has_feature, at_tokens(features.merged), x), after_layer

    def _positions(self, input_ids, segments, grid, features, visibility, cache):
        if cache is not None:
            raise ValueError(
                "position_ids are needed with a cache: where a row stands depends on its images"
            )
        if features is None:
            positions = qwen3.counted_positions(visibility)[None]
            return jnp.broadcast_to(positions, (3, *input_ids.shape))
        if grid is None or isinstance(grid, PatchLayout) or not is_concrete(input_ids, segments):
            raise ValueError(
                "position_ids are needed with images where input_ids are traced or image_grid_thw "
                "is not given: compute them on the host with packed_positions"
            )
        return jnp.asarray(packed_positions(input_ids, grid, segments, self.config))

    def _check_image_tokens(self, tokens: int, pixel_values, features):
        rows = 0 if features is None else features.merged.shape[0]
        if tokens > rows or (pixel_values is not None and tokens != rows):
            raise ValueError(
                f"found {tokens} image tokens in input_ids, expected {rows}, one for each row of "
                "the image features"
            )
