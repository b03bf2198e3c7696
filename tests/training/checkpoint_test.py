"""Checkpoints that are kept, damaged, or cannot be written."""

import pathlib
import resource
import tempfile

import jax
import numpy as np
import optax
from absl.testing import absltest

from awm_jax.training import checkpoint, state

SETTINGS = {"seed": 0, "rewards": [2.0, 0.0]}


class CheckpointTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.directory = pathlib.Path(folder) / "checkpoints"

    def state(self, step, size=4):
        begin = state.initial_state({"w": jax.numpy.full(size, float(step))}, optax.adam(1.0))
        return begin._replace(step=begin.step + step)

    def save(self, *steps, **options):
        with checkpoint.open_checkpoints(self.directory, **({"keep": 9} | options)) as kept:
            for step in steps:
                checkpoint.save(kept, self.state(step), SETTINGS)

    def restore(self, settings=SETTINGS):
        with checkpoint.open_checkpoints(self.directory, keep=9) as kept:
            return checkpoint.restore(kept, self.state(0), settings)

    def steps(self):
        return sorted(int(path.name) for path in self.directory.iterdir())

    def test_what_was_saved_comes_back(self):
        self.assertIsNone(self.restore())
        self.save(1, 2)
        jax.tree.map(np.testing.assert_array_equal, self.restore(), self.state(2))

    def test_a_state_that_is_donated_while_it_is_written_is_written_as_it_was(self):
        update = jax.jit(
            lambda s: s._replace(step=s.step + 1, params=jax.tree.map(lambda x: x + 1, s.params)),
            donate_argnums=0,
        )
        current = self.state(1, size=1_000_000)
        with checkpoint.open_checkpoints(self.directory, keep=9) as kept:
            for _ in range(3):
                checkpoint.save(kept, current, SETTINGS)
                current = update(current)
            found = checkpoint.restore(kept, current, SETTINGS)
        self.assertEqual(int(found.step), 3)
        np.testing.assert_array_equal(found.params["w"], np.full(1_000_000, 3.0, np.float32))

    def test_the_newest_and_the_best_are_kept(self):
        reward = {1: 0.1, 2: 0.9, 3: 0.9, 4: 0.5}
        self.save(1, 2, 3, 4, 5, 6, keep=2, keep_best=1, measured=reward.get)
        # Of equals the earlier; 5 and 6 are the newest and were not measured.
        self.assertEqual(self.steps(), [2, 5, 6])

    def test_all_settings_that_differ_are_named(self):
        self.save(1)
        with self.assertRaisesRegex(ValueError, r"other settings[\s\S]*lr: found None, now 1\n"):
            self.restore({"lr": 1, "rewards": [2.0, 0.0]})

    def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(self):
        self.save(1, 2)
        for path in (self.directory / "2" / "state").rglob("*"):
            if path.is_file() and path.parent.name == "d":
                path.write_bytes(path.read_bytes()[:10])
        with self.assertRaisesRegex(ValueError, r"checkpoints/2: .* cannot be read.*steps \[1\]"):
            self.restore()
        (self.directory / "2").rename(self.directory.parent / "away")
        self.assertEqual(int(self.restore().step), 1)

    def test_without_room_the_checkpoint_before_stays(self):
        self.save(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        noise = jax.random.normal(jax.random.key(0), (1_000_000,))
        large = self.state(2, size=1_000_000)._replace(params={"w": noise})
        try:
            with (
                self.assertRaisesRegex(OSError, r"could not be written.*steps \[1\]: make room"),
                checkpoint.open_checkpoints(self.directory, keep=1) as kept,
            ):
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
                checkpoint.save(kept, large, SETTINGS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertEqual(int(self.restore().step), 1)
        self.assertEqual(self.steps(), [1])

    def test_the_newest_must_be_kept(self):
        with self.assertRaisesRegex(ValueError, "found 0 newest"):
            self.save(1, keep=0)


if __name__ == "__main__":
    absltest.main()
