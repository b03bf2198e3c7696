"""SFT at toy size, whole: from a scripted teacher's records to an exported policy, and resumed."""

import dataclasses
import json
import pathlib
import tempfile
from unittest import mock

import chex
import numpy as np
from absl.testing import absltest

from awm_jax.agent import records, rollout
from awm_jax.commands import build, sft
from awm_jax.datasets import tiny_teacher
from awm_jax.models import hf
from awm_jax.models.processor import load_processor
from awm_jax.training import checkpoint, lines
from configs import tiny_world, tiny_world_sft

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = 2


class Killed(Exception):
    pass


class SftTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        data = tiny_world.get_config().train_data
        data.split, data.documents, data.root = "dev", DOCUMENTS, str(cls.folder / "world")
        with build.open_library(data, index_at=":memory:") as library:
            teacher = tiny_teacher.scripted_teacher(
                library.questions, seed=0, generic_last=0.0, generic_earlier=0.0
            )
            cls.trajectories = rollout.run_rollouts(
                [(question, 0, (place, 0)) for place, question in enumerate(library.questions)],
                teacher,
                search=library.search,
                render=library.render,
            )
        cls.write("teacher.jsonl", cls.trajectories)
        sft.run(cls.config("whole"))

    @classmethod
    def write(cls, name, trajectories):
        (cls.folder / name).unlink(missing_ok=True)
        records.append_records(cls.folder / name, map(records.Record, trajectories))

    @classmethod
    def config(cls, run_dir, trajectories="teacher.jsonl"):
        config = tiny_world_sft.get_config()
        config.run_dir = str(cls.folder / run_dir)
        config.trajectories = (str(cls.folder / trajectories),)
        config.data.root = str(cls.folder / "world")
        config.policy.checkpoint = str(ROOT / config.policy.checkpoint)
        config.held_out, config.epochs, config.trajectories_per_update = 2, 2, 3
        config.checkpoint_every = 2
        # So that rows divide over eight devices.
        config.packing.rows = 8
        config.lock()
        return config

    def test_the_loss_falls_and_the_policy_is_exported(self):
        summary = json.loads((self.folder / "whole" / "summary.json").read_text())
        self.assertEqual(summary["lessons"]["trajectories"], 4 * DOCUMENTS - 2)
        self.assertEqual(summary["updates"], 4)
        before, after = summary["held_out_loss"]
        self.assertLess(after, before)
        metrics = lines.read(self.folder / "whole" / "metrics.jsonl")
        self.assertEqual([line["step"] for line in metrics], [0, 1, 2, 3])
        self.assertEqual([line["epoch"] for line in metrics], [0, 0, 1, 1])
        epoch = sum(line["trained_tokens"] for line in metrics) / 2
        held_out = summary["lessons"]["trained_tokens"] - epoch
        self.assertGreater(held_out, 0)
        model = hf.load_model(self.folder / "whole" / "policy", dtype="float32")
        warm = hf.load_model(ROOT / tiny_world_sft.get_config().policy.checkpoint, dtype="float32")
        np.testing.assert_array_equal(
            model.params["visual"]["patch_embed"]["proj"]["kernel"],
            warm.params["visual"]["patch_embed"]["proj"]["kernel"],
        )
        table = ("language_model", "embed_tokens", "embedding")
        moved = [p[table[0]][table[1]][table[2]] for p in (model.params, warm.params)]
        self.assertGreater(np.abs(moved[0] - moved[1]).max(), 0)
        self.assertIsNotNone(load_processor(self.folder / "whole" / "policy").image)

    def test_a_killed_run_goes_on_to_the_same_numbers(self):
        saved = checkpoint.save

        def save_once(kept, state, settings):
            if int(state.step) == 4:
                raise Killed
            saved(kept, state, settings)

        with mock.patch.object(checkpoint, "save", save_once), self.assertRaises(Killed):
            sft.run(self.config("killed"))
        sft.run(self.config("killed"))

        def numbers(run):
            times = ("seconds", "compiled")
            return [
                {k: v for k, v in line.items() if not k.startswith(times)}
                for line in lines.read(self.folder / run / "metrics.jsonl")
            ]

        self.assertEqual(numbers("killed"), numbers("whole"))
        files = [self.folder / run / "policy" / "model.safetensors" for run in ("killed", "whole")]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_eight_devices_give_the_losses_of_one(self):
        """To 1e-4, four updates of AdamW in float32; what is packed is the same."""
        config = self.config("mesh")
        config.mesh.data = config.mesh.fsdp = config.mesh.tensor = 2
        sft.run(config)
        found, expected = (
            lines.read(self.folder / run / "metrics.jsonl") for run in ("mesh", "whole")
        )
        for name in ("trained_tokens", "tokens", "micro_batches", "filled", "compiled/accumulate"):
            self.assertEqual([line[name] for line in found], [line[name] for line in expected])
        for name in ("loss", "grad_norm"):
            np.testing.assert_allclose(
                [line[name] for line in found], [line[name] for line in expected], rtol=1e-4
            )
        self.assertLen({line["loss"] for line in found}, 4)
        policies = [
            hf.load_model(self.folder / run / "policy", dtype="float32").params
            for run in ("mesh", "whole")
        ]
        chex.assert_trees_all_close(*policies, atol=1e-4)

    def test_all_that_cannot_be_taught_is_named_before_the_first_update(self):
        first, second, *others = self.trajectories
        self.write(
            "wrong.jsonl",
            [dataclasses.replace(t, final_answer="1") for t in (first, second)] + others,
        )
        ids = ".*".join(f"question {t.question.id}," for t in (first, second))
        with self.assertRaisesRegex(ValueError, f"(?s)2 trajectories cannot be taught, .*{ids}"):
            sft.run(self.config("wrong", "wrong.jsonl"))
        self.assertFalse((self.folder / "wrong" / "metrics.jsonl").exists())

    def test_what_does_not_fit_is_an_error_or_left_out_on_demand(self):
        config = self.config("oversized")
        config.packing.image_tokens = 24
        with self.assertRaisesRegex(ValueError, "36 image tokens, at most 24"):
            sft.run(config)
        config.leave_out_oversized = True
        with self.assertRaisesRegex(ValueError, "8 do not fit, 0 are left"):
            sft.run(config)

    def test_files_without_trajectories_are_named(self):
        with self.assertRaisesRegex(ValueError, "no trajectories in .*absent.jsonl"):
            sft.run(self.config("absent", "absent.jsonl"))


if __name__ == "__main__":
    absltest.main()
