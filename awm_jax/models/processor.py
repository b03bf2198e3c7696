"""Chats and images -> what Qwen3 and Qwen3-VL read: text, token ids, patches, positions.

Host code in numpy and PIL; torch and torchvision are not needed. The chat format is written
out here rather than taken from the checkpoint's Jinja template: it renders what follows a
sampled message alone, and text from outside cannot forge the protocol's tokens.
"""

import concurrent.futures
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import tokenizers

START, END = "<|im_start|>", "<|im_end|>"
IMAGE = "<|image_pad|>"
_IMAGE_TEXT = f"<|vision_start|>{IMAGE}<|vision_end|>"
_NO_THOUGHTS = "<think>\n\n</think>\n\n"

# The bracket of what a tokenizer or a parser of tool calls would take for protocol.
_PROTOCOL = re.compile(r"<(?=\|[^\s|<>]+\|>|/?(?:tools|tool_call|tool_response|think)>)")

_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def escape(text: str) -> str:
    """`text` with a space behind the bracket of all that looks like protocol.

    `<|im_end|>` becomes `< |im_end|>` and `</tool_call>` becomes `< /tool_call>`, which no
    tokenizer reads as a control token. The rest is unchanged, but for halves of surrogate
    pairs, which cannot be encoded and become U+FFFD.
    """
    return _PROTOCOL.sub("< ", _encodable(text))


