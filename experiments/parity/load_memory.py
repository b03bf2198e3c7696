"""Peak memory of loading a checkpoint, beside what lands. Prints one JSON object.

The checkpoint is made first: a Qwen3 whose largest tensor, its token embedding, is a sixth of all.
It is loaded in a fresh process, whose memory is looked at every two milliseconds. What counts is
memory of its own (RssAnon): pages of the mapped file are the system's cache.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import jax

from awm_jax.models import config, hf

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64_000,
    "hidden_size": 1_024,
    "intermediate_size": 4_096,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 4_096,
    "tie_word_embeddings": True,
}
MIB = 2**20


def own_memory() -> int:
    """Bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


def load(folder):
    """In a process of its own: MiB before, at the peak, and what landed."""
    jax.devices()
    before = peak = own_memory()
    done = threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = hf.load_model(folder, dtype="bfloat16")
    jax.block_until_ready(model.params)
    done.set()
    watcher.join()
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(model.params)]
    embedding = SHAPE["vocab_size"] * SHAPE["hidden_size"] * 2
    return {
        "before_mib": before / MIB,
        "peak_mib": peak / MIB,
        "lands_mib": sum(sizes) / MIB,
        "largest_tensor_of_the_file_mib": embedding / MIB,
        "largest_array_mib": max(sizes) / MIB,
        "above_what_lands_mib": (peak - before - sum(sizes)) / MIB,
        "above_what_lands_in_largest_tensors": (peak - before - sum(sizes)) / embedding,
    }


def main():
    if len(sys.argv) > 1:
        print(json.dumps(load(sys.argv[1]), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = hf.init_model(config.parse_config(SHAPE), jax.random.key(0), dtype="bfloat16")
        hf.save_model(model, model.params, folder, shard_bytes=200 * MIB)
        pathlib.Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        subprocess.run([sys.executable, __file__, folder], check=True)


if __name__ == "__main__":
    main()
