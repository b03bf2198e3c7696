# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What the reward does to the advantages
#
# GRPO does not see rewards. It sees each reward relative to its group, in units of the group's
# spread. This notebook asks what that makes of the four outcome cells of AWM
# (answer right or wrong, memory answerable or not), with the exact law of
# `awm_jax.rl.simulation`: every composition of a group, weighted by its probability. Nothing is
# sampled, so no difference you see is noise.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from awm_jax.rl import advantages, rewards, simulation

CELLS = ("Ans ✗ Mem ✗", "Ans ✗ Mem ✓", "Ans ✓ Mem ✗", "Ans ✓ Mem ✓")
COLOURS = ("#7f7f7f", "#2e8b57", "#c0392b", "#1f5fa8")
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9})


def mixture_with(supported):
    """Cells (0,0), (0,1), (1,0), (1,1); the mixed cells keep 0.05 each, as in the paper's C.6."""
    return np.array([0.9 - supported, 0.05, 0.05, supported])


supported_shares = np.linspace(0.02, 0.88, 15)

# %% [markdown]
# ## Which cells are pushed up, as the policy gets better
#
# On the left, the mean advantage of each cell as the share of supported-correct rollouts grows. On
# the right the same under an answer-only reward, which cannot tell blue from red or green from
# grey. A cell changes sign where the expected group mean passes its reward: first green, then red,
# as section 3.2 says.


# %%
def mean_advantages(cells, **options):
    laws = [
        simulation.exact_advantages(mixture_with(p), cells=cells, **options)
        for p in supported_shares
    ]
    return np.stack([law.cell_mean for law in laws])


figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axis, (name, cells) in zip(
    axes, (("AWM", rewards.AWM), ("answer only", rewards.ANSWER_ONLY)), strict=True
):
    for cell, means in enumerate(mean_advantages(cells).T):
        style = "--" if name == "answer only" and cell in (1, 2) else "-"
        axis.plot(supported_shares, means, style, color=COLOURS[cell], label=CELLS[cell])
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set(title=name, xlabel="share of supported-correct rollouts")
axes[0].set_ylabel("mean advantage")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## When exactly does each cell change sign?
#
# $A_z > 0$ iff $r_z > \mu_g$. The bars show the group means at which each cell still has a positive
# advantage.

# %%
group_means = np.linspace(-1.1, 2.1, 321)
positive = np.asarray(rewards.positive_cells(group_means))
figure, axis = plt.subplots(figsize=(9, 1.6))
for cell in range(4):
    last = group_means[positive[:, cell]].max()
    axis.barh(CELLS[cell], last + 1.1, left=-1.1, color=COLOURS[cell], height=0.6)
axis.set_xlabel("group mean reward")
plt.show()

# %% [markdown]
# ## Three preferences, in units of the spread
#
# Section 3.1 asks for three pairwise preferences, and section 3.2 gives each a margin: a difference
# of two rewards over the group's spread. The answer-only reward has the middle one alone.

# %%
spread = 1.0
for name, cells in (("AWM", rewards.AWM), ("answer only", rewards.ANSWER_ONLY)):
    print(name)
    for preference, margin in rewards.margins(cells, spread)._asdict().items():
        print(f"  {preference:<22} {float(margin):.2f}")

# %% [markdown]
# ## The three knobs
#
# One of beta, gamma and omega at a time, in the paper's middle mixture. `beta` widens the gap
# between the two right answers, at the expense of everything else in units of the spread.
# `omega` decides how much an unresolved error pulls the mixed cells up. `gamma` moves green between
# grey and red and little else.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
knobs = (
    ("supported_correct", "beta", np.linspace(0.25, 4, 12)),
    ("answering_error", "gamma", np.linspace(-0.95, -0.02, 12)),
    ("unresolved_error", "omega", np.linspace(-4, -0.15, 12)),
)
for axis, (field, letter, values) in zip(axes, knobs, strict=True):
    means = []
    for value in values:
        cells = rewards.AWM._replace(**{field: float(value)})
        rewards.check_order(cells)
        means.append(simulation.exact_advantages(mixture_with(0.3), cells=cells).cell_mean)
    for cell, line in enumerate(np.stack(means).T):
        axis.plot(values, line, color=COLOURS[cell])
    axis.axvline(getattr(rewards.AWM, field), color="black", linewidth=0.6, linestyle=":")
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xlabel(letter)
axes[0].set_ylabel("mean advantage")
plt.show()

# %% [markdown]
# ## Group size
#
# In small groups many carry no signal at all. Larger groups show the mixture as it is; the
# advantages no longer depend on luck.

# %%
sizes = (2, 4, 8, 16, 32)
figure, axes = plt.subplots(1, 2, figsize=(9, 3))
for name, cells, style in (("AWM", rewards.AWM, "o-"), ("answer only", rewards.ANSWER_ONLY, "s--")):
    share = [rewards.signal_share(mixture_with(0.08), cells, group_size=size) for size in sizes]
    axes[0].plot(sizes, share, style, color="black", label=name)
axes[0].set(xscale="log", xlabel="group size", ylabel="groups with a signal", xticks=sizes)
axes[0].set_xticklabels(sizes)
axes[0].minorticks_off()
axes[0].legend(frameon=False)
spreads = np.stack(
    [simulation.exact_advantages(mixture_with(0.3), group_size=n).cell_std for n in sizes[:4]]
)
for cell in range(4):
    axes[1].plot(sizes[:4], spreads[:, cell], "o-", color=COLOURS[cell])
axes[1].set(xlabel="group size", ylabel="std of the advantage within a cell")
plt.show()

# %% [markdown]
# ## `ddof` and `epsilon`
#
# The paper's sigma divides by n (`ddof=0`); TRL, Tunix and verl divide by n - 1. In a group of 8
# every advantage shrinks by $\sqrt{7/8} = 0.935$: a learning-rate factor. `epsilon` is not one: it
# matters only where the spread is comparable to it, and 1e-6 against a least spread of 0.03 (one
# -0.1 among seven 0) is nothing. What does matter is that a group without spread gives exactly 0,
# which float32 arithmetic does not do by itself.

# %%
n, n_minus_1 = (
    simulation.exact_advantages(mixture_with(0.3), ddof=ddof).cell_mean for ddof in (0, 1)
)
print("ratio of the mean advantages:", np.round(n_minus_1 / n, 4))


@jax.jit
def textbook(group):
    mean, std = (f(group, axis=1, keepdims=True) for f in (jnp.mean, jnp.std))
    return (group - mean) / (std + 1e-6)


for reward in (-0.1, 0.7):
    constant = np.full((1, 8), reward, np.float32)
    naive, exact = textbook(constant), advantages.group_advantages(constant)
    print(f"eight times {reward}: textbook {naive[0, 0]:.4f}, here {exact[0, 0]:.4f}")