def render_json(value: Any) -> str:
    """JSON as the chat templates write it; brackets of protocol become `\\u003c`."""
    return _PROTOCOL.sub(r"\\u003c", _encodable(json.dumps(value, ensure_ascii=False)))


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the model is taught to write it."""
    body = f'{{"name": {render_json(name)}, "arguments": {render_json(dict(arguments))}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def render_chat(
    messages: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
    enable_thinking: bool | None = None,
) -> str:
    """A conversation from its beginning, as the templates of Qwen3 and Qwen3-VL render it.

    Args:
      messages: each has a `role` ("system" first if at all, "user", "assistant", "tool"), a
        `content` sequence of strings and images, and `calls` with `name` and `arguments`. An
        image is anything but a string; it becomes one `<|image_pad|>`.
      tools: JSON schemas, listed in the system message.
      add_generation_prompt: whether to open the assistant's message.
      enable_thinking: False opens it with an empty thought, as Qwen3 does when thinking is off.
        Qwen3-VL-Instruct has no thoughts: leave it None.
    """
    system, turns = [], list(messages)
    if turns and turns[0].role == "system":
        system.append(_content(turns.pop(0).content))
    if tools:
        listed = "".join("\n" + render_json(tool) for tool in tools)
        system.append(_TOOLS_BEFORE + listed + _TOOLS_AFTER)
    head = f"{START}system\n" + "\n\n".join(system) + f"{END}\n" if system else ""
    return head + _turns(turns, add_generation_prompt, enable_thinking)


def render_continuation(
    messages: Sequence[Any],
    *,
    ended: bool,
    add_generation_prompt: bool = True,
    enable_thinking: bool | None = None,
) -> str:
    """What follows a sampled assistant message whose ids are kept as they are.

    Args:
      messages: those after the sampled one, as in `render_chat`, without a system message.
      ended: whether the sampled ids end with `<|im_end|>`; one that was cut short gets its end.
      add_generation_prompt, enable_thinking: as in `render_chat`.
    """
    closing = "\n" if ended else f"{END}\n"
    return closing + _turns(messages, add_generation_prompt, enable_thinking)


def _turns(messages, add_generation_prompt, enable_thinking) -> str:
    parts = []
    for place, message in enumerate(messages):
        content = _content(message.content)
        match message.role:
            case "user":
                parts.append(f"{START}user\n{content}{END}\n")
            case "assistant":
                calls = [render_call(call.name, call.arguments) for call in message.calls]
                body = "\n".join([content, *calls] if content else calls)
                parts.append(f"{START}assistant\n{body}{END}\n")
            case "tool":
                # Results that follow one another share a user turn.
                if place == 0 or messages[place - 1].role != "tool":
                    parts.append(f"{START}user")
                parts.append(f"\n<tool_response>\n{content}\n</tool_response>")
                if place + 1 == len(messages) or messages[place + 1].role != "tool":
                    parts.append(f"{END}\n")
            case other:
                raise ValueError(
                    f"message {place} has the role {other!r}; expected user, assistant or tool, "
                    "and system in the first message alone"
                )
    if add_generation_prompt:
        parts.append(f"{START}assistant\n" + (_NO_THOUGHTS if enable_thinking is False else ""))
    return "".join(parts)


def _content(content: Sequence[Any]) -> str:
    # Escaped as a whole between images: a token could stand across two strings.
    parts, text = [], ""
    for part in content:
        if isinstance(part, str):
            text += part
        else:
            parts += [escape(text), _IMAGE_TEXT]
            text = ""
    return "".join([*parts, escape(text)])


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """How pages become patches; from preprocessor_config.json.

    Attributes:
      min_pixels, max_pixels: area of a resized image, in pixels.
      patch_size: side of a patch, in pixels.
      temporal_patch_size: frames of a patch; a still image is repeated.
      merge_size: patches along each side of what becomes one token.
      mean, std: per channel, of pixels scaled to [0, 1].
    """

    min_pixels: int
    max_pixels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def resized_size(height: int, width: int, settings: ImageSettings) -> tuple[int, int]:
    """Height and width, in pixels, at which an image is cut into patches.

    Sides are multiples of a merged patch, the area lies within the limits and the proportions
    are kept as well as that allows. Halves are rounded to even, as upstream does: with 32
    pixels a merged patch, 80 becomes 64 and 112 becomes 128. Follows `smart_resize` of HF's
    `image_processing_pil_qwen2_vl.py`.

    Raises:
      ValueError: one side is more than 200 times the other, or there are no pixels.
    """
    if min(height, width) < 1 or max(height, width) > 200 * min(height, width):
        raise ValueError(
            f"an image of {height} x {width} pixels; expected sides that differ by a factor of "
            "200 at most"
        )
    factor = settings.patch_size * settings.merge_size
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > settings.max_pixels:
        beta = math.sqrt(height * width / settings.max_pixels)
        rows = max(factor, math.floor(height / beta / factor) * factor)
        columns = max(factor, math.floor(width / beta / factor) * factor)
    elif rows * columns < settings.min_pixels:
        beta = math.sqrt(settings.min_pixels / (height * width))
        rows = math.ceil(height * beta / factor) * factor
        columns = math.ceil(width * beta / factor) * factor
    return rows, columns


def image_grid(height: int, width: int, settings: ImageSettings) -> tuple[int, int, int]:
    """Frames, rows and columns of patches of an image, told from its size in pixels."""
    rows, columns = resized_size(height, width, settings)
    return 1, rows // settings.patch_size, columns // settings.patch_size


def process_image(
    image: np.ndarray | PIL.Image.Image, settings: ImageSettings
) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Patches of one image, equal in every bit to those of HF's PIL backend.

    Args:
      image: `[height, width, 3]` uint8 RGB, or an image of PIL in any mode; what is
        transparent is laid on white.
      settings: the checkpoint's.

    Returns:
      `[patch, channel * frame * row * column]` float32, ordered so that the patches of a token
      follow one another, and the grid (frames, rows, columns) of patches.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(
                f"found an image of shape {image.shape} and type {image.dtype}, expected "
                "[height, width, 3] uint8"
            )
        image = PIL.Image.fromarray(image)
    image = _on_white(image)
    rows, columns = resized_size(image.height, image.width, settings)
    image = image.resize((columns, rows), PIL.Image.Resampling.BICUBIC)
    size, merge = settings.patch_size, settings.merge_size
    grid = (1, rows // size, columns // size)
    pixels = np.asarray(image)
    channels = [table[pixels[:, :, c]] for c, table in enumerate(_levels(settings))]
    blocks = np.stack(channels).reshape(
        3, grid[1] // merge, merge, size, grid[2] // merge, merge, size
    )
    # Token row, token column, patch row, patch column, channel, pixel row, pixel column.
    blocks = blocks.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    blocks = np.repeat(blocks, settings.temporal_patch_size, axis=5)
    return blocks.reshape(grid[1] * grid[2], -1), grid


def process_images(
    images: Sequence[np.ndarray | PIL.Image.Image], settings: ImageSettings
) -> list[tuple[np.ndarray, tuple[int, int, int]]]:
    """`process_image` of each, in order and with the same bits, in as many threads as cores."""
    if len(images) < 2:
        return [process_image(image, settings) for image in images]
    with concurrent.futures.ThreadPoolExecutor(min(len(images), os.cpu_count() or 1)) as pool:
        return list(pool.map(functools.partial(process_image, settings=settings), images))


def _on_white(image: PIL.Image.Image) -> PIL.Image.Image:
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = PIL.Image.alpha_composite(white, image)
    return image.convert("RGB")


@functools.lru_cache
def _levels(settings: ImageSettings) -> np.ndarray:
    """`[3, 256]` float32: what each level of each channel becomes."""
    # Scaled in float64 and rounded, then normalised in float32, as upstream does.
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(x, np.float32)[:, None] for x in (settings.mean, settings.std))
    return (scaled[None] - mean) / std


def mrope_positions(
    input_ids: np.ndarray,
    grids: Sequence[Sequence[int]],
    *,
    image_token_id: int | None,
    merge_size: int = 2,
) -> tuple[np.ndarray, int]:
    """Positions of one sequence in time, height and width, and where the next token stands.

    Text moves all three axes by one. An image starts where the text before it ended; its tokens
    keep that time and count rows and columns from there. What follows an image starts at its
    longer side, not its token count.

    Args:
      input_ids: `[time]` int, without padding.
      grids: (frames, rows, columns) of patches, one an image, in order.
      image_token_id: None for a text model.
      merge_size: patches along each side of a token.

    Returns:
      `[3, time]` int32, and delta: a token at index n >= time has position n + delta.

    Raises:
      ValueError: image tokens and grids do not match.
    """
    is_image = np.asarray(input_ids) == image_token_id
    sides = [(rows // merge_size, columns // merge_size) for _, rows, columns in grids]
    expected, found = sum(rows * columns for rows, columns in sides), int(is_image.sum())
    if any(frames != 1 for frames, _, _ in grids) or expected != found:
        raise ValueError(
            f"found {found} image tokens for the grids {[tuple(g) for g in grids]}; expected "
            f"{expected}, and one frame an image"
        )
    # What a token adds to the position of the next; the tokens of an image add nothing but
    # the last, which adds the longer side.
    steps = np.ones(len(is_image), np.int32)
    (tokens,) = np.nonzero(is_image)
    steps[tokens] = 0
    lasts = np.cumsum([rows * columns for rows, columns in sides], dtype=np.int64) - 1
    steps[tokens[lasts]] = [max(side) for side in sides]
    ends = np.cumsum(steps, dtype=np.int32)
    positions = np.tile(ends - steps, (3, 1))
    first = 0
    for rows, columns in sides:
        where = tokens[first : first + rows * columns]
        if where[-1] - where[0] + 1 != len(where):
            raise ValueError(f"the tokens of an image of {rows} x {columns} do not stand together")
        start = positions[0, where[0]]
        positions[0, where] = start
        positions[1:, where] = start + np.indices((rows, columns), np.int32).reshape(2, -1)
        first += rows * columns
    return positions, int(ends[-1] if len(ends) else 0) - len(ends)


@dataclasses.dataclass(frozen=True, eq=False)
class Processor:
    """What a checkpoint says about text and images.

    Attributes:
      tokenizer: text <-> ids.
      image: how images become patches; None for a text model.
      image_token_id: stands for one merged patch; None for a text model.
      stop_ids: ids that end an assistant message, `<|im_end|>` first.
      pad_id: fills rows.
      control_ids: special tokens, and tokens that hold one, which a model must not sample; the
        stop ids are not among them.
    """

    tokenizer: tokenizers.Tokenizer
    image: ImageSettings | None
    image_token_id: int | None
    stop_ids: tuple[int, ...]
    pad_id: int
    control_ids: tuple[int, ...]

    def encode(self, texts: Sequence[str], grids: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        """`[time]` int32 ids of each rendered text; each image expanded to its merged patches.

        Args:
          texts: as `render_chat` and `render_continuation` give them. Equal ones are tokenized
            once.
          grids: for each text the grids of its images, in order.
        """
        distinct = list(dict.fromkeys(texts))
        encoded = self.tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
        ids = dict(zip(distinct, (np.array(e.ids, np.int32) for e in encoded), strict=True))
        return [self._expand(ids[text], own) for text, own in zip(texts, grids, strict=True)]

    def _expand(self, ids: np.ndarray, grids: Sequence[Any]) -> np.ndarray:
        (places,) = np.nonzero(ids == self.image_token_id)
        if len(places) != len(grids):
            raise ValueError(f"found {len(places)} images in the text, expected {len(grids)}")
        counts = np.ones(len(ids), np.int64)
        counts[places] = [self.image_tokens(grid) for grid in grids]
        return np.repeat(ids, counts)

    def image_tokens(self, grid: Sequence[int]) -> int:
        """Tokens of an image with this grid of patches."""
        return math.prod(grid) // self.image.merge_size**2

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids; nothing is left out."""
        return self.tokenizer.decode_batch(
            [list(map(int, ids)) for ids in sequences], skip_special_tokens=False
        )

    def positions(self, input_ids: np.ndarray, grids: Sequence[Any]) -> tuple[np.ndarray, int]:
        """`mrope_positions` with this checkpoint's ids; a text model counts on all axes."""
        merge_size = 1 if self.image is None else self.image.merge_size
        return mrope_positions(
            input_ids, grids, image_token_id=self.image_token_id, merge_size=merge_size
        )

    def banned(self, vocab_size: int) -> np.ndarray:
        """`[vocab_size]` bool, True for ids that must not be sampled: control and unused ones.

        Args:
          vocab_size: rows of the model's output embedding.
        """
        used = np.fromiter(self.tokenizer.get_vocab(with_added_tokens=True).values(), np.int64)
        if used.max() >= vocab_size:
            raise ValueError(
                f"the tokenizer has the id {used.max()}, but the model has {vocab_size} rows"
            )
        banned = np.ones(vocab_size, bool)
        banned[used] = False
        banned[list(self.control_ids)] = True
        return banned


