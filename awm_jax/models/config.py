"""config.json of Qwen3, Qwen3-VL and its MoE: read in either form, refused where we would compute
something else than it says.

Transformers 4, which the released checkpoints use, writes `rope_theta` and `rope_scaling`;
transformers 5 writes `rope_parameters`. Version 4 cannot read what version 5 wrote, so the
form that is kept, and saved again, is that of version 4.
"""

import copy
import dataclasses
from collections.abc import Mapping, Set
from typing import Any


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The decoder's shape, under HF's names.

    `mrope_section` says how many frequencies turn with time, height and width; None for a text
    model, whose positions have one axis. What follows it is None unless the feed-forward layers
    are mixtures of experts.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int] | None
    num_experts: int | None
    num_experts_per_tok: int | None
    moe_intermediate_size: int | None


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """The vision tower's shape, under HF's names."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]

    @property
    def patch_features(self) -> int:
        """Numbers in one row of `pixel_values`."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclasses.dataclass(frozen=True)
class Config:
    """A model's shape.

    Attributes:
      text: the decoder.
      vision: the vision tower; None for a text model.
      image_token_id: the id that stands for an image token; None for a text model.
      tie_word_embeddings: whether the head is the token embedding.
      source: the whole config.json, in the form of transformers 4; what gets saved.
    """

    text: TextConfig
    vision: VisionConfig | None
    image_token_id: int | None
    tie_word_embeddings: bool
    source: Mapping[str, Any] = dataclasses.field(compare=False, repr=False)


# By model type.
_ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
}

# What the code assumes; a checkpoint that says otherwise is refused. Absent means the value here.
_ASSUMED = {
    "add_cross_attention": False,
    "architectures": None,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization": None,
    "quantization_config": None,
    "tie_encoder_decoder": False,
}
_TEXT_ASSUMED = _ASSUMED | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "partial_rotary_factor": 1.0,
    "use_sliding_window": False,
}
_MOE_ASSUMED = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "output_router_logits": False,
}
_MOE_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
_VISION_ASSUMED = _ASSUMED | {"hidden_act": "gelu_pytorch_tanh"}

# Nothing that is computed from ids and pixels depends on these: names and notes, types, how a
# fresh model is drawn, the layer behind which a window would slide, what a tokenizer, a sampler
# or HF's own classes read.
_FREE = {
    "_attn_implementation_autoset", "_name_or_path", "dtype", "initializer_range",
    "max_window_layers", "torch_dtype", "transformers_version", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "pad_token_id", "sep_token_id", "video_token_id",
    "vision_end_token_id", "vision_start_token_id",
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "id2label", "label2id", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "router_aux_loss_coef", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torchscript", "typical_p",
}  # fmt: skip
# Read of the model and of its parts, beside the fields of the classes above.
_TOP = ("model_type", "tie_word_embeddings")


def parse_config(source: Mapping[str, Any]) -> Config:
    """Reads a decoded config.json; everything that is wrong with it is in one ValueError.

    Every field is read, or has to have the value that the code assumes, or is known to say
    nothing about what is computed; one that is none of these is refused by its name.
    """
    kind = source.get("model_type")
    if kind not in _ARCHITECTURES:
        raise ValueError(f"model_type: found {kind!r}, expected one of {[*_ARCHITECTURES]}")
    problems: list[str] = []
    vision_config = None if kind == "qwen3" else _vision(source, kind, problems)
    source = _version_4(source, problems)
    found = source.get("architectures")
    if found not in (None, [_ARCHITECTURES[kind]]):
        problems.append(f"architectures: found {found}, expected {[_ARCHITECTURES[kind]]}")
    top = {name: value for name, value in source.items() if name != "architectures"}
    if kind == "qwen3":
        text, where = top, ""
    else:
        text, where = source.get("text_config", {}), "text_config."
        known = {"image_token_id", "text_config", "vision_config", *_TOP} | _FREE
        _check(top, "", known, _ASSUMED, problems)
        if source.get("image_token_id") is None:
            problems.append("image_token_id is missing")
    text_config = _text(text, where, kind, problems)
    ties = [part["tie_word_embeddings"] for part in (source, text) if "tie_word_embeddings" in part]
    if len(set(ties)) > 1:
        problems.append(
            f"tie_word_embeddings: found {ties[0]} for the model and {ties[1]} in {where}, "
            "expected the same"
        )
    problems = problems or _disagreements(text_config, vision_config)
    if problems:
        raise ValueError("config.json cannot be used:\n  " + "\n  ".join(problems))
    return Config(
        text=text_config,
        vision=vision_config,
        image_token_id=source["image_token_id"] if kind != "qwen3" else None,
        tie_word_embeddings=bool(ties and ties[0]),
        source=source,
    )


