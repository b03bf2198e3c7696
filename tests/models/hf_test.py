"""Checkpoints: every tensor is accounted for, both ways."""

import json
import pathlib
import shutil
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from awm_jax.models import config, hf

DATA = pathlib.Path(__file__).parents[1] / "data"
MODELS = ("tiny_qwen3", "tiny_qwen3_vl")


class HFTest(parameterized.TestCase):
    def directory(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def changed(self, name, change):
        """A copy of a checkpoint whose tensors were passed through `change`."""
        directory = self.directory()
        shutil.copy(DATA / name / "config.json", directory)
        tensors = load_file(DATA / name / "model.safetensors")
        save_file(change(dict(tensors)), directory / "model.safetensors")
        return directory

    @parameterized.product(name=MODELS, shard_bytes=(5 * 10**9, 50_000))
    def test_load_and_save_keep_every_bit(self, name, shard_bytes):
        model = hf.load_model(DATA / name, dtype="float32")
        directory = self.directory() / "new"
        hf.save_model(model, model.params, directory, shard_bytes=shard_bytes)
        files = sorted(directory.glob("*.safetensors"))
        self.assertEqual(len(files) > 1, shard_bytes == 50_000)
        found = {k: v for file in files for k, v in load_file(file).items()}
        expected = load_file(DATA / name / "model.safetensors")
        self.assertEqual(found.keys(), expected.keys())
        for key, tensor in expected.items():
            np.testing.assert_array_equal(found[key], tensor, err_msg=key)
        sources = [json.loads((d / "config.json").read_text()) for d in (directory, DATA / name)]
        self.assertEqual(*sources)
        jax.tree.map(
            np.testing.assert_array_equal,
            hf.load_model(directory, dtype="float32").params,
            model.params,
        )

    def test_bfloat16_is_rounded_once_and_kept(self):
        model = hf.load_model(DATA / "tiny_qwen3_vl")
        directory = self.directory()
        hf.save_model(model, model.params, directory)
        found = load_file(directory / "model.safetensors")
        for key, tensor in load_file(DATA / "tiny_qwen3_vl" / "model.safetensors").items():
            np.testing.assert_array_equal(found[key], tensor.astype(ml_dtypes.bfloat16))
        again = hf.load_model(directory)
        jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
        self.assertEqual(json.loads((directory / "config.json").read_text())["dtype"], "bfloat16")

    def test_the_table_covers_every_parameter_once(self):
        for name in MODELS:
            model = hf.load_model(DATA / name)
            paths = [entry.path for entry in hf.entries(model.config)]
            self.assertCountEqual(paths, traverse_util.flatten_dict(model.params))
            names = [n for entry in hf.entries(model.config) for n in entry.names]
            self.assertCountEqual(names, load_file(DATA / name / "model.safetensors"))

    def test_all_mismatches_are_listed_in_one_error(self):
        def spoil(tensors):
            del tensors["model.layers.1.self_attn.q_norm.weight"]
            tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
            tensors["model.norm.weight"] = np.zeros(31, np.float32)
            q_proj = "model.layers.0.self_attn.q_proj.weight"
            tensors[q_proj] = np.ascontiguousarray(tensors[q_proj].T)
            return tensors

        with self.assertRaisesRegex(
            ValueError,
            r"(?s)missing: +\['model.layers.1.self_attn.q_norm.weight'\]"
            r".*unexpected: \['model.layers.0.self_attn.q_proj.bias'\]"
            r".*q_proj.weight: found \(32, 64\), expected \(64, 32\)"
            r".*model.norm.weight: found \(31,\), expected \(32,\)",
        ):
            hf.load_model(self.changed("tiny_qwen3", spoil))

    def test_the_head_of_a_tied_model_may_be_there_if_it_is_the_embedding(self):
        def add(tensors):
            return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}

        def add_another(tensors):
            return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}

        model = hf.load_model(self.changed("tiny_qwen3", add))
        self.assertNotIn("lm_head", model.params)
        with self.assertRaisesRegex(ValueError, "lm_head.weight differs from the embedding"):
            hf.load_model(self.changed("tiny_qwen3", add_another))

    def test_an_untied_model_needs_its_head(self):
        def drop(tensors):
            del tensors["lm_head.weight"]
            return tensors

        with self.assertRaisesRegex(ValueError, r"missing: +\['lm_head.weight'\]"):
            hf.load_model(self.changed("tiny_qwen3_vl", drop))

    def spread(self, path, shape):
        """On two devices, divided along the last axis that can be."""
        mesh = jax.make_mesh((2,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
        divides = [size % 2 == 0 for size in shape]
        axis = len(shape) - 1 - divides[::-1].index(True)
        spec = [None] * len(shape)
        spec[axis] = "fsdp"
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    def test_arrays_are_read_to_their_shards(self):
        asked = {}

        def place(path, shape):
            asked[path] = shape
            return self.spread(path, shape)

        plain = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
        placed = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32", place=place)
        jax.tree.map(np.testing.assert_array_equal, placed.params, plain.params)
        self.assertIn("language_model/layers/self_attn/q_proj/kernel", asked)
        kernel = placed.params["language_model"]["layers"]["self_attn"]["q_proj"]["kernel"]
        self.assertEqual(kernel.addressable_shards[0].data.shape, (3, 32, 32))

    def copied(self, path, shape):
        """On two devices, whole."""
        mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    @parameterized.product(
        name=("tiny_qwen3", "tiny_qwen3_vl_moe"), placed=("nowhere", "spread", "copied")
    )
    def test_only_a_piece_is_read_at_a_time_and_each_once(self, name, placed):
        place = {"nowhere": None, "spread": self.spread, "copied": self.copied}[placed]
        whole = hf.load_model(DATA / name)
        read, sizes = hf._read, []

        def read_and_note(*arguments):
            sizes.append(read(*arguments).nbytes)
            return read(*arguments)

        self.enterContext(mock.patch.object(hf, "_PIECE_BYTES", 2_000))
        self.enterContext(mock.patch.object(hf, "_read", read_and_note))
        pieces = hf.load_model(DATA / name, place=place)
        jax.tree.map(np.testing.assert_array_equal, pieces.params, whole.params)
        self.assertLessEqual(max(sizes), 2_000)
        self.assertEqual(sum(sizes), sum(leaf.nbytes for leaf in jax.tree.leaves(whole.params)))

    def test_assets_are_copied_beside_the_weights(self):
        assets, directory = self.directory(), self.directory()
        for name in ("tokenizer.json", "config.json", "model.safetensors"):
            (assets / name).write_text("{}")
        model = hf.load_model(DATA / "tiny_qwen3")
        hf.save_model(model, model.params, directory, assets=assets)
        self.assertEqual((directory / "tokenizer.json").read_text(), "{}")
        self.assertEqual(hf.load_config(directory), model.config)

    def test_refusals(self):
        model = hf.load_model(DATA / "tiny_qwen3")
        with self.assertRaisesRegex(ValueError, "found weights, expected a directory without"):
            hf.save_model(model, model.params, DATA / "tiny_qwen3")
        spoilt = model.params | {"adapter": {"kernel": jnp.zeros((2, 2))}}
        with self.assertRaisesRegex(ValueError, r"\['adapter/kernel'\]; adapters are merged"):
            hf.save_model(model, spoilt, self.directory())
        with self.assertRaisesRegex(ValueError, "neither a directory nor a hub id"):
            hf.load_model("/nowhere/at/all")
        with self.assertRaisesRegex(ValueError, "config.json"):
            hf.load_model(self.directory())
        directory = self.directory()
        shutil.copy(DATA / "tiny_qwen3" / "config.json", directory)
        with self.assertRaisesRegex(ValueError, r"found no \['model.safetensors'\]"):
            hf.load_model(directory)

    def test_absent_and_truncated_files_are_named_together(self):
        directory = self.directory()
        shutil.copy(DATA / "tiny_qwen3" / "config.json", directory)
        names = ["a.safetensors", "b.safetensors", "c.safetensors"]
        index = {"weight_map": {name: name for name in names}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        whole = (DATA / "tiny_qwen3" / "model.safetensors").read_bytes()
        (directory / names[0]).write_bytes(whole[:1000])
        (directory / names[2]).write_bytes(b"")
        with self.assertRaisesRegex(
            ValueError,
            r"found no \['b.safetensors'\]; a.safetensors cannot be read .*; c.safetensors cannot",
        ):
            hf.load_model(directory)

    def test_an_unreachable_hub_is_said(self):
        def unreachable(*_, **__):
            raise FileNotFoundError("offline")

        self.enterContext(mock.patch.object(hf.huggingface_hub, "snapshot_download", unreachable))
        with self.assertRaisesRegex(ValueError, "Qwen/Nothing: no such directory, and the hub"):
            hf.load_model("Qwen/Nothing")


class InitModelTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_random_parameters_fit_and_give_a_flat_start(self, name):
        shape = hf.load_config(DATA / name)
        model = hf.init_model(shape, jax.random.key(0), dtype="bfloat16")
        loaded = hf.load_model(DATA / name)
        self.assertEqual(
            jax.tree.map(lambda x: (x.shape, x.dtype), model.params),
            jax.tree.map(lambda x: (x.shape, x.dtype), loaded.params),
        )
        logits = jax.jit(model.apply)(model.params, jnp.arange(24).reshape(2, 12))
        self.assertLess(float(jnp.std(logits)), 1.0)
        first, second = model.params["language_model"]["layers"]["mlp"]["up_proj"]["kernel"][:2]
        self.assertGreater(float(jnp.abs(first - second).max()), 0.1)

    def test_a_key_is_all_that_matters(self):
        shape = hf.load_config(DATA / "tiny_qwen3")
        one, same = (hf.init_model(shape, jax.random.key(1)).params for _ in range(2))
        other = hf.init_model(shape, jax.random.key(2)).params
        jax.tree.map(np.testing.assert_array_equal, one, same)
        kernels = [p["language_model"]["embed_tokens"]["embedding"] for p in (one, other)]
        self.assertGreater(float(jnp.abs(kernels[0] - kernels[1]).max()), 0.01)

    def test_what_is_made_here_can_be_saved_and_loaded(self):
        source = json.loads((DATA / "tiny_qwen3_vl" / "config.json").read_text())
        source["vision_config"]["depth"] = 3
        model = hf.init_model(config.parse_config(source), jax.random.key(0))
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        hf.save_model(model, model.params, directory)
        loaded = hf.load_model(directory, dtype="float32")
        self.assertEqual(loaded.config, model.config)
        jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)


if __name__ == "__main__":
    absltest.main()
