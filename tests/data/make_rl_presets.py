"""Makes rl_presets.json: each preset's loss and gradient, in float64 and plain Python.

Shares no code and no library with what it checks: loops over tokens, formulas from the papers
and the documentation of TRL 1.16.0 and Tunix 0.1.7, gradients by central differences.

    python tests/data/make_rl_presets.py
"""

import json
import math
import pathlib
import random

GROUPS, SIZE, TIME = 3, 4, 5
STEP = 1e-6


def make_inputs():
    draw = random.Random(0)
    rows = GROUPS * SIZE
    old = [[-2.0 * draw.random() for _ in range(TIME)] for _ in range(rows)]
    new = [[x + draw.gauss(0.0, 0.25) for x in row] for row in old]
    ref = [[x + draw.gauss(0.0, 0.25) for x in row] for row in old]
    lengths = [draw.randint(1, TIME) for _ in range(rows)]
    cells = (2.0, 0.0, -0.1, -1.0)
    rewards = [[draw.choice(cells) for _ in range(SIZE)] for _ in range(GROUPS - 1)]
    rewards.append([-0.1] * SIZE)
    return {"new": new, "old": old, "ref": ref, "lengths": lengths, "rewards": rewards}


def group_advantages(rewards, ddof, epsilon, scale):
    result = []
    for group in rewards:
        if len(set(group)) == 1:
            result += [0.0] * len(group)
            continue
        mean = sum(group) / len(group)
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - ddof))
        result += [(r - mean) / (std + epsilon if scale else 1.0) for r in group]
    return result


def surrogate(new, old, advantage, low, high):
    ratio = math.exp(new - old)
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def per_row(inputs, token_loss):
    """Losses of a row's own tokens, row by row."""
    return [
        [
            token_loss(row, inputs["new"][row][t], inputs["old"][row][t], inputs["ref"][row][t])
            for t in range(inputs["lengths"][row])
        ]
        for row in range(GROUPS * SIZE)
    ]


def token_mean(rows):
    return sum(map(sum, rows)) / sum(map(len, rows))


def sequence_mean(rows):
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def awm(inputs):
    advantage = group_advantages(inputs["rewards"], 0, 1e-6, True)

    def token_loss(row, new, old, ref):
        # No KL where the group has no spread.
        kl = 0.5 * (new - ref) ** 2 if row < SIZE * (GROUPS - 1) else 0.0
        return surrogate(new, old, advantage[row], 0.2, 0.28) + 0.001 * kl

    return token_mean(per_row(inputs, token_loss))


def trl(inputs):
    advantage = group_advantages(inputs["rewards"], 1, 1e-4, True)
    return token_mean(
        per_row(inputs, lambda row, new, old, _: surrogate(new, old, advantage[row], 0.2, 0.2))
    )


def tunix(inputs):
    advantage = group_advantages(inputs["rewards"], 1, 1e-6, True)

    def token_loss(row, new, old, ref):
        return surrogate(new, old, advantage[row], 0.2, 0.2) + 0.04 * (new - ref)

    return sequence_mean(per_row(inputs, token_loss))


def dapo(inputs):
    advantage = group_advantages(inputs["rewards"], 1, 1e-6, True)
    return token_mean(
        per_row(inputs, lambda row, new, old, _: surrogate(new, old, advantage[row], 0.2, 0.28))
    )


def dr_grpo(inputs):
    advantage = group_advantages(inputs["rewards"], 0, 0.0, False)
    rows = per_row(inputs, lambda row, new, old, _: surrogate(new, old, advantage[row], 0.2, 0.2))
    return sum(map(sum, rows)) / (1024 * len(rows))


def gradient(objective, inputs):
    result = []
    for row, length in enumerate(inputs["lengths"]):
        slopes = [0.0] * TIME
        for t in range(length):
            centre = inputs["new"][row][t]
            totals = []
            for sign in (1, -1):
                inputs["new"][row][t] = centre + sign * STEP
                totals.append(objective(inputs))
            inputs["new"][row][t] = centre
            slopes[t] = round((totals[0] - totals[1]) / (2 * STEP), 9)
        result.append(slopes)
    return result


def main():
    inputs = make_inputs()
    expected = {
        objective.__name__: {"loss": objective(inputs), "gradient": gradient(objective, inputs)}
        for objective in (awm, trl, tunix, dapo, dr_grpo)
    }
    path = pathlib.Path(__file__).with_name("rl_presets.json")
    path.write_text(json.dumps({"inputs": inputs, "expected": expected}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
