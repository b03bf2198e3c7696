"""Files of one JSON object a line survive kills and forget what is made again."""

import pathlib
import tempfile

from absl.testing import absltest

from awm_jax.training import lines


class LinesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "metrics.jsonl"

    def test_what_was_appended_is_read(self):
        self.assertEqual(lines.read(self.path), [])
        lines.append(self.path, [{"step": 0, "name": "Grüße"}])
        lines.append(self.path, [{"step": 1}])
        self.assertEqual(lines.read(self.path), [{"step": 0, "name": "Grüße"}, {"step": 1}])

    def test_a_torn_last_line_is_left_out(self):
        lines.append(self.path, [{"step": 0}])
        with self.path.open("a") as file:
            file.write('{"step": 1, "rew')
        self.assertEqual(lines.read(self.path), [{"step": 0}])

    def test_keep_drops_what_is_not_wanted_and_the_torn_line(self):
        lines.append(self.path, [{"step": step} for step in range(4)])
        with self.path.open("a") as file:
            file.write('{"st')
        lines.keep(self.path, lambda line: line["step"] < 2)
        lines.append(self.path, [{"step": 9}])
        self.assertEqual([line["step"] for line in lines.read(self.path)], [0, 1, 9])


if __name__ == "__main__":
    absltest.main()
