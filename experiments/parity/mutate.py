"""Breaks the port in the ways in which ports of Qwen3-VL go wrong, and looks which test notices.

Each mutation replaces one piece of the source in a copy of the package. The copy then runs the
parity tests until one fails, and computes the logits of the committed golden batch (three
conversations with images, right-padded), to say how far they moved. Prints one JSON object.

    python experiments/parity/mutate.py [--only TEXT]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
# Those that compare with transformers; the first that fails ends a run.
TESTS = (
    "processor_test.py",
    "qwen3_vl_test.py",
    "qwen3_test.py",
    "layers_test.py",
    "attention_test.py",
    "hf_test.py",
)


class Mutation(NamedTuple):
    """One way to be wrong.

    Attributes:
      name: what is wrong.
      file: under awm_jax/models.
      before: what stands there, once.
      after: what takes its place.
    """

    name: str
    file: str
    before: str
    after: str


MUTATIONS = (
    Mutation(
        "rope: sections one after another instead of interleaved",
        "qwen3.py",
        "axis[number : 3 * count : 3] = number",
        "axis[sum(c.mrope_section[:number]) : sum(c.mrope_section[: number + 1])] = number",
    ),
    Mutation(
        "rope: one-dimensional positions on all three axes",
        "processor.py",
        "return positions, int(ends[-1] if len(ends) else 0) - len(ends)",
        "return np.tile(np.arange(len(ends), dtype=np.int32), (3, 1)), 0",
    ),
    Mutation(
        "rope: height and width swapped",
        "qwen3.py",
        "angles = rotary_angles(position_ids, self.config)",
        "angles = rotary_angles(position_ids[jnp.array([0, 2, 1])[: len(position_ids)]], "
        "self.config)",
    ),
    Mutation(
        "rope: text behind an image starts at its token count instead of its longer side",
        "processor.py",
        "steps[tokens[lasts]] = [max(side) for side in sides]",
        "steps[tokens[lasts]] = [rows * columns for rows, columns in sides]",
    ),
    Mutation(
        "rope: padding on the left counts",
        "qwen3_vl.py",
        '    if waiting:\n        raise ValueError(f"found no image',
        "    positions += np.argmax(segments != 0, axis=1)[None, :, None].astype(np.int32)\n"
        '    if waiting:\n        raise ValueError(f"found no image',
    ),
    Mutation(
        "attention sees padding",
        "attention.py",
        "Visibility(causal & same & (segment_ids != 0)[:, None, :], None, segment_ids)",
        "Visibility(causal | (same & False), None, segment_ids)",
    ),
    Mutation(
        "DeepStack dropped",
        "qwen3_vl.py",
        "layer < taps, add_tap",
        "layer < 0, add_tap",
    ),
    Mutation(
        "DeepStack one layer late",
        "qwen3_vl.py",
        "return jax.lax.cond(layer < taps, add_tap, lambda hidden, _: hidden, hidden, layer)",
        "return jax.lax.cond((layer > 0) & (layer <= taps), add_tap, lambda hidden, _: hidden, "
        "hidden, layer - 1)",
    ),
    Mutation(
        "DeepStack's taps in reverse order",
        "qwen3_vl.py",
        "(features.deepstack, layer, keepdims=False)",
        "(features.deepstack, taps - 1 - layer, keepdims=False)",
    ),
    Mutation(
        "DeepStack taps one vision block early",
        "qwen3_vl.py",
        "places[list(v.deepstack_visual_indexes)] = np.arange(taps)",
        "places[[index - 1 for index in v.deepstack_visual_indexes]] = np.arange(taps)",
    ),
    Mutation(
        "vision: patches attend to padding and to other images' places",
        "qwen3_vl.py",
        "mask = jnp.asarray(layout.valid)[:, None, :]",
        "mask = jnp.ones_like(jnp.asarray(layout.valid))[:, None, :]",
    ),
    Mutation(
        "vision: rope in raster order of the patches",
        "qwen3_vl.py",
        "layout.places[frame, :length] = np.stack([row, column], axis=-1)",
        "layout.places[frame, :length] = np.stack(np.divmod(np.arange(length), columns), axis=-1)",
    ),
    Mutation(
        "vision: rope with rows and columns swapped",
        "qwen3_vl.py",
        "layout.places[frame, :length] = np.stack([row, column], axis=-1)",
        "layout.places[frame, :length] = np.stack([column, row], axis=-1)",
    ),
    Mutation(
        "vision: rope's pairs as rows, rows, columns, columns",
        "qwen3_vl.py",
        "angles = jnp.concatenate([angles, angles], axis=-1)\n        return",
        "angles = jnp.repeat(angles.reshape(*angles.shape[:2], 2, -1), 2, axis=2).reshape("
        "*angles.shape[:2], -1)\n        return",
    ),
    Mutation(
        "vision: position table interpolated between cell centres",
        "qwen3_vl.py",
        "source = places.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))",
        "source = ((places + 0.5) * side / size - 0.5).clip(0, side - 1).astype(np.float32)",
    ),
    Mutation(
        "vision: position table in raster order",
        "qwen3_vl.py",
        "layout.taps[frame, :length] = taps",
        "layout.taps[frame, :length] = taps[np.argsort(order)]",
    ),
    Mutation(
        "vision: position table cropped instead of interpolated",
        "qwen3_vl.py",
        "source = places.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))",
        "source = places.clip(0, side - 1).astype(np.float32)",
    ),
    Mutation(
        "vision: position table by nearest neighbour",
        "qwen3_vl.py",
        "weights = np.maximum(np.float32(1) - distance, np.float32(0))",
        "weights = (distance < 0.5).astype(np.float32)",
    ),
    Mutation(
        "vision: the merger's GELU approximated",
        "qwen3_vl.py",
        "self.linear_fc2(jax.nn.gelu(self.linear_fc1(x), approximate=False))",
        "self.linear_fc2(jax.nn.gelu(self.linear_fc1(x), approximate=True))",
    ),
    Mutation(
        "vision: the blocks' GELU exact",
        "qwen3_vl.py",
        "jax.nn.gelu(self.mlp.linear_fc1(self.norm2(x)), approximate=True)",
        "jax.nn.gelu(self.mlp.linear_fc1(self.norm2(x)), approximate=False)",
    ),
    Mutation(
        "vision: LayerNorm's epsilon 1e-5",
        "layers.py",
        "jax.lax.rsqrt(variance + 1e-6)",
        "jax.lax.rsqrt(variance + 1e-5)",
    ),
    Mutation(
        "vision: DeepStack's mergers norm each patch",
        "qwen3_vl.py",
        "x = self.norm(x) if self.norm_block else x",
        "each = x.reshape(*x.shape[:2], 4, -1)\n        "
        "each = each - each.mean(-1, keepdims=True)\n        "
        "each = each / jnp.sqrt(jnp.square(each).mean(-1, keepdims=True) + 1e-6)"
        "\n        x = each.reshape(x.shape) * self.norm.scale[...][None, None] "
        "+ self.norm.bias[...][None, None] if self.norm_block else x",
    ),
    Mutation(
        "processor: a patch flattened with channels last",
        "processor.py",
        "return blocks.reshape(grid[1] * grid[2], -1), grid",
        "return np.moveaxis(blocks, 4, -1).reshape(grid[1] * grid[2], -1), grid",
    ),
    Mutation(
        "processor: CLIP's mean and deviation",
        "processor.py",
        "mean, std = (np.array(x, np.float32)[:, None] for x in (settings.mean, settings.std))",
        "mean, std = (np.array(x, np.float32)[:, None] for x in "
        "((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)))",
    ),
    Mutation(
        "processor: x / 127.5 - 1 (harmless: the same numbers but for rounding)",
        "processor.py",
        "return (scaled[None] - mean) / std",
        "return np.repeat((np.arange(256) / 127.5 - 1).astype(np.float32)[None], 3, axis=0)",
    ),
    Mutation(
        "vision: biases of query, key and value dropped",
        "qwen3_vl.py",
        "qkv = self.attn.qkv(self.norm1(x)).reshape(",
        "qkv = (self.norm1(x) @ self.attn.qkv.kernel[...]).reshape(",
    ),
    Mutation(
        "text: norms of queries and keys without their weights",
        "qwen3.py",
        "query = layers.rotate(self.q_norm(heads(self.q_proj(x))), cos, sin)",
        "query = self.q_norm(heads(self.q_proj(x))) / self.q_norm.scale[...][None, None, None]\n"
        "        query = layers.rotate(query, cos, sin)",
    ),
    Mutation(
        "text: RMSNorm's epsilon 1e-5 instead of the config's",
        "layers.py",
        "jax.lax.rsqrt(mean_square + self.epsilon)",
        "jax.lax.rsqrt(mean_square + 1e-5)",
    ),
    Mutation(
        "text: rope theta 1e6 instead of the config's",
        "qwen3.py",
        "layers.inverse_frequencies(c.head_dim, c.rope_theta)",
        "layers.inverse_frequencies(c.head_dim, 1e6)",
    ),
    Mutation(
        "text: query head h reads key head h % kv_heads",
        "attention.py",
        "grouped = query.reshape(batch, time, kv_heads, heads // kv_heads, head_dim)",
        "grouped = query.reshape(batch, time, heads // kv_heads, kv_heads, head_dim)"
        ".swapaxes(2, 3)",
    ),
    Mutation(
        "rope turns neighbouring features",
        "layers.py",
        "turned = jnp.concatenate([-second, first], axis=-1)",
        "turned = jnp.stack([-wide[..., 1::2], wide[..., ::2]], axis=-1).reshape(wide.shape)",
    ),
    Mutation(
        "text: scores scaled by hidden / heads instead of the head's size",
        "attention.py",
        "scores * head_dim**-0.5",
        "scores * (head_dim / 2) ** -0.5",
    ),
    Mutation(
        "text: RMSNorm casts after the weight (harmless in float32)",
        "layers.py",
        "return _along_last_axis(self.scale[...], x) * normed",
        "return (_along_last_axis(self.scale[...], wide) * wide "
        "* jax.lax.rsqrt(mean_square + self.epsilon)).astype(x.dtype)",
    ),
)


def result_of(mutation: Mutation | None) -> dict:
    """Runs the tests on a mutated copy, or on one that is as it was."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for name in ("awm_jax", "tests", "configs"):
            shutil.copytree(ROOT / name, copy / name)
        for name in ("pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, copy / name)
        if mutation is not None:
            path = copy / "awm_jax" / "models" / mutation.file
            source = path.read_text()
            if source.count(mutation.before) != 1:
                raise SystemExit(
                    f"{mutation.name}: found {source.count(mutation.before)} times in "
                    f"{mutation.file}, expected once:\n{mutation.before}"
                )
            path.write_text(source.replace(mutation.before, mutation.after))
        done = subprocess.run(
            [sys.executable, pathlib.Path(__file__).with_name("measure.py"), *TESTS],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    name = "(nothing)" if mutation is None else mutation.name
    return {"mutation": name, **json.loads(done.stdout.splitlines()[-1])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    results = []
    for mutation in (None, *chosen):
        results.append(result_of(mutation))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