def load_processor(path: str | os.PathLike) -> Processor:
    """Reads the processor of a checkpoint directory.

    Args:
      path: holds config.json and tokenizer.json; generation_config.json if the ids that end a
        message are not those of config.json; for a model with images preprocessor_config.json,
        or the processor_config.json that transformers 5 writes.

    Raises:
      ValueError: a file is missing or asks for something else than we do.
    """
    directory = pathlib.Path(path)
    config = _read_json(directory, "config.json")
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{directory}: found no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        # What the library raises for a damaged file is `Exception` itself.
        raise ValueError(f"{file}: cannot be read as a tokenizer ({error})") from error
    # Settings of whoever saved the file; rows are padded and limited elsewhere.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    needed = [START, END] + ([IMAGE] if "vision_config" in config else [])
    absent = [token for token in needed if tokenizer.token_to_id(token) is None]
    added = tokenizer.get_added_tokens_decoder()
    special = [token.content for token in added.values() if token.special]
    forgeable = [content for content in special if not _PROTOCOL.match(content)]
    if absent or forgeable:
        raise ValueError(
            f"{file}: not a tokenizer of Qwen3's kind; missing tokens: {absent}, control tokens "
            f"that page text could forge: {forgeable}"
        )
    sources = [_read_json(directory, "generation_config.json", required=False), config]
    sources.append(config.get("text_config", {}))
    eos = next((s["eos_token_id"] for s in sources if s.get("eos_token_id") is not None), ())
    end = tokenizer.token_to_id(END)
    stop_ids = tuple(dict.fromkeys([end, *(eos if isinstance(eos, list | tuple) else [eos])]))
    pad = next((s["pad_token_id"] for s in sources if s.get("pad_token_id") is not None), end)
    control = [
        number
        for number, token in added.items()
        if number not in stop_ids and any(text in token.content for text in special)
    ]
    image, image_token_id = None, None
    if "vision_config" in config:
        image, image_token_id = _image_settings(directory), tokenizer.token_to_id(IMAGE)
        if image_token_id != config["image_token_id"]:
            raise ValueError(
                f"{directory}: config.json has image_token_id {config['image_token_id']}, but "
                f"{IMAGE} is {image_token_id} in tokenizer.json"
            )
    return Processor(tokenizer, image, image_token_id, stop_ids, pad, tuple(sorted(control)))


