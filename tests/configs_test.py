"""Configs agree where the paper says that its variants do."""

from absl.testing import absltest

from configs import (
    qwen3vl_4b_answer_grpo,
    qwen3vl_4b_awm_grpo,
    qwen3vl_4b_direct,
    qwen3vl_4b_rag,
    qwen3vl_4b_recipe,
    qwen3vl_4b_sft,
    tiny_world,
    tiny_world_answer_grpo,
    tiny_world_awm_grpo,
    tiny_world_direct,
    tiny_world_rag,
    tiny_world_recipe,
    tiny_world_sft,
)


def differences(left, right, path=""):
    """Paths of all values in which two configs differ, whole sections that one lacks included."""
    found = set()
    for name in left.keys() | right.keys():
        here = f"{path}.{name}".lstrip(".")
        if name not in left or name not in right:
            found.add(here)
        elif isinstance(left[name], dict) and isinstance(right[name], dict):
            found |= differences(left[name], right[name], here)
        elif left[name] != right[name]:
            found.add(here)
    return found


class VariantsTest(absltest.TestCase):
    def test_the_two_rewards_are_all_that_differs_in_grpo(self):
        answer, awm = (
            module.get_config().to_dict()
            for module in (tiny_world_answer_grpo, tiny_world_awm_grpo)
        )
        self.assertEqual(
            differences(answer, awm), {"run_dir", "rewards.answer_grpo", "rewards.awm_grpo"}
        )
        both = tiny_world.get_config().to_dict()
        self.assertEqual(differences(awm, both), {"run_dir", "rewards.answer_grpo"})

    def test_at_4b_the_agents_differ_in_training_and_reward_alone(self):
        answer, awm, sft, recipe = (
            module.get_config().to_dict()
            for module in (
                qwen3vl_4b_answer_grpo,
                qwen3vl_4b_awm_grpo,
                qwen3vl_4b_sft,
                qwen3vl_4b_recipe,
            )
        )
        self.assertEqual(
            differences(answer, awm), {"run_dir", "rewards.answer_grpo", "rewards.awm_grpo"}
        )
        self.assertEqual(differences(awm["rollout"], sft["rollout"]), set())
        # GRPO starts where SFT ends, on the groups that the recipe chose.
        self.assertEqual(awm["policy"]["checkpoint"], f"{sft['run_dir']}/policy")
        self.assertEqual(awm["train_data"]["root"], f"{recipe['run_dir']}/groups")

    def test_the_baselines_differ_in_the_setting(self):
        for direct, rag, free in (
            (tiny_world_direct, tiny_world_rag, {"sampler.prompt_buckets"}),
            (qwen3vl_4b_direct, qwen3vl_4b_rag, set()),
        ):
            found = differences(direct.get_config().to_dict(), rag.get_config().to_dict())
            self.assertEqual(found, {"run_dir", "setting"} | free)

    def test_the_variants_of_grpo_start_from_one_policy_and_differ_in_the_reward(self):
        config = tiny_world.get_config()
        self.assertEqual(set(config.rewards), {"answer_grpo", "awm_grpo"})
        self.assertEqual(config.rewards.answer_grpo, (1.0, 1.0, 0.0, 0.0))
        self.assertEqual(config.rewards.awm_grpo, (2.0, 0.0, -0.1, -1.0))

    def test_tiny_sft_and_recipe_share_the_agent_with_grpo(self):
        config, sft, recipe = (
            module.get_config() for module in (tiny_world, tiny_world_sft, tiny_world_recipe)
        )
        for other in (sft, recipe):
            self.assertEqual(other.rollout.to_dict(), config.rollout.to_dict())
            for name in ("dpi", "max_pixels", "root"):
                self.assertEqual(other.data[name], config.train_data[name])
        self.assertEqual(sft.policy.to_dict(), config.policy.to_dict())
        self.assertEqual(recipe.difficulty.checkpoint, config.policy.checkpoint)
        self.assertEqual(recipe.groups.samples, config.groups.group_size)
        self.assertEqual(recipe.groups.checkpoint, f"{sft.run_dir}/policy")
        self.assertEqual(sft.trajectories, (f"{recipe.run_dir}/split/sft.jsonl",))

    def test_sft_at_4b_teaches_what_the_recipe_at_4b_makes(self):
        sft, recipe = qwen3vl_4b_sft.get_config(), qwen3vl_4b_recipe.get_config()
        self.assertEqual(sft.rollout.to_dict(), recipe.rollout.to_dict())
        self.assertEqual(sft.data.max_pixels, recipe.data.max_pixels)
        self.assertEqual(sft.trajectories, (f"{recipe.run_dir}/split/sft.jsonl",))
        self.assertEqual(sft.data.root, f"{recipe.run_dir}/questions")
        self.assertEqual(recipe.groups.server.model, f"{sft.run_dir}/policy")
        self.assertEqual((recipe.questions.count, recipe.split.count), (2000, 994))

    def test_tiny_and_4b_have_the_same_shape(self):
        for tiny, large in (
            (tiny_world_sft, qwen3vl_4b_sft),
            (tiny_world_recipe, qwen3vl_4b_recipe),
        ):
            self.assertEqual(set(tiny.get_config()), set(large.get_config()))


if __name__ == "__main__":
    absltest.main()
