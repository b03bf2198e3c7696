"""The main job at toy size, whole: from PDF files to the table, and killed and resumed."""

import json
import pathlib
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest

from awm_jax.agent import records
from awm_jax.commands import build, train
from awm_jax.evaluation import tables
from awm_jax.models import hf
from awm_jax.rl.rewards import CellRewards
from awm_jax.training import checkpoint, grpo, lines, state
from awm_jax.types import Memory, Question, Sample, Trajectory, Turn, Verdict
from configs import tiny_world

ROOT = pathlib.Path(__file__).parents[2]


def toy_config(run_dir: pathlib.Path, steps: int):
    config = tiny_world.get_config()
    config.run_dir, config.steps = str(run_dir), steps
    for data, name in ((config.train_data, "train"), (config.eval_data, "dev")):
        data.split, data.documents = name, 3
        data.root = str(run_dir.parent / "worlds" / name)
    config.policy.checkpoint = str(ROOT / config.policy.checkpoint)
    config.reader.checkpoint = str(ROOT / config.reader.checkpoint)
    config.groups.questions_per_step, config.groups.group_size = 2, 4
    config.groups.rollouts_at_once, config.pages_at_once = 4, 1
    del config.rewards.answer_grpo
    config.lock()
    return config


class Killed(Exception):
    pass


class TrainTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        train.run(toy_config(cls.folder / "whole", steps=3))

    def test_everything_that_the_user_is_promised_is_there(self):
        run_dir = self.folder / "whole"
        summary = json.loads((run_dir / "summary.json").read_text())
        self.assertEqual([row["variant"] for row in summary["rows"]], ["SFT", "+ AWM-GRPO"])
        self.assertEqual(summary["caption"]["questions"], 12)
        metrics = lines.read(run_dir / "awm_grpo" / "metrics.jsonl")
        self.assertEqual([line["step"] for line in metrics], [0, 1, 2])
        cells = [metrics[0][f"cells/{cell}"] for cell in ("11", "10", "01", "00")]
        self.assertAlmostEqual(sum(cells), 1.0)
        # Of 2 x 4 rollouts.
        mean_length = metrics[0]["completions/mean_length"]
        self.assertAlmostEqual(metrics[0]["cache/sampled_tokens"], 8 * mean_length)
        # What a rollout encoded, the update finds.
        self.assertGreater(metrics[0]["cache/page_misses"], 0)
        self.assertGreaterEqual(metrics[0]["cache/page_hits"], metrics[0]["cache/page_misses"])
        self.assertLen(lines.read(run_dir / "awm_grpo" / "trajectories.jsonl"), 3 * 2 * 4)
        for name in ("table.md", "curves.png", "report.html"):
            self.assertGreater((run_dir / name).stat().st_size, 100)
        exported = hf.load_model(run_dir / "awm_grpo" / "policy-3", dtype="float32")
        jax.tree.map(
            np.testing.assert_array_equal,
            build.split_frozen(exported.params)[1],
            self.final_state("whole").params,
        )
        page = (run_dir / "report.html").read_text()
        self.assertIn("What moved since <bdi>SFT</bdi>", page)

    def test_a_killed_run_goes_on_to_the_same_numbers(self):
        run_dir = self.folder / "killed"
        saved = checkpoint.save

        def save_once(kept, state, settings):
            if int(state.step) == 2:
                raise Killed
            saved(kept, state, settings)

        played = []

        def play(kill_at):
            rolled_out = train._Job.roll_out_own

            def roll_out(job, tasks, generate, library):
                played.append([task[2] for task in tasks])
                if played[-1][0] == kill_at:
                    raise Killed
                return rolled_out(job, tasks, generate, library)

            return mock.patch.object(train._Job, "roll_out_own", roll_out)

        # In the middle of the rollouts of step 1, whose second part is of its second question.
        with play(kill_at=(0, 1, 1, 0)), self.assertRaises(Killed):
            train.run(toy_config(run_dir, steps=3))
        # After the rollouts and the update of step 1, before the checkpoint.
        with (
            play(kill_at=None),
            mock.patch.object(checkpoint, "save", save_once),
            self.assertRaises(Killed),
        ):
            train.run(toy_config(run_dir, steps=3))
        with play(kill_at=None):
            train.run(toy_config(run_dir, steps=3))
        training = [part[0][1:3] for part in played if part[0][1] != train._EVALUATION]
        # The part in flight alone was played again: (step, question).
        self.assertEqual(training, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 1), (2, 0), (2, 1)])
        self.assertEmpty(list((run_dir / "awm_grpo").glob("pending*")))

        def record(folder, name):
            return lines.read(self.folder / folder / "awm_grpo" / f"{name}.jsonl")

        def numbers(folder):
            # What a process has compiled, sampled and remembers goes with it.
            times = ("seconds", "step_time", "tokens_per_second", "compiled", "cache/")
            return [
                {k: v for k, v in line.items() if not k.startswith(times)}
                for line in record(folder, "metrics")
            ]

        self.assertEqual(numbers("killed"), numbers("whole"))
        self.assertEqual(record("killed", "trajectories"), record("whole", "trajectories"))
        jax.tree.map(
            np.testing.assert_array_equal, self.final_state("killed"), self.final_state("whole")
        )

    def final_state(self, folder):
        config = toy_config(self.folder / folder, steps=3)
        _, trained = build.split_frozen(build.load_policy(config.policy, config.sampler).params)
        like = state.initial_state(trained, state.adamw(**config.optimizer))
        directory = self.folder / folder / "awm_grpo" / "checkpoints"
        settings = train._shared(config, CellRewards(*config.rewards.awm_grpo))
        with checkpoint.open_checkpoints(directory, keep=2) as kept:
            found = checkpoint.restore(kept, like, settings)
        self.assertEqual(int(found.step), 3)
        return found

    def test_fewer_updates_than_are_done_are_refused(self):
        with self.assertRaisesRegex(ValueError, "3 updates are done; found config.steps=2"):
            train.run(toy_config(self.folder / "whole", steps=2))

    def test_other_settings_do_not_go_on_from_a_checkpoint(self):
        config = toy_config(self.folder / "whole", steps=3)
        config.loss.clip_high = 0.3
        with self.assertRaisesRegex(ValueError, "clip_high.*0.28.*0.3"):
            train.run(config)