def _read_json(directory: pathlib.Path, name: str, *, required: bool = True) -> dict[str, Any]:
    file = directory / name
    if not required and not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


# What `process_image` does; a checkpoint that says otherwise is refused. Absent means these.
_IMAGE_ASSUMED = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": PIL.Image.Resampling.BICUBIC.value,
    "rescale_factor": 1 / 255,
}


def _image_settings(directory: pathlib.Path) -> ImageSettings:
    source = _read_json(directory, "preprocessor_config.json", required=False)
    if not source:
        source = _read_json(directory, "processor_config.json", required=False)
        source = source.get("image_processor", {})
    size = source.get("size") or {}
    found = {
        "min_pixels": source.get("min_pixels") or size.get("shortest_edge"),
        "max_pixels": source.get("max_pixels") or size.get("longest_edge"),
        "mean": tuple(source.get("image_mean") or ()) or None,
        "std": tuple(source.get("image_std") or ()) or None,
    }
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        found[name] = source.get(name)
    problems = [f"{name} is missing" for name, value in found.items() if value is None]
    problems += [
        f"{name}: found {source[name]!r}, expected {value!r}"
        for name, value in _IMAGE_ASSUMED.items()
        if source.get(name, value) not in (value, None)
    ]
    if problems:
        raise ValueError(
            f"{directory}: preprocessor_config.json cannot be used:\n  " + "\n  ".join(problems)
        )
    return ImageSettings(**found)
