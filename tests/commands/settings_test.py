"""The settings beside the full agent: which pages the policy is shown."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from awm_jax import types
from awm_jax.agent import records
from awm_jax.commands import evaluate
from configs import tiny_world_direct, tiny_world_rag
from tests.server_double import ServerDouble


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters((tiny_world_direct, 12), (tiny_world_rag, 3))
    def test_pages_shown_and_answer_scored(self, module, pages):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        double = self.enterContext(ServerDouble(lambda body: "50").running())
        config = module.get_config()
        config.run_dir, config.data.root = str(folder / "run"), str(folder / "world")
        config.data.split, config.data.documents = "dev", 1
        config.policy.checkpoint = config.reader.checkpoint = double.url
        evaluate.run(config)
        summary = json.loads((folder / "run" / "summary.json").read_text())
        self.assertEqual(summary["statuses"], {"answered": 4})
        self.assertEqual(summary["rows"][0]["variant"], config.setting)
        for record in records.read_records(folder / "run" / "trajectories.jsonl"):
            self.assertEqual(record.trajectory.final_answer, "50")
            self.assertLen(record.trajectory.turns, 1)
        images = [json.dumps(body).count('image_url": {') for body in double.bodies()]
        self.assertEqual(max(images), pages)

    def test_gold_pages_are_given_whatever_the_query(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        search = '<tool_call>\n{"name": "search_pages", "arguments": {"query": "x"}}\n</tool_call>'
        double = self.enterContext(ServerDouble(lambda body: search).running())
        config = tiny_world_rag.get_config()
        config.setting, config.rollout.max_steps = "evidence_given", 1
        config.run_dir, config.data.root = str(folder / "run"), str(folder / "world")
        config.data.split, config.data.documents = "dev", 1
        config.policy.checkpoint = config.reader.checkpoint = double.url
        evaluate.run(config)
        for record in records.read_records(folder / "run" / "trajectories.jsonl"):
            (turn,) = record.trajectory.turns
            shown = tuple(part.number for part in turn.observation if isinstance(part, types.Page))
            self.assertEqual(shown, record.trajectory.question.evidence_pages)

    def test_another_setting_is_refused(self):
        config = tiny_world_rag.get_config()
        config.setting = "oracle"
        with self.assertRaisesRegex(
            ValueError, "'oracle': expected agent, evidence_given, rag or direct"
        ):
            evaluate._roll_out(config, None, None)


if __name__ == "__main__":
    absltest.main()
