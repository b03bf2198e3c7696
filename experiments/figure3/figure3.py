"""Figure 3 of the paper: advantages under three outcome mixtures, drawn and enumerated.

Rows are the mixtures of appendix C.6, columns the answer-only reward and AWM. Lines are the
exact law, smoothed for the eye; dots are 15,000 simulated groups, smoothed in the same way.
"""

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from awm_jax.rl import rewards, simulation

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = pathlib.Path(__file__).parent
MIXTURES = (
    (0.82, 0.05, 0.05, 0.08),
    (0.60, 0.05, 0.05, 0.30),
    (0.30, 0.05, 0.05, 0.60),
)
CELLS = ("Ans ✗ Mem ✗", "Ans ✗ Mem ✓", "Ans ✓ Mem ✗", "Ans ✓ Mem ✓")
COLOURS = ("#7f7f7f", "#2e8b57", "#c0392b", "#1f5fa8")
SCHEMES = (("Answer-only", rewards.ANSWER_ONLY), ("AWM", rewards.AWM))
BANDWIDTH = 0.12


def density(values, weights, at):
    """Gaussian kernels on the points of a law, `[point]` -> `[len(at)]`."""
    # Equal advantages that differ by rounding are one point: 120 kernels instead of 120,000.
    points, where = np.unique(np.round(values, 4), return_inverse=True)
    weight = np.bincount(where.reshape(-1), weights)
    kernel = np.exp(-(((at[:, None] - points[None, :]) / BANDWIDTH) ** 2) / 2.0)
    return kernel @ weight / (BANDWIDTH * np.sqrt(2.0 * np.pi))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group_count", type=int, default=15_000)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    options = parser.parse_args()

    figure, axes = plt.subplots(3, 2, figsize=(9, 8), sharex=True, constrained_layout=True)
    at = np.linspace(-3.2, 3.2, 400)
    rows = []
    for row, mixture in enumerate(MIXTURES):
        for column, (scheme, cells) in enumerate(SCHEMES):
            exact = simulation.exact_advantages(mixture, cells=cells, group_size=options.group_size)
            key = jax.random.fold_in(jax.random.key(options.seed), 2 * row + column)
            drawn = simulation.simulate_advantages(
                key,
                jnp.array(mixture),
                cells=cells,
                group_count=options.group_count,
                group_size=options.group_size,
            )
            axis = axes[row, column]
            # Answer-only cannot tell the cells of one answer apart: one curve for each answer.
            shown = (0, 3) if scheme == "Answer-only" else range(4)
            for cell in shown:
                label = CELLS[cell][:5] if scheme == "Answer-only" else CELLS[cell]
                axis.plot(
                    at,
                    density(exact.values[cell], exact.weights[cell], at),
                    color=COLOURS[cell],
                    label=label,
                )
                axis.plot(
                    at[::8],
                    density(
                        np.asarray(drawn.values[cell]), np.asarray(drawn.weights[cell]), at[::8]
                    ),
                    ".",
                    color=COLOURS[cell],
                    markersize=3,
                )
            axis.axvline(0.0, color="black", linewidth=0.6)
            axis.set_yticks([])
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.set_title(f"{scheme}, $p_{{11}} = {mixture[3]}$", fontsize=10, loc="left")
            signal = float(rewards.signal_share(mixture, cells, group_size=options.group_size))
            for cell in range(4):
                rows.append(
                    {
                        "p11": mixture[3],
                        "reward": scheme,
                        "cell": CELLS[cell],
                        "exact_mean": float(exact.cell_mean[cell]),
                        "simulated_mean": float(drawn.cell_mean[cell]),
                        "exact_std": float(exact.cell_std[cell]),
                        "exact_share_positive": float(exact.share_positive[cell]),
                        "groups_with_a_signal": signal,
                    }
                )
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 1].legend(frameon=False, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("advantage")
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "figure3.png", dpi=130)
    (options.out / "results.json").write_text(
        json.dumps(
            {
                "group_count": options.group_count,
                "group_size": options.group_size,
                "seed": options.seed,
                "jax": jax.__version__,
                "rows": rows,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n",
        encoding="utf-8",
    )
    lines = [
        "| p11 | reward | cell | mean, exact | mean, drawn | std | share > 0 | signal |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        lines.append(
            f"| {r['p11']:.2f} | {r['reward']} | {r['cell']} | {r['exact_mean']:+.3f} | "
            f"{r['simulated_mean']:+.3f} | {r['exact_std']:.3f} | "
            f"{r['exact_share_positive']:.3f} | {r['groups_with_a_signal']:.3f} |"
        )
    (options.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
