"""Configs at the paper's size and beyond resolve to jobs whose models their meshes can hold."""

import contextlib
import pathlib

import jax
from absl.testing import absltest, parameterized

from awm_jax.commands import plan as command
from awm_jax.models import hf
from awm_jax.training import plan, sharding
from configs import qwen3vl_4b_awm_grpo, qwen3vl_30b_a3b_awm_grpo

ROOT = pathlib.Path(__file__).parents[2]


class ConfigsTest(parameterized.TestCase):
    @parameterized.parameters(
        (qwen3vl_4b_awm_grpo, 4.4e9, 16), (qwen3vl_30b_a3b_awm_grpo, 31.1e9, 64)
    )
    def test_a_config_resolves(self, module, parameters, chips):
        self.enterContext(contextlib.chdir(ROOT))
        config = module.get_config()
        config.lock()
        job = command._job(config, plan.find_target("cpu:1"))
        # No such devices are here; the rules look at the sizes alone.
        mesh = jax.sharding.AbstractMesh(tuple(config.mesh.values()), sharding.AXES)
        self.assertEqual(mesh.size, chips)
        for shape, rows in ((job.policy, job.packing.rows), (job.reader, None)):
            sharding.check_mesh(mesh, shape, rows=rows)
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        model = hf.abstract_model(job.policy, place=lambda path, shape: one)
        found = sum(leaf.size for leaf in jax.tree.leaves(model.params))
        self.assertAlmostEqual(found / parameters, 1, delta=0.02)
        layers = model.params["language_model"]["layers"]
        place = sharding.placement(mesh)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(layers):
            if leaf.ndim > 2:
                split = place("layers/" + sharding.path_of(keys), leaf.shape).spec
                self.assertIn("fsdp", str(split), keys)


if __name__ == "__main__":
    absltest.main()
