"""The notebooks run, and each .ipynb holds what its .py does."""

import json
import os
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest, parameterized

NOTEBOOKS = pathlib.Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.py"))


def _cells_of_script(text):
    body = text.split("# ---\n", 2)[2]
    for part in re.split(r"^# %%", body, flags=re.M)[1:]:
        head, _, source = part.partition("\n")
        source = source.strip("\n")
        if "[markdown]" in head:
            yield "markdown", re.sub(r"^# ?", "", source, flags=re.M)
        else:
            yield "code", source


class NotebooksTest(parameterized.TestCase):
    def test_there_are_some(self):
        self.assertNotEmpty(NAMES)

    @parameterized.parameters(*NAMES)
    def test_is_paired(self, name):
        script = (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
        self.assertEqual(found, list(_cells_of_script(script)), "run: jupytext --sync")

    @parameterized.parameters(*NAMES)
    def test_shows_what_a_run_from_top_to_bottom_gave(self, name):
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertEqual([cell["execution_count"] for cell in code], [*range(1, len(code) + 1)])
        kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
        self.assertNotEmpty(kinds)
        self.assertNotIn("error", kinds)

    @parameterized.parameters(*NAMES)
    def test_runs(self, name):
        run = subprocess.run(
            [sys.executable, NOTEBOOKS / f"{name}.py"],
            env=os.environ | {"MPLBACKEND": "agg", "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(run.returncode, 0, run.stderr[-2000:])


if __name__ == "__main__":
    absltest.main()
