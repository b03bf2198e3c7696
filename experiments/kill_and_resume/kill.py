"""Kills the tiny run at random moments and compares what comes out with a run left alone.

Everything is imported once and each attempt is a fork of that, made before JAX has a device. An
attempt that has begun to train is killed (SIGKILL) after a random time, the next one goes on, and
so until the run is whole; then another run begins, until there were enough kills.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

from awm_jax.commands import train
from awm_jax.training import lines
from configs import tiny_world_awm_grpo

STEPS = 4
QUESTIONS, GROUP, AT_ONCE = 2, 4, 4


def make_config(work: pathlib.Path, name: str):
    """The tiny world's own policy and reader on as little as has a gradient."""
    config = tiny_world_awm_grpo.get_config()
    config.run_dir, config.steps = str(work / name), STEPS
    for data, split in ((config.train_data, "train"), (config.eval_data, "dev")):
        data.split, data.documents, data.root = split, 1, str(work / "worlds" / split)
    config.train_data.documents = 6
    config.groups.questions_per_step, config.groups.group_size = QUESTIONS, GROUP
    config.groups.rollouts_at_once, config.pages_at_once = AT_ONCE, 1
    config.sampler.prompt_buckets, config.sampler.batch_buckets = (192,), (8,)
    config.reader.sampler.prompt_buckets, config.reader.sampler.batch_buckets = (640,), (8,)
    config.packing.rows, config.packing.image_tokens = 6, 768
    config.packing.target_rows = 36
    return config


def fork(work: pathlib.Path, name: str) -> int:
    """Starts or resumes the run in a process of its own, whose output goes to a file."""
    if child := os.fork():
        return child
    status = 1
    try:
        log = os.open(work / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        train.run(make_config(work, name))
        status = 0
    finally:
        os._exit(status)


def ended(child: int) -> bool:
    """Whether the process ended by itself; an error ends everything."""
    found, status = os.waitpid(child, os.WNOHANG)
    if found and status:
        raise RuntimeError(f"the run failed with status {status}; its log says why")
    return bool(found)


def attempt(work: pathlib.Path, name: str, longest: float, chance: random.Random) -> dict | None:
    """One attempt: where it was killed, or None where it went to its end."""
    folder = work / name / "awm_grpo"
    log = work / f"{name}.log"
    before = log.stat().st_size if log.exists() else 0
    child = fork(work, name)
    # The line of titles comes when all is loaded and the steps begin.
    while not log.exists() or b"P_mmc" not in log.read_bytes()[before:]:
        if ended(child):
            return None
        time.sleep(0.02)
    wait = chance.uniform(0, longest)
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if ended(child):
            return None
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    checkpoints = [path.name for path in (folder / "checkpoints").glob("*")]
    pending = sorted(folder.glob("pending/*.jsonl"), key=lambda path: int(path.stem))
    return {
        "run": name,
        "seconds": round(wait, 3),
        "checkpoint": max((int(n) for n in checkpoints if n.isdigit()), default=0),
        "checkpoint_in_the_writing": any(not n.isdigit() for n in checkpoints),
        "step": int(pending[-1].stem) if pending else None,
        "rollouts_on_disk": pending[-1].read_bytes().count(b"\n") if pending else 0,
    }


def outcome(work: pathlib.Path, name: str) -> dict[str, str | bool | int]:
    """What must be equal, by a program of its own: reading a checkpoint starts JAX."""
    shape = (str(n) for n in (STEPS, QUESTIONS, GROUP))
    program = [sys.executable, "-m", "experiments.kill_and_resume.outcome"]
    found = subprocess.run(
        [*program, work / name / "awm_grpo", *shape], check=True, stdout=subprocess.PIPE
    )
    return json.loads(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    chance = random.Random(args.seed)
    shutil.rmtree(args.work / "whole", ignore_errors=True)
    for kind in ("compiling", "whole"):
        # The first fills the cache of compiled programs.
        shutil.rmtree(args.work / kind, ignore_errors=True)
        os.waitpid(fork(args.work, kind), 0)
    expected = outcome(args.work, "whole")
    steps = lines.read(args.work / "whole" / "awm_grpo" / "metrics.jsonl")
    # Two of three attempts end within a step and a half, the others later.
    longest = 2.0 * max(line["seconds"] for line in steps)
    kills, runs = [], []
    while len(kills) < args.kills:
        name = f"killed-{len(runs)}"
        shutil.rmtree(args.work / name, ignore_errors=True)
        (args.work / f"{name}.log").unlink(missing_ok=True)
        while (kill := attempt(args.work, name, longest, chance)) is not None:
            kills.append(kill)
            print(json.dumps(kill), flush=True)
        found = outcome(args.work, name)
        equal = {key: found[key] == value for key, value in expected.items()}
        runs.append({"run": name, "equal": equal})
        print(json.dumps(runs[-1]), flush=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        results = {
            "kills": len(kills),
            "runs": len(runs),
            "all_equal": all(all(run["equal"].values()) for run in runs),
            "updates_with_gradient": expected["moved"],
            "each_rollout_once": expected["each_rollout_once"],
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "of_each_run": runs,
            "of_each_kill": kills,
        }
        args.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