class UpdatesTest(absltest.TestCase):
    def test_a_skipped_update_is_kept_with_what_it_was_given(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        config = tiny_world.get_config()
        config.groups.questions_per_step, config.groups.group_size = 2, 2
        config.grpo.minibatches = 2
        question = Question("a", "d.pdf", "Who?", "x", "Str")
        sample = Sample(*np.zeros((3, 2)), "said", "stop")
        turns = (Turn(0, sample, (), (), (), Memory()),)
        made = [
            records.Record(Trajectory(question, n, turns, "x", Memory(), "answered"), (0, 3, 0, n))
            for n in range(4)
        ]
        # Valid, and without a spread.
        outcome = grpo.Outcome(*(np.full((2, 2), value) for value in (1, True, 0, False)))
        job = mock.Mock(config=config, rate=lambda update: 0.5 * update)
        begin = state.TrainState(np.int32(3), {}, ())
        moved = {"loss": 2.0, "clip_low_share": 0.25, "clip_high_share": 0.5}
        done = begin._replace(step=begin.step + 1)
        with mock.patch.object(
            grpo, "update_state", side_effect=[grpo.NotFinite("no"), (done, moved)]
        ) as updated:
            after, metrics = train._updates(job, 3, begin, None, made, outcome, folder)
        # Two rollouts of two tokens in each.
        self.assertEqual([call.args[3] for call in updated.call_args_list], [4, 4])
        self.assertEqual(after.step, 4)
        self.assertEqual((metrics["loss"], metrics["skipped_updates"]), (2.0, 1))
        self.assertEqual(metrics["clip_ratio/region_mean"], 0.75)
        self.assertEqual(metrics["learning_rate"], 3.0)
        (path,) = folder.iterdir()
        self.assertEqual(path.name, "skipped-3-0.jsonl")
        (first, _) = grpo.minibatches(2, epochs=1, minibatches=2, seed=(config.seed, 3))
        kept = [record.trajectory.rollout for record in records.read_records(path)]
        self.assertEqual(kept, [2 * first[0], 2 * first[0] + 1])
        config.groups.leave_out_equal = True
        with mock.patch.object(grpo, "update_state", return_value=(done, moved)) as updated:
            train._updates(job, 3, begin, None, made, outcome, folder)
        self.assertEqual([call.args[3] for call in updated.call_args_list], [0, 0])


class ReportTest(absltest.TestCase):
    def test_a_run_without_any_judgement_still_has_its_report(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        question = Question("a", "d.pdf", "Who?", "x", "Str")
        failed = Trajectory(question, 0, (), "x", Memory(), "judge_error", "no server")
        pairs = [(failed, Verdict(0.0, 0.0, "", "rules", "no server"))]
        step = {"step": 0, "frac_reward_zero_std": 0.0}
        step |= {f"cells/{cell}": 0.25 for cell in ("11", "10", "01", "00")}
        train._report(
            folder,
            {"sft": pairs, "awm_grpo": pairs},
            tables.Caption("data", "rules", step_budget=15, seed=0, questions=1),
            [("awm_grpo", [step])],
            {"commit": "unknown"},
            seconds=1.0,
        )
        rows = json.loads((folder / "summary.json").read_text())["rows"]
        self.assertEqual([(row["n"], row["invalid"]) for row in rows], [(0, 1), (0, 1)])


if __name__ == "__main__":
    absltest.main()
