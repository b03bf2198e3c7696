"""Do checkpoints written here load in HF transformers, of whatever version?

    export.py write FOLDER    # in this project's environment
    export.py read FOLDER     # in any with torch and transformers; prints one JSON object

The checkpoints are the committed tiny ones, as released and in the form of transformers 5
(experts with their outputs first, `rope_parameters`, a tied model that says so in one place only).
Their tensors are compared bit for bit with those that were read, logits with ours.
"""

import copy
import json
import pathlib
import sys

import numpy as np

DATA = pathlib.Path("tests/data")
NAMES = ("tiny_qwen3", "tiny_qwen3_vl", "tiny_qwen3_vl_moe")
IMAGE = 194


def version_5(source, tensors, *, tied):
    """A checkpoint as transformers 5 writes it."""
    source = copy.deepcopy(source)
    text = source.get("text_config", source)
    rope = text.pop("rope_scaling") or {"rope_type": "default"}
    text["rope_parameters"] = rope | {"rope_theta": text.pop("rope_theta")}
    if "num_experts" in text:
        text["num_local_experts"] = text.pop("num_experts")
        # The default of its class, which it does not read.
        text["tie_word_embeddings"] = True
    if tied:
        source["tie_word_embeddings"] = True
        tensors = {name: x for name, x in tensors.items() if name != "lm_head.weight"}
    return source, {
        name: np.ascontiguousarray(x.swapaxes(1, 2)) if ".experts." in name else x
        for name, x in tensors.items()
    }


def cases():
    """Name, the golden's name, config and tensors of what is loaded and written again."""
    from safetensors.numpy import load_file

    for name in NAMES:
        source = json.loads((DATA / name / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(DATA / name / "model.safetensors")
        yield name, name, source, tensors
        yield f"{name}_of_version_5", name, *version_5(source, tensors, tied=False)
        if name == "tiny_qwen3_vl":
            yield f"{name}_tied_of_version_5", name, *version_5(source, tensors, tied=True)


def write(folder):
    import jax
    import jax.numpy as jnp
    from safetensors.numpy import save_file

    from awm_jax.models import hf

    for name, golden_name, source, tensors in cases():
        given = folder / name / "given"
        given.mkdir(parents=True)
        (given / "config.json").write_text(json.dumps(source), encoding="utf-8")
        save_file(tensors, given / "model.safetensors")
        model = hf.load_model(given, dtype="float32")
        hf.save_model(model, model.params, folder / name / "written", shard_bytes=20_000)
        golden = dict(np.load(DATA / f"{golden_name}.npz"))
        inputs = {"attention_mask": golden["right.attention_mask"]}
        if "pixel_values" in golden:
            inputs["image_grid_thw"] = golden["image_grid_thw"]
            inputs["pixel_values"] = golden["pixel_values"].astype(np.float32)
        ids = golden["right.input_ids"]
        with jax.default_matmul_precision("highest"):
            logits = model.apply(model.params, jnp.asarray(ids, jnp.int32), **inputs)
        np.savez(folder / name / "inputs.npz", input_ids=ids, **inputs)
        np.save(folder / name / "logits.npy", logits)


def read(folder):
    import torch
    import transformers
    from safetensors.numpy import load_file

    results = {}
    for case in sorted(folder.iterdir()):
        source = json.loads((case / "written" / "config.json").read_text(encoding="utf-8"))
        kind = getattr(transformers, source["architectures"][0])
        model, found = kind.from_pretrained(
            case / "written",
            output_loading_info=True,
            dtype=torch.float32,
            attn_implementation="eager",
        )
        given, state = load_file(case / "given" / "model.safetensors"), model.state_dict()
        unlike = []
        for name, tensor in given.items():
            theirs = state[name].numpy()
            if ".experts." in name and theirs.shape != tensor.shape:
                theirs = theirs.swapaxes(1, 2)
            if not np.array_equal(theirs, tensor):
                unlike.append(name)
        inputs = {k: torch.from_numpy(v) for k, v in np.load(case / "inputs.npz").items()}
        real = inputs["attention_mask"].numpy() != 0
        if "pixel_values" in inputs and transformers.__version__ >= "5":
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
        with torch.no_grad():
            logits = model.eval()(**inputs, use_cache=False).logits.numpy()
        results[case.name] = {
            "missing": sorted(found["missing_keys"]),
            "unexpected": sorted(found["unexpected_keys"]),
            "mismatched": sorted(found["mismatched_keys"]),
            "tensors": len(given),
            "tensors_unlike_the_given": unlike,
            "largest_logit_difference": float(
                np.abs(logits - np.load(case / "logits.npy"))[real].max()
            ),
        }
    report = {"transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps(report | {"checkpoints": results}, indent=1))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](pathlib.Path(sys.argv[2]))
