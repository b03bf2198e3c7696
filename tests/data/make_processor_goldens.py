"""Writes a tiny processor and what HF transformers makes of some images.

    pip install transformers==5.24.0
    python tests/data/make_processor_goldens.py

The processor belongs to a model like `tiny_qwen3_vl`, but with rows for all bytes. The images
are small files in all modes that pages come in; of their patches, the grid and a hash of the
float32 values are kept.
"""

import hashlib
import io
import json
import pathlib

import numpy as np
import PIL.Image
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

DATA = pathlib.Path(__file__).parent
FOLDER = DATA / "tiny_processor"
NAMES = (
    "endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad",
)  # fmt: skip
# Of the model; the last ones have no token.
ROWS = 304
MARKS = ("<tool_call>", "</tool_call>")
TEXT = [
    "Question: What is the width of Avon?\nWorking memory:\n(empty)",
    '{"name": "search_pages", "arguments": {"query": "the width of Avon"}}',
    "You answer a question about one long document by looking at its pages.",
    "user system assistant Page 7: [page 7] Not answerable",
]
# Qwen2's rule: words with the space before them, single digits, runs of signs, line ends.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PREPROCESSOR = {
    "size": {"shortest_edge": 64, "longest_edge": 1024},
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
# As the released checkpoints have it, but for the area; a mean and a spread that differ by
# channel show which is which.
IMAGES = {
    **PREPROCESSOR,
    "size": {"shortest_edge": 4096, "longest_edge": 16384},
    "patch_size": 16,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}


def make_tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    for texts, special in ((map("<|{}|>".format, NAMES), True), (MARKS, False)):
        tokenizer.add_tokens(
            [tokenizers.AddedToken(text, special=special, normalized=False) for text in texts]
        )
    return tokenizer


def make_images() -> dict[str, PIL.Image.Image]:
    def pixels(height, width, channels=3):
        row, column = np.mgrid[:height, :width]
        planes = [row * (k + 2) + column * (5 - k) + (row // 7 + column // 5) % 2 * 60
                  for k in range(channels)]  # fmt: skip
        return (np.stack(planes, axis=-1) % 256).astype(np.uint8)

    def image(height, width, mode, channels=3):
        array = pixels(height, width, channels)
        return PIL.Image.fromarray(array if channels > 1 else array[:, :, 0]).convert(mode)

    clear = image(70, 60, "RGB").quantize(9)
    clear.info["transparency"] = 3
    return {
        # 80 rounds to 64 and 112 to 128: halves go to even.
        "bankers": image(80, 112, "RGB"),
        "unchanged": image(64, 96, "RGB"),
        "grown": image(20, 30, "RGB"),
        "shrunk": image(200, 170, "RGB"),
        "thin": image(3, 500, "RGB"),
        "transparent": image(60, 70, "RGBA", 4),
        "gray": image(70, 70, "L", 1),
        "gray_transparent": image(70, 90, "LA", 4),
        "one_bit": image(90, 66, "1", 1),
        "palette": image(66, 90, "RGB").quantize(16),
        "palette_transparent": clear,
        "inks": image(70, 60, "CMYK"),
    }


def encoded(image: PIL.Image.Image) -> bytes:
    file = io.BytesIO()
    if image.mode == "CMYK":
        image.save(file, "TIFF", compression="tiff_lzw")
    else:
        image.save(file, "PNG", optimize=True)
    return file.getvalue()


def main():
    FOLDER.mkdir(exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    config = json.loads((DATA / "tiny_qwen3_vl" / "config.json").read_text())
    ids = {name: tokenizer.token_to_id(f"<|{name}|>") for name in NAMES}
    config |= {
        "image_token_id": ids["image_pad"],
        "video_token_id": ids["video_pad"],
        "vision_start_token_id": ids["vision_start"],
        "vision_end_token_id": ids["vision_end"],
    }
    config["text_config"] |= {
        "vocab_size": ROWS,
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
    }
    generation = {
        "eos_token_id": [ids["im_end"], ids["endoftext"]],
        "pad_token_id": ids["endoftext"],
    }
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("preprocessor_config.json", PREPROCESSOR),
    ):
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")
    theirs = Qwen2VLImageProcessorPil(**IMAGES)
    golden = {"settings": json.dumps(IMAGES)}
    for name, image in make_images().items():
        golden[f"{name}.file"] = np.frombuffer(encoded(image), np.uint8)
        reread = PIL.Image.open(io.BytesIO(golden[f"{name}.file"].tobytes()))
        result = theirs([reread], return_tensors="np")
        golden[f"{name}.grid"] = result["image_grid_thw"][0]
        patches = np.ascontiguousarray(result["pixel_values"], np.float32)
        golden[f"{name}.sha256"] = hashlib.sha256(patches.tobytes()).hexdigest()
    np.savez_compressed(DATA / "processor_images.npz", **golden)


if __name__ == "__main__":
    main()
