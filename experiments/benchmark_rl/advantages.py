"""`group_advantages` on 100,000 groups of 8 beside the textbook formula, both jitted."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from awm_jax.rl.advantages import group_advantages

GROUPS, SIZE, REPEATS = 100_000, 8, 30


@jax.jit
def textbook(rewards):
    mean = rewards.mean(axis=1, keepdims=True)
    return (rewards - mean) / (rewards.std(axis=1, keepdims=True) + 1e-6)


def seconds(function, *arguments):
    """Median CPU and wall seconds of a call, the first one left out."""
    jax.block_until_ready(function(*arguments))
    cpu, wall = [], []
    for _ in range(REPEATS):
        start = time.process_time(), time.perf_counter()
        jax.block_until_ready(function(*arguments))
        cpu.append(time.process_time() - start[0])
        wall.append(time.perf_counter() - start[1])
    return {"cpu_s": float(np.median(cpu)), "wall_s": float(np.median(wall))}


def main():
    rng = np.random.default_rng(0)
    rewards = rng.choice([2.0, 0.0, -0.1, -1.0], (GROUPS, SIZE), p=(0.3, 0.05, 0.05, 0.6))
    rewards = rewards.astype(np.float32)
    flat = (rewards == rewards[:, :1]).all(axis=1)
    on_device = jnp.asarray(rewards)
    valid = jnp.asarray(rng.random((GROUPS, SIZE)) < 0.9)
    ours = jax.jit(group_advantages)
    wide = rewards.astype(np.float64)
    std = np.where(flat, 1.0, wide.std(axis=1))[:, None]
    exact = (wide - wide.mean(axis=1, keepdims=True)) / (std + 1e-6)
    exact[flat] = 0.0
    found, plain = np.asarray(ours(on_device)), np.asarray(textbook(on_device))
    timings = {
        "textbook": seconds(textbook, on_device),
        "ours": seconds(ours, on_device),
        "ours_with_valid": seconds(ours, on_device, valid),
    }
    base = timings["textbook"]["cpu_s"]
    report = {
        "jax": jax.__version__,
        "groups": GROUPS,
        "group_size": SIZE,
        "constant_groups": int(flat.sum()),
        "largest_error": {
            "ours": float(np.abs(found - exact).max()),
            "textbook": float(np.abs(plain - exact).max()),
        },
        "largest_in_constant_groups": {
            "ours": float(np.abs(found[flat]).max()),
            "textbook": float(np.abs(plain[flat]).max()),
        },
        "timings": timings,
        "cpu_ratio": {name: t["cpu_s"] / base for name, t in timings.items()},
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