def _text(text: Mapping[str, Any], where: str, kind: str, problems: list[str]) -> TextConfig:
    """The decoder's section, as version 4 writes it."""
    rope = text.get("rope_scaling") or {}
    given = {"mrope_section": None if kind == "qwen3" else tuple(rope.get("mrope_section") or ())}
    assumed = _TEXT_ASSUMED
    if kind == "qwen3_vl_moe":
        assumed |= _MOE_ASSUMED
    else:
        given |= dict.fromkeys(_MOE_FIELDS)
    known = {"layer_types", "rope_scaling", "sliding_window", *_TOP}
    config = _fields(TextConfig, text, where, known, assumed, problems, **given)
    found = text.get("model_type", f"{kind}_text")
    if where and found != f"{kind}_text":
        problems.append(f"{where}model_type: found {found!r}, expected '{kind}_text'")
    if text.get("sliding_window") is not None and text.get("use_sliding_window") is not False:
        problems.append(
            f"{where}sliding_window: found {text['sliding_window']}, expected none or "
            "use_sliding_window false"
        )
    full = ["full_attention"] * (config.num_hidden_layers or 0)
    if text.get("layer_types") not in (None, full):
        problems.append(
            f"{where}layer_types: found {text['layer_types']}, expected {len(full)} full_attention"
        )
    where += "rope_scaling"
    if kinds := _rope_kinds(rope):
        problems.append(f"{where}: found type {', '.join(kinds)!r}, expected 'default'")
        return config
    axes = {"mrope_interleaved", "mrope_section"} if kind != "qwen3" else set()
    _check(
        rope, f"{where}.", {"rope_type", "type"} | axes, {"partial_rotary_factor": 1.0}, problems
    )
    if axes and not (rope.get("mrope_interleaved") is True and len(config.mrope_section) == 3):
        problems.append(
            f"{where}: found {rope}, expected mrope_interleaved true and three numbers in "
            "mrope_section"
        )
    return config


def _vision(source: Mapping[str, Any], kind: str, problems: list[str]) -> VisionConfig:
    """The vision tower's section, of either version."""
    vision, where = source.get("vision_config", {}), "vision_config."
    found = vision.get("model_type", kind)
    if found not in (kind, f"{kind}_vision"):
        problems.append(f"{where}model_type: found {found!r}, expected {kind!r}")
    rope = vision.get("rope_parameters") or {}
    assumed = {"partial_rotary_factor": 1.0, "rope_theta": 1e4}
    _check(rope, f"{where}rope_parameters.", {"rope_type", "type"}, assumed, problems)
    if kinds := _rope_kinds(rope) - {"axial"}:
        problems.append(
            f"{where}rope_parameters: found type {', '.join(kinds)!r}, expected 'axial'"
        )
    taps = tuple(vision.get("deepstack_visual_indexes") or ())
    return _fields(
        VisionConfig,
        vision,
        where,
        {"deepstack_visual_indexes", "rope_parameters", *_TOP},
        _VISION_ASSUMED,
        problems,
        deepstack_visual_indexes=taps,
    )


