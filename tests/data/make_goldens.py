"""Writes the goldens of the model tests: tiny checkpoints and what HF transformers makes of them.

    pip install torch==2.13.0 transformers==5.24.0
    python tests/data/make_goldens.py [names]

Every tensor is random at a scale at which leaving one out moves the logits by more than any
tolerance; the values depend on the tensor's name only. The forward passes run in float32 with
eager attention on CPU.
"""

import json
import pathlib
import sys
import zlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).parent
PAD, EOS, START, END, IMAGE = 190, 191, 192, 193, 194
TEXT = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "bos_token_id": PAD,
    "eos_token_id": EOS,
}
VISION = {
    "depth": 4,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [1, 2],
    "hidden_act": "gelu_pytorch_tanh",
    "model_type": "qwen3_vl",
}
ROPE = {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}
CONFIGS = {
    "tiny_qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "tie_word_embeddings": True,
        "rope_theta": 12345.0,
        "rope_scaling": None,
        "dtype": "float32",
        **TEXT,
        "rms_norm_eps": 1e-2,
    },
    "tiny_qwen3_vl": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "image_token_id": IMAGE,
        "video_token_id": 195,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "dtype": "float32",
        "text_config": {
            "model_type": "qwen3_vl_text",
            "rope_theta": 5e6,
            "rope_scaling": ROPE,
            **TEXT,
        },
        "vision_config": VISION,
    },
}
CONFIGS["tiny_qwen3_vl_moe"] = {
    **CONFIGS["tiny_qwen3_vl"],
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": {
        **CONFIGS["tiny_qwen3_vl"]["text_config"],
        "model_type": "qwen3_vl_moe_text",
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "vision_config": {
        **VISION,
        "model_type": "qwen3_vl_moe",
        "depth": 2,
        "hidden_size": 8,
        "out_hidden_size": 24,
        "deepstack_visual_indexes": [0],
    },
}
GRADIENTS = {
    "tiny_qwen3": (
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.2.mlp.down_proj.weight",
    ),
    "tiny_qwen3_vl": (
        "lm_head.weight",
        "model.language_model.layers.1.self_attn.q_proj.weight",
        "model.visual.patch_embed.proj.weight",
        "model.visual.pos_embed.weight",
        "model.visual.blocks.0.attn.qkv.bias",
        "model.visual.deepstack_merger_list.1.linear_fc1.weight",
        "model.visual.merger.norm.weight",
    ),
    # Of the experts, what the tests turn round from the layout of transformers 5.
    "tiny_qwen3_vl_moe": (
        "model.language_model.layers.1.mlp.gate.weight",
        "model.language_model.layers.0.mlp.experts.gate_up_proj",
        "model.language_model.layers.1.mlp.experts.down_proj",
    ),
}


def random_tensor(name, shape):
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("bias"):
        noise = 0.3 * noise
    elif len(shape) == 1:
        noise = 1 + 0.3 * noise
    elif "embed_tokens" in name or "pos_embed" in name or "lm_head" in name:
        noise = 0.5 * noise
    else:
        noise = 1.2 * noise / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(noise.astype(np.float32))


def make_model(name):
    """Writes the checkpoint, then lets transformers load it as it would any other."""
    source = CONFIGS[name]
    directory = DATA / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(source, indent=2) + "\n")
    kind = getattr(transformers, source["architectures"][0])
    config = transformers.AutoConfig.from_pretrained(directory)
    shapes = {key: tuple(p.shape) for key, p in kind(config).named_parameters()}
    tensors = {key: random_tensor(key, shape) for key, shape in shapes.items()}
    for key in tensors:
        # As released: transformers 5 holds the experts with outputs first, and turns them round.
        if ".experts." in key:
            tensors[key] = tensors[key].transpose(1, 2).contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return kind.from_pretrained(directory, attn_implementation="eager").eval()


def rows(text_only):
    """Token ids of three conversations, and the image grids that they show."""
    rng = np.random.default_rng(7)

    def words(count):
        return rng.integers(0, 180, count).tolist()

    if text_only:
        return [words(11), words(4), words(8)], np.zeros((0, 3), np.int64)
    grids = np.array([[1, 4, 6], [1, 6, 4], [1, 4, 14]])
    shown = [[START] + [IMAGE] * int(grid.prod() // 4) + [END] for grid in grids]
    conversations = [
        words(3) + shown[0] + words(2) + shown[1] + words(4),
        words(5),
        shown[2] + words(3),
    ]
    return conversations, grids


def padded(conversations, side):
    time = max(map(len, conversations))
    ids, mask = np.full((len(conversations), time), PAD), np.zeros((len(conversations), time), int)
    for row, tokens in enumerate(conversations):
        place = slice(time - len(tokens), None) if side == "left" else slice(len(tokens))
        ids[row, place], mask[row, place] = tokens, 1
    return ids, mask


def golden(name):
    model = make_model(name)
    text_only = model.config.model_type == "qwen3"
    conversations, grids = rows(text_only)
    out = {}
    images = {}
    if not text_only:
        rng = np.random.default_rng(8)
        # Halves, so that the file compresses; their size is that of normalised pixels.
        pixels = rng.integers(-2, 3, (int(grids.prod(axis=1).sum()), 96)) / 2
        out["pixel_values"], out["image_grid_thw"] = pixels.astype(np.float16), grids
        images = {
            "pixel_values": torch.from_numpy(pixels.astype(np.float32)),
            "image_grid_thw": torch.from_numpy(grids),
        }
        with torch.no_grad():
            features = model.model.visual(images["pixel_values"], images["image_grid_thw"])
        out["merged"] = features.pooler_output.numpy()
        out["deepstack"] = torch.stack(features.deepstack_features).numpy()
    for side in ("right", "left"):
        ids, mask = padded(conversations, side)
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        inputs |= images
        if not text_only:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
            positions, _ = model.model.get_rope_index(
                inputs["input_ids"],
                inputs["mm_token_type_ids"],
                images["image_grid_thw"],
                attention_mask=inputs["attention_mask"],
            )
            out[f"{side}.position_ids"] = positions.numpy()
            model.model.rope_deltas = None
        logits = model(**inputs, use_cache=False).logits
        out[f"{side}.input_ids"], out[f"{side}.attention_mask"] = ids, mask
        if side == "right":
            log_probs = torch.log_softmax(logits[:, :-1], -1)
            log_probs = log_probs.gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
            trained = inputs["attention_mask"][:, 1:] * (inputs["input_ids"][:, 1:] != IMAGE)
            loss = -(log_probs * trained).sum() / trained.sum()
            named = dict(model.named_parameters())
            gradients = torch.autograd.grad(loss, [named[key] for key in GRADIENTS[name]])
            out["logits"], out["loss"] = logits.detach().numpy(), loss.item()
            out |= {f"grad.{k}": g.numpy() for k, g in zip(GRADIENTS[name], gradients, strict=True)}
        else:
            model.generation_config.eos_token_id = None
            with torch.no_grad():
                sequences = model.generate(
                    **inputs, max_new_tokens=12, do_sample=False, pad_token_id=PAD
                )
            out["greedy"] = sequences[:, ids.shape[1] :].numpy()
    np.savez_compressed(DATA / f"{name}.npz", **out)


if __name__ == "__main__":
    for checkpoint in sys.argv[1:] or CONFIGS:
        golden(checkpoint)
