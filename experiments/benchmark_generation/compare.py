"""Prefill, decode, turns, gradients and page features beside HF and Tunix; prints one JSON object.

Each side stays in a process and an environment of its own and does one case when told to. The
sides take turns, so that a busy machine slows all of them alike; the least CPU seconds count.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import worker

HERE = pathlib.Path(__file__).parent
PROMPT = 192
# Room for the same prompts and new tokens, and four times as much.
SLOTS = (256, 1024)


class Side:
    """A worker process."""

    def __init__(self, python, script, folder):
        self.process = subprocess.Popen(
            [python, HERE / script, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[1]} ended with {self.process.wait()}")
        return json.loads(line)

    def __call__(self, **case):
        print(json.dumps(case), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def least(sides, repeats, **case):
    """Least CPU seconds of a case by side, the first call left out."""
    seconds = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            found = side(**case)["cpu_s"]
            if repeat > 0:
                seconds[name].append(found)
    return {name: min(values) for name, values in seconds.items()}


def speeds(sides, batch, slots, repeats):
    """Tokens a CPU second by side: (prompts read, tokens sampled)."""
    new = worker.SAMPLED_ALONE
    one = least(sides, repeats, batch=batch, prompt=PROMPT, new=1, slots=slots)
    more = least(sides, repeats, batch=batch, prompt=PROMPT, new=new, slots=slots)
    return {
        name: {
            "prefill": batch * PROMPT / one[name],
            "decode": batch * (new - 1) / (more[name] - one[name]),
        }
        for name in sides
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="weights, by benchmark_rl/step_inputs.py")
    parser.add_argument("--tunix", required=True, help="Python with google-tunix")
    parser.add_argument("--hf", required=True, help="Python with torch and transformers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    programs = {
        "awm_jax": (sys.executable, "side_awm.py"),
        "tunix": (options.tunix, "side_tunix.py"),
        "hf": (options.hf, "side_hf.py"),
    }
    # Compilation counts in the turns: each in a fresh process.
    turns = {}
    for name in ("awm_jax", "tunix"):
        side = Side(*programs[name], options.folder)
        turns[name] = side(name="turns")
        side.close()
    sides = {name: Side(*program, options.folder) for name, program in programs.items()}
    by_size = {
        f"batch {batch}, cache {slots}": speeds(sides, batch, slots, options.repeats)
        for slots, batches in zip(SLOTS, (worker.BATCHES, (8,)), strict=True)
        for batch in batches
    }
    ours = {"awm_jax": sides["awm_jax"]}
    gradient = least(
        {name: sides[name] for name in ("awm_jax", "hf")}, options.repeats, name="gradient"
    )
    losses = {name: sides[name](name="gradient")["result"] for name in gradient}
    pages = {
        rollouts: least(ours, options.repeats, name=f"pages of {rollouts}")["awm_jax"]
        for rollouts in (1, 8)
    }
    versions = {name: side.versions for name, side in sides.items()}
    for side in sides.values():
        side.close()
    eight = by_size["batch 8, cache 256"]
    decode = {name: eight[name]["decode"] for name in eight}
    found = {
        "decode at batch 8 over Tunix": (decode["awm_jax"] / decode["tunix"], "at least", 5),
        "decode at batch 8 over HF": (decode["awm_jax"] / decode["hf"], "at least", 5),
        "decode's time, cache 1,024 over 256": (
            decode["awm_jax"] / by_size["batch 8, cache 1024"]["awm_jax"]["decode"],
            "at most",
            1.1,
        ),
        "six turns over Tunix": (
            turns["awm_jax"]["cpu_s"] / turns["tunix"]["cpu_s"],
            "at most",
            1 / 3,
        ),
        "programs of six turns": (turns["awm_jax"]["result"], "at most", 4),
        "vision of 8 rollouts over 1": (pages[8] / pages[1], "at most", 1.3),
        "forward and backward over HF": (gradient["awm_jax"] / gradient["hf"], "at most", 1),
    }
    report = {
        "versions": versions,
        "tokens_per_cpu_second": by_size,
        "turns_cpu_s": {name: result["cpu_s"] for name, result in turns.items()},
        "gradient_cpu_s": gradient,
        "gradient_loss": losses,
        "pages_cpu_s": pages,
        "aims": {
            name: {
                "found": value,
                kind: bar,
                "holds": value >= bar if kind == "at least" else value <= bar,
            }
            for name, (value, kind, bar) in found.items()
        },
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