def _fields(cls, section, where, known, assumed, problems: list[str], **given):
    """The values of a config class out of a section; what is absent or strange is noted."""
    names = {f.name for f in dataclasses.fields(cls)} - given.keys()
    problems += [f"{where}{n} is missing" for n in sorted(names) if section.get(n) is None]
    _check(section, where, names | known | _FREE, assumed, problems)
    return cls(**{name: section.get(name) for name in names}, **given)


def _check(section, where: str, known: Set[str], assumed: Mapping, problems: list[str]):
    """Notes what has another value than is assumed, and what nobody here knows."""
    for name, value in section.items():
        if name in assumed:
            if value != assumed[name]:
                problems.append(f"{where}{name}: found {value!r}, expected {assumed[name]!r}")
        elif name not in known:
            problems.append(f"{where}{name}: found {value!r}, and nothing here knows the field")


def _version_4(source: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The same settings as transformers 4 writes them."""
    source = copy.deepcopy(dict(source))
    text = source if source["model_type"] == "qwen3" else source.get("text_config", {})

    def rename(old, new, value):
        """Version 5's name for a value that may be there under version 4's, too."""
        if text.get(new) is None:
            text[new] = value
        elif text[new] != value:
            problems.append(f"{old} says {value} and {new} {text[new]}, expected the same")

    rope = text.pop("rope_parameters", None)
    if rope is not None:
        rename("rope_parameters", "rope_theta", rope.pop("rope_theta", None))
        plain = rope.keys() <= {"rope_type", "type"} and not _rope_kinds(rope)
        rename("rope_parameters", "rope_scaling", None if plain else rope)
    if "num_local_experts" in text:
        rename("num_local_experts", "num_experts", text.pop("num_local_experts"))
    tied = source.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    if rope is not None and "tie_word_embeddings" in text:
        # Version 5 reads the model's flag; the text's is what its class has by default.
        text["tie_word_embeddings"] = tied
    if tied:
        # Version 4 reads the text's.
        source.setdefault("tie_word_embeddings", True)
        text.setdefault("tie_word_embeddings", True)
    if "vision_config" in source:
        source["vision_config"].pop("rope_parameters", None)
        source["vision_config"]["model_type"] = source["model_type"]
    return source


def _rope_kinds(rope: Mapping[str, Any]) -> Set[str]:
    return {rope.get("rope_type"), rope.get("type")} - {None, "default"}


def _disagreements(text: TextConfig, vision: VisionConfig | None) -> list[str]:
    """What two fields say that cannot both be true."""
    problems = []
    if text.num_attention_heads % text.num_key_value_heads:
        problems.append(
            f"num_attention_heads {text.num_attention_heads} does not divide by "
            f"num_key_value_heads {text.num_key_value_heads}"
        )
    if text.mrope_section is not None and sum(text.mrope_section) != text.head_dim // 2:
        problems.append(
            f"mrope_section: found {text.mrope_section}, expected a sum of {text.head_dim // 2}, "
            "half of head_dim"
        )
    if vision is None:
        return problems
    if vision.out_hidden_size != text.hidden_size:
        problems.append(
            f"vision_config.out_hidden_size: found {vision.out_hidden_size}, expected the text's "
            f"hidden_size {text.hidden_size}"
        )
    if vision.hidden_size % (4 * vision.num_heads):
        problems.append(
            f"vision_config.hidden_size: found {vision.hidden_size}, expected {vision.num_heads} "
            "heads of a size that divides by 4"
        )
    if int(vision.num_position_embeddings**0.5) ** 2 != vision.num_position_embeddings:
        problems.append(
            f"vision_config.num_position_embeddings: found {vision.num_position_embeddings}, "
            "expected a square"
        )
    taps = vision.deepstack_visual_indexes
    if (
        not 0 < len(taps) <= text.num_hidden_layers
        or list(taps) != sorted(set(taps))
        or not all(0 <= tap < vision.depth for tap in taps)
    ):
        problems.append(
            f"vision_config.deepstack_visual_indexes: found {taps}, expected ascending blocks "
            f"of {vision.depth}, 1 to {text.num_hidden_layers} of them"
        )
    return problems
