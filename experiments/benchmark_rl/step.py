"""One update's loss and full gradient, here and in two other trainers, on equal weights.

Each trainer stays in a process and an environment of its own and does one step when told to;
the steps take turns, so that a busy machine slows all of them alike. Prints one JSON object.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# Ours over theirs, at most.
BARS = {"tunix": {"cpu_s": 0.75, "temporaries_mib": 0.5}, "trl": {"cpu_s": 0.3}}


class Side:
    """A worker process and what it has answered."""

    def __init__(self, python, script, folder):
        self.process = subprocess.Popen(
            [python, HERE / script, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()
        self.steps = []

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[1]} ended with {self.process.wait()}")
        return json.loads(line)

    def step(self):
        print(file=self.process.stdin, flush=True)
        self.steps.append(self._answer())

    def report(self):
        self.process.stdin.close()
        self.process.wait()
        seconds = [step["cpu_s"] for step in self.steps]
        return self.facts | {
            "cpu_s": statistics.median(seconds),
            "cpu_s_least": min(seconds),
            "cpu_s_all": seconds,
            "peak_rss_mib": self.steps[-1]["peak_rss_mib"],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="weights and batch, by step_inputs.py")
    parser.add_argument("--tunix", required=True, help="Python with google-tunix")
    parser.add_argument("--trl", required=True, help="Python with TRL")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    sides = {
        "awm_jax": Side(sys.executable, "step_awm.py", options.folder),
        "tunix": Side(options.tunix, "step_tunix.py", options.folder),
        "trl": Side(options.trl, "step_trl.py", options.folder),
    }
    for _ in range(options.repeats):
        for side in sides.values():
            side.step()
    reports = {name: side.report() for name, side in sides.items()}
    ours = reports["awm_jax"]
    ratios = {
        peer: {quantity: ours[quantity] / reports[peer][quantity] for quantity in bars}
        for peer, bars in BARS.items()
    }
    agreement = {
        peer: {
            quantity: abs(ours[quantity] - reports[peer][quantity]) / abs(reports[peer][quantity])
            for quantity in ("loss", "grad_norm", "entropy")
        }
        for peer in BARS
    }
    holds = {
        peer: {quantity: ratios[peer][quantity] <= bar for quantity, bar in bars.items()}
        for peer, bars in BARS.items()
    }
    print(
        json.dumps(
            {
                "trainers": reports,
                "ratios": ratios,
                "at_most": BARS,
                "holds": holds,
                "relative_difference": agreement,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
