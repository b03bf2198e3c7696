"""Digests of a finished run: exported parameters, checkpoint, rollouts and numbers, as JSON.

python -m experiments.kill_and_resume.outcome FOLDER STEPS QUESTIONS GROUP
"""

import hashlib
import json
import pathlib
import sys

import numpy as np
from orbax.checkpoint import v1 as ocp

from awm_jax.training import lines


def outcome(folder: pathlib.Path, steps: int, questions: int, group: int) -> dict:
    """What must be equal, and whether each rollout is there once."""
    exported = (folder / f"policy-{steps}" / "model.safetensors").read_bytes()
    with ocp.training.Checkpointer((folder / "checkpoints").absolute()) as checkpoints:
        state = checkpoints.load_checkpointables(steps)["state"]
    digest = hashlib.sha256()
    for leaf in _leaves(state):
        digest.update(np.asarray(leaf).tobytes())
    # What a process has compiled, sampled and remembers goes with it.
    own = ("seconds", "step_time", "tokens_per_second", "compiled", "cache/")
    numbers = [
        {key: value for key, value in line.items() if not key.startswith(own)}
        for line in lines.read(folder / "metrics.jsonl")
    ]
    rollouts = lines.read(folder / "trajectories.jsonl")
    seeds = [tuple(line["seed"]) for line in rollouts]
    wanted = [
        (0, step, question, index)
        for step in range(steps)
        for question in range(questions)
        for index in range(group)
    ]
    return {
        "parameters": hashlib.sha256(exported).hexdigest(),
        "checkpoint": digest.hexdigest(),
        "rollouts": hashlib.sha256(json.dumps(rollouts).encode()).hexdigest(),
        "numbers": hashlib.sha256(json.dumps(numbers).encode()).hexdigest(),
        "each_rollout_once": seeds == wanted,
        "moved": sum(line["grad_norm"] > 0 for line in numbers if "grad_norm" in line),
    }


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for name in sorted(tree) for leaf in _leaves(tree[name])]
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in _leaves(each)]
    return [] if tree is None else [tree]


if __name__ == "__main__":
    print(json.dumps(outcome(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))))
