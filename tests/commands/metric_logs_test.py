"""Logs beside the JSON lines: what they are given, and what is said where they are missing."""

import pathlib
import sys
import tempfile
import types
from unittest import mock

from absl.testing import absltest

from awm_jax.commands import metric_logs


class MetricLogsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "run" / "awm"

    def install(self, name, **contents):
        package = types.SimpleNamespace(**contents)
        self.enterContext(mock.patch.dict(sys.modules, {name: package}))

    def test_each_step_goes_to_each_log(self):
        writer, run = mock.Mock(), mock.Mock()
        self.install("tensorboardX", SummaryWriter=mock.Mock(return_value=writer))
        self.install("wandb", init=mock.Mock(return_value=run))
        names = ("tensorboard", "wandb")
        with metric_logs.open_logs(names, self.folder, done=2, config={"seed": 0}) as log:
            log({"step": 2, "reward": 0.5})
        writer.add_scalar.assert_any_call("reward", 0.5, 2)
        writer.close.assert_called_once()
        run.log.assert_called_once_with({"step": 2, "reward": 0.5}, step=2)
        run.finish.assert_called_once()
        made = sys.modules["wandb"].init.call_args.kwargs
        self.assertEqual((made["name"], made["config"]), ("run/awm", {"seed": 0}))
        # The same folder is the same run, so that a resumed one goes on.
        with metric_logs.open_logs(("wandb",), self.folder, done=3, config={}):
            self.assertEqual(sys.modules["wandb"].init.call_args.kwargs["id"], made["id"])

    def test_a_missing_package_is_named_with_its_extra(self):
        self.enterContext(mock.patch.dict(sys.modules, {"wandb": None}))
        with self.assertRaisesRegex(ValueError, r"needs the package wandb.*awm-jax\[wandb\]"):
            metric_logs.check(("wandb",))

    def test_an_unknown_log_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'mlflow': expected names of"):
            metric_logs.check(("mlflow",))


if __name__ == "__main__":
    absltest.main()
