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


def seconds(calls):
    """Median CPU and wall seconds of each call, the first ones left out; they take turns."""
    found = {name: {"cpu_s": [], "wall_s": []} for name in calls}
    for repeat in range(REPEATS + 1):
        for name, (function, *arguments) in calls.items():
            start = time.process_time(), time.perf_counter()
            jax.block_until_ready(function(*arguments))
            if repeat > 0:
                found[name]["cpu_s"].append(time.process_time() - start[0])
                found[name]["wall_s"].append(time.perf_counter() - start[1])
    return {
        name: {clock: float(np.median(values)) for clock, values in timing.items()}
        for name, timing in found.items()
    }


def largest_at_any_constant():
    """Largest advantage in constant groups of 2 to 64 rollouts, over random float32 patterns."""
    bits = np.random.default_rng(1).integers(0, 2**32, 1_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    groups = [np.repeat(values[:, None], size, axis=1) for size in range(2, 65)]
    found = jax.jit(lambda groups: [jnp.abs(group_advantages(x)).max() for x in groups])(groups)
    return float(np.max(found))


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
    timings = seconds(
        {
            "textbook": (textbook, on_device),
            "ours": (ours, on_device),
            "ours_with_valid": (ours, on_device, valid),
        }
    )
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
        "largest_in_constant_groups_of_2_to_64": largest_at_any_constant(),
        "timings": timings,
        "cpu_ratio": {name: t["cpu_s"] / base for name, t in timings.items()},
        "at_most": {"ours": 2.0, "ours_with_valid": 4.0},
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
