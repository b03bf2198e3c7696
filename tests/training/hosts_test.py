"""Several processes give what one gives; one that dies ends all, another number goes on."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import chex
import jax
import numpy as np
from absl.testing import absltest

from awm_jax.training import batch, checkpoint, hosts, sharding, state

_PROCESS = pathlib.Path(__file__).with_name("hosts_process.py")
_SPEC = importlib.util.spec_from_file_location("hosts_process", _PROCESS)
hosts_process = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hosts_process)


def together(what: str, count: int, folder: pathlib.Path) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of so many processes, each with two devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, str(_PROCESS), what, coordinator, str(count)]
    started = [
        subprocess.Popen(
            [*command, str(index), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        )
        for index in range(count)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, *said) for p, said in zip(started, ended, strict=True)]


def last_json(output: str):
    return json.loads([line for line in output.splitlines() if line[:1] in "[{"][-1])


class UpdateTest(absltest.TestCase):
    """Two processes, seven trajectories, of which the second has one more than the first."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.ended = together("update", 2, cls.folder)
        cls.alone, cls.metrics = hosts_process.update_once(sharding.make_mesh())

    def test_loss_and_gradients_are_those_of_one_process(self):
        """To 1e-5: float32 sums, packed otherwise and taken in another order."""
        found = last_json(self.ended[0][1])
        for name, value in self.metrics.items():
            self.assertAlmostEqual(found[name], value, delta=1e-5 * max(1, abs(value)), msg=name)
        with np.load(self.folder / "params.npz") as file:
            whole = [file[name] for name in file.files]
        # Clipped to norm 1 at rate 1: parameters and gradients differ by a constant.
        for leaf, expected in zip(whole, jax.tree.leaves(self.alone.params), strict=True):
            np.testing.assert_allclose(leaf, expected, atol=1e-5)

    def test_a_process_has_a_copy_of_its_own_to_sample_with(self):
        found = last_json(self.ended[0][1])
        kernel = self.alone.params["language_model"]["layers"]["self_attn"]["q_proj"]["kernel"]
        self.assertAlmostEqual(found["total"], float(np.sum(kernel)), delta=1e-4)
        self.assertEqual(found["shard"], [3, 32, 32])

    def test_another_number_of_processes_goes_on(self):
        mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
        laid = sharding.shardings(self.alone.params, sharding.placement(mesh))
        params = jax.device_put(self.alone.params, laid)
        like = state.initial_state(params, hosts_process.OPTIMIZER)
        with checkpoint.open_checkpoints(self.folder / "checkpoints", keep=2) as kept:
            restored = checkpoint.restore(kept, like, {"seed": 0})
        self.assertEqual(int(restored.step), 1)
        chex.assert_trees_all_close(restored, self.alone, atol=1e-5)
        for found, place in zip(
            jax.tree.leaves(restored.params), jax.tree.leaves(laid), strict=True
        ):
            self.assertTrue(found.sharding.is_equivalent_to(place, found.ndim))

    def test_a_dead_process_ends_the_others_with_a_word(self):
        (first, _, said), (second, _, _) = self.ended
        self.assertEqual(second, 3)
        self.assertNotEqual(first, 0)
        self.assertRegex(said, "process 0 of 2 cannot go on: .* another process has ended")
        self.assertIn("on another number of them, goes on from the last checkpoint", said)


class AgreementTest(absltest.TestCase):
    def test_four_processes(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "lines.jsonl").write_text("before\n")
        ended = together("agree", 4, folder)
        self.assertEqual([status for status, _, _ in ended], [0] * 4, ended)
        # The second and the fourth spoke twice.
        found = last_json(ended[0][1])
        self.assertEqual([v["name"][-1] for v in found], ["x", "1", "1", "2", "3", "3"])
        self.assertEqual({v["found"] for v in found}, {"here"})
        self.assertEqual({v["before"] for v in found}, {"before\n"})
        self.assertEqual((folder / "lines.jsonl").read_text(), "before\n0\n")
        self.assertEqual({v["of_first"] for v in found}, {True})
        self.assertEqual([v["total"] for v in found], [{"pages": 6}] * 6)
        shares = [found[place]["share"] for place in (0, 1, 3, 4)]
        self.assertEqual(shares, [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]])
        self.assertEqual(found[0]["own_mesh"], {"data": 1, "fsdp": 1, "tensor": 2})
        self.assertEqual(found[0]["sampler"], {"batch_buckets": [1, 8], "top_k": 5})
        self.assertRegex(found[0]["refused"], "whole groups of tensor = 8; choose a tensor")


class SettingsTest(absltest.TestCase):
    def test_an_index_that_does_not_exist(self):
        for coordinator, index in (("host:1", 2), ("host", 0)):
            joined = hosts.together(
                coordinator=coordinator, count=2, index=index, heartbeat_seconds=10
            )
            with self.assertRaisesRegex(ValueError, f"index {index} of 2; expected HOST:PORT"):
                joined.__enter__()

    def test_one_process_does_all(self):
        shape = batch.PackShape(3, 8, 5, 7, 4)
        self.assertEqual(hosts.own_shape(shape), shape)
        self.assertEqual([1, 2, 3][hosts.share([1, 2, 3])], [1, 2, 3])
        self.assertEqual(hosts.gathered([1]), [1])
        self.assertTrue(hosts.first())


if __name__ == "__main__":
    absltest.main()
