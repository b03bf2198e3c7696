"""config.json of Qwen3, Qwen3-VL and its MoE: read in either form, refused where we would compute
something else than it says.

Transformers 4, which the released checkpoints use, writes `rope_theta` and `rope_scaling`;
transformers 5 writes `rope_parameters`. Version 4 cannot read what version 5 wrote, so the
form that is kept, and saved again, is that of version 4.
"""

import copy
import dataclasses
from collections.abc import Mapping
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


_KINDS = ("qwen3", "qwen3_vl", "qwen3_vl_moe")

# What the code assumes; a checkpoint that says otherwise is refused. Absent means the value here.
_TEXT_ASSUMED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
}
_MOE_ASSUMED = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
_MOE_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
_VISION_ASSUMED = {"hidden_act": "gelu_pytorch_tanh"}


def _version_4(source: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings as transformers 4 writes them."""
    source = copy.deepcopy(dict(source))
    for text in (source, source.get("text_config", {})):
        rope = text.pop("rope_parameters", None)
        if rope is not None:
            text["rope_theta"] = rope.pop("rope_theta", None)
            text["rope_scaling"] = rope if "mrope_section" in rope or _rope_kind(rope) else None
        if "num_local_experts" in text:
            text["num_experts"] = text.pop("num_local_experts")
    if "vision_config" in source:
        source["vision_config"].pop("rope_parameters", None)
        source["vision_config"]["model_type"] = source["model_type"]
    return source


def _rope_kind(rope: Mapping[str, Any]) -> str | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    return None if kind == "default" else kind


def _fields(cls, section: Mapping[str, Any], where: str, problems: list[str], **given):
    """The values of a config class out of a section; what is absent is noted."""
    names = [f.name for f in dataclasses.fields(cls) if f.name not in given]
    problems += [f"{where}{name} is missing" for name in names if section.get(name) is None]
    return cls(**{name: section.get(name) for name in names}, **given)


def parse_config(source: Mapping[str, Any]) -> Config:
    """Reads a decoded config.json; everything that is wrong with it is in one ValueError."""
    kind = source.get("model_type")
    if kind not in _KINDS:
        raise ValueError(f"model_type: found {kind!r}, expected one of {_KINDS}")
    given_vision = source.get("vision_config", {})
    problems: list[str] = []
    for part, names in (
        ("text_config", (f"{kind}_text",)),
        ("vision_config", (kind, f"{kind}_vision")),
    ):
        found = source.get(part, {}).get("model_type", names[0])
        if found not in names:
            problems.append(f"{part}.model_type: found {found!r}, expected {names[0]!r}")
    source = _version_4(source)
    text = source if kind == "qwen3" else source.get("text_config", {})
    where = "" if kind == "qwen3" else "text_config."
    if "quantization_config" in source:
        problems.append("quantization_config: quantised weights are not read")

    def check(section, where, assumed):
        for name, value in assumed.items():
            if section.get(name, value) != value:
                problems.append(f"{where}{name}: found {section[name]!r}, expected {value!r}")

    check(text, where, _TEXT_ASSUMED)
    if set(text.get("layer_types") or ()) - {"full_attention"}:
        problems.append(f"{where}layer_types: found {text['layer_types']}, expected full_attention")
    rope = text.get("rope_scaling") or {}
    if _rope_kind(rope):
        problems.append(f"{where}rope_scaling: found type {_rope_kind(rope)!r}, expected 'default'")
    section = None
    if kind == "qwen3" and "mrope_section" in rope:
        problems.append(f"rope_scaling: found {rope}, expected no mrope_section in a text model")
    if kind != "qwen3":
        section = tuple(rope.get("mrope_section", ()))
        if rope.get("mrope_interleaved") is not True or len(section) != 3:
            problems.append(
                f"{where}rope_scaling: found {rope}, expected mrope_interleaved true and three "
                "numbers in mrope_section"
            )
    given = {"mrope_section": section}
    if kind == "qwen3_vl_moe":
        check(text, where, _MOE_ASSUMED)
    else:
        given |= dict.fromkeys(_MOE_FIELDS)
    text_config = _fields(TextConfig, text, where, problems, **given)
    vision_config = None
    if kind != "qwen3":
        vision = source.get("vision_config", {})
        check(vision, "vision_config.", _VISION_ASSUMED)
        theta = (given_vision.get("rope_parameters") or {}).get("rope_theta", 1e4)
        if theta != 1e4:
            problems.append(
                f"vision_config.rope_parameters: found rope_theta {theta}, expected 1e4"
            )
        taps = tuple(vision.get("deepstack_visual_indexes") or ())
        vision_config = _fields(
            VisionConfig, vision, "vision_config.", problems, deepstack_visual_indexes=taps
        )
        if source.get("image_token_id") is None:
            problems.append("image_token_id is missing")
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
