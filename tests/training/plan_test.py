"""Plans of a tiny run on fake devices, and what is read off a compiled program."""

import functools
import json
import pathlib

import jax
from absl.testing import absltest, parameterized

from awm_jax.models import config as config_lib
from awm_jax.rl import losses
from awm_jax.training import plan, state
from awm_jax.training.batch import PackShape

DATA = pathlib.Path(__file__).parents[1] / "data"
# Two collectives, one of them in a loop of three turns within another computation.
HLO = """HloModule m

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %g = bf16[16,4]{1,0:T(8,128)} all-gather(bf16[4,4]{1,0} %x), channel_id=1, dimensions={0}
}

%cond (p: (s32[], f32[8,4])) -> pred[] {
  %lt = pred[] compare(s32[] %i, s32[] %n), direction=LT
}

ENTRY %main (a: f32[8,4]) -> f32[8,4] {
  %w = (s32[], f32[8,4]) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %r = (f32[2,4], f32[2,4]) all-reduce-start(f32[2,4] %a), channel_id=2, to_apply=%add
}
"""  # noqa: E501


def tiny_job() -> plan.Job:
    source = json.loads((DATA / "tiny_qwen3_vl" / "config.json").read_text())
    policy = config_lib.parse_config(source)
    sampler = plan.Sampler(2, 2, 16, 16, 4, 4, (1.0, 0, 0.0))
    return plan.Job(
        policy=policy,
        reader=policy,
        dtype="bfloat16",
        reader_dtype="bfloat16",
        master_dtype="float32",
        remat=True,
        attention="xla",
        optimizer=state.adamw(
            learning_rate=1e-3,
            warmup_steps=0,
            b1=0.9,
            b2=0.98,
            weight_decay=0.0,
            max_gradient_norm=1.0,
        ),
        policy_loss=functools.partial(
            losses.clipped_policy_loss, clip_low=0.2, clip_high=0.28, aggregate="token"
        ),
        packing=PackShape(4, 16, 8, 4, 4),
        log_prob_chunk=8,
        sampler=sampler,
        reading=sampler,
        page_patches=16,
    )


class PlanRunTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.job, target = tiny_job(), plan.find_target("cpu:4")
        cls.mesh = plan.target_mesh(target, data=1, fsdp=2, tensor=2)
        cls.programs = plan.plan_run(cls.job, cls.mesh, quick=True)
        cls.named = {program.name: program for program in cls.programs}

    def test_programs_are_those_of_a_step_in_its_order(self):
        sampling = ["gather", "make cache", "prefill", "decode"]
        self.assertEqual(
            [program.name for program in self.programs],
            [
                "policy: read pages",
                *(f"{who}: {what}" for who in ("policy", "reader") for what in sampling),
                *(f"update: {what}" for what in ("micro-batch", "add", "apply")),
            ],
        )

    def test_moments_are_twice_the_parameters_and_split_as_they_are(self):
        held = self.named["update: apply"].held
        self.assertAlmostEqual(held["optimiser"] / held["parameters"], 2, delta=0.01)
        self.assertEqual(held["gradients"], held["parameters"])

    def test_cache_by_hand(self):
        text = self.job.policy.text
        whole = 2 * 2 * text.num_hidden_layers * 2 * 20 * text.num_key_value_heads * text.head_dim
        self.assertEqual(self.named["policy: decode"].held["policy's key/value cache"], whole // 4)

    def test_copies_are_held_only_by_those_that_sample(self):
        for who in ("policy", "reader"):
            holders = [p.name for p in self.programs if f"{who}'s sampling copy" in p.held]
            sampling = ("gather", "make cache", "prefill", "decode")
            self.assertEqual(holders, [f"{who}: {name}" for name in sampling])

    def test_a_copy_is_made_array_by_array(self):
        gather, after = self.named["policy: gather"], self.named["policy: make cache"]
        copied = [program.held["policy's sampling copy"] for program in (gather, after)]
        embedding = self.job.policy.text.vocab_size * self.job.policy.text.hidden_size * 2
        # The largest is on its way: each of the two chips along `tensor` gets half of it.
        self.assertEqual(copied[1] - copied[0], embedding // 2)
        self.assertGreaterEqual(gather.temporaries, embedding // 2)

    def test_update_moves_parameters_and_does_not_fit_into_nothing(self):
        self.assertGreater(self.named["update: micro-batch"].traffic["all-gather"].bytes, 0)
        self.assertEmpty(plan.advise(self.job, self.mesh, 1.0, self.programs))
        self.assertLen(plan.advise(self.job, self.mesh, 0.0, self.programs), len(self.programs))


class TargetTest(parameterized.TestCase):
    @parameterized.parameters("v5e", "v9x:4x4", "v5e:4x4*", "4x4")
    def test_unknown_topology_is_refused(self, name):
        with self.assertRaisesRegex(ValueError, "expected KIND:SIZE"):
            plan.find_target(name)

    def test_missing_devices_are_counted(self):
        with self.assertRaisesRegex(ValueError, f"found {jax.device_count()} CPU devices"):
            plan.find_target("h100:4096")

    def test_mesh_of_another_size_is_refused(self):
        with self.assertRaisesRegex(ValueError, "has 8 devices, cpu:4 has 4"):
            plan.target_mesh(plan.find_target("cpu:4"), data=2, fsdp=2, tensor=2)


class ReadOffTest(absltest.TestCase):
    def test_collectives_in_loops_count_each_turn(self):
        self.assertEqual(
            plan.traffic_of(HLO),
            {"all-gather": plan.Traffic(3, 3 * 128.0), "all-reduce": plan.Traffic(1, 32.0)},
        )

    def test_refusal_says_how_much(self):
        said = "RESOURCE_EXHAUSTED: 21.64G exceeds available HBM (15.75G)"
        self.assertEqual(plan.refused_bytes(said), int(21.64 * plan.GIB))

    def test_flops_by_hand(self):
        text = tiny_job().policy.text
        heads, keys = text.num_attention_heads, text.num_key_value_heads
        linear = text.hidden_size * (
            2 * (heads + keys) * text.head_dim + 3 * text.intermediate_size
        )
        scores = 2 * heads * text.head_dim * 5
        expected = 2 * 10 * text.num_hidden_layers * (linear + scores)
        self.assertEqual(plan.decoder_flops(text, 10, 5, 0), expected)


if __name__ == "__main__":
    absltest.main()
