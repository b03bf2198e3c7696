"""The four-cell reward (the AWM paper, section 3.2), what follows from it, and its variants.

A trajectory has two binary outcomes: `answer_correct` (the paper's s_ans) and
`memory_answerable` (s_mem: the frozen reader answers correctly from the terminal memory
alone). Arrays over the four cells are in the order of appendix C.6:
(0, 0), (0, 1), (1, 0), (1, 1) of (answer, memory).
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class CellRewards(NamedTuple):
    """Reward of each outcome cell; the defaults are the paper's (section 3.2).

    Attributes:
      supported_correct: r11, answer right and memory answerable (beta).
      missing_correct: r10, answer right, memory not answerable (the anchor).
      answering_error: r01, answer wrong, memory answerable (gamma).
      unresolved_error: r00, both wrong (omega).
    """

    supported_correct: float = 2.0
    missing_correct: float = 0.0
    answering_error: float = -0.1
    unresolved_error: float = -1.0


AWM = CellRewards()
ANSWER_ONLY = CellRewards(1.0, 1.0, 0.0, 0.0)


class Margins(NamedTuple):
    """The three pairwise preferences of section 3.1 as differences of advantages.

    Attributes:
      memory_refinement: A11 - A10, zero under an answer-only reward.
      final_answer_gate: A10 - A01.
      useful_memory_failure: A01 - A00, zero under an answer-only reward.
    """

    memory_refinement: jax.Array
    final_answer_gate: jax.Array
    useful_memory_failure: jax.Array


class JudgePasses(NamedTuple):
    """Model passes that scoring costs on top of answer-only GRPO (appendix C.4).

    Attributes:
      reader: answers written from memory alone.
      scorer: scores given to those answers.
      grounding: checks of one finding against its page.
    """

    reader: jax.Array
    scorer: jax.Array
    grounding: jax.Array


def check_order(cells: CellRewards) -> None:
    """Refuses cells that do not give the paper's preferences (section 3.2).

    Raises:
      ValueError: unless beta > r10 > gamma > omega, all of them finite.
    """
    beta, anchor, gamma, omega = cells
    if not (all(map(math.isfinite, cells)) and beta > anchor > gamma > omega):
        raise ValueError(
            "cell rewards must be finite and fall from one cell to the next: supported_correct "
            "> missing_correct > answering_error > unresolved_error; "
            f"found {beta} , {anchor} , {gamma} , {omega}"
        )


def awm_reward(
    answer_correct: chex.ArrayTree, memory_answerable: chex.ArrayTree, cells: CellRewards = AWM
) -> jax.Array:
    """The reward of each trajectory's cell, R_AWM(s_ans, s_mem).

    Args:
      answer_correct: any shape; bool, or a score of which any positive value counts as
        correct (section 2).
      memory_answerable: same shape, likewise.
      cells: the rewards.

    Returns:
      Same shape, float32.
    """
    answer, memory = jnp.asarray(answer_correct) > 0, jnp.asarray(memory_answerable) > 0
    chex.assert_equal_shape([answer, memory])
    beta, anchor, gamma, omega = (jnp.float32(value) for value in cells)
    return jnp.where(answer, jnp.where(memory, beta, anchor), jnp.where(memory, gamma, omega))


def answer_only_reward(answer_correct: chex.ArrayTree) -> jax.Array:
    """The baseline's reward R_ans(s_ans) = s_ans: any shape -> same shape, float32."""
    return (jnp.asarray(answer_correct) > 0).astype(jnp.float32)


def cell_values(cells: CellRewards) -> jax.Array:
    """`[4]` float32 rewards in the order (0, 0), (0, 1), (1, 0), (1, 1)."""
    return jnp.array(cells[::-1], jnp.float32)


def cell_index(answer_correct: chex.ArrayTree, memory_answerable: chex.ArrayTree) -> jax.Array:
    """Index into `cell_values`: any shape -> same shape, int32."""
    answer, memory = jnp.asarray(answer_correct) > 0, jnp.asarray(memory_answerable) > 0
    return 2 * answer.astype(jnp.int32) + memory.astype(jnp.int32)


def margins(cells: CellRewards, group_std: float | jax.Array, *, epsilon=1e-6) -> Margins:
    """Normalised margins of section 3.2: each difference of rewards over (sigma_g + epsilon)."""
    beta, anchor, gamma, omega = cells
    scale = jnp.asarray(group_std, jnp.float32) + epsilon
    return Margins((beta - anchor) / scale, (anchor - gamma) / scale, (gamma - omega) / scale)


def positive_cells(group_mean: chex.ArrayTree, cells: CellRewards = AWM) -> jax.Array:
    """Which cells have a positive advantage at a group mean: A_z > 0 iff r_z > mu_g.

    Args:
      group_mean: `[...]`, mean reward of the group.
      cells: the rewards.

    Returns:
      `[..., 4]` bool.
    """
    mean = jnp.asarray(group_mean, jnp.float32)[..., None]
    return jnp.broadcast_to(cell_values(cells), (*mean.shape[:-1], 4)) > mean


def signal_share(
    mixture: chex.ArrayTree, cells: CellRewards = AWM, *, group_size: int = 8
) -> jax.Array:
    """Share of groups in which not all rewards are equal, so that they carry a signal (C.5).

    One minus the probability that all rollouts fall into one reward level; an answer-only
    reward has two levels, AWM four.

    Args:
      mixture: `[4]` probabilities of the cells.
      cells: the rewards.
      group_size: rollouts a group.
    """
    mixture, values = jnp.asarray(mixture, jnp.float32), cell_values(cells)
    level = jnp.where(values[:, None] == values[None, :], mixture[None, :], 0.0).sum(axis=1)
    return 1.0 - jnp.sum(mixture * level ** (group_size - 1))


def graded_reward(
    answer_correct: chex.ArrayTree, memory_share: chex.ArrayTree, cells: CellRewards = AWM
) -> jax.Array:
    """The reward with a memory score between 0 and 1 (variants of appendix C.3; off by default).

    Linear between the two cells of the answer, so it is the expected `awm_reward` when the
    memory is answerable with that probability. What to pass:

    * The mean of K reader rollouts, less noisy than one, at K times the reader's and the
      scorer's passes.
    * `memory_answerable * grounding_share(...)`, finer, at one scorer pass a finding with a
      page image, and tied to the schema of findings.

    Args:
      answer_correct: any shape.
      memory_share: same shape, in [0, 1].
      cells: the rewards.

    Returns:
      Same shape, float32.
    """
    answerable = awm_reward(answer_correct, jnp.ones(jnp.shape(answer_correct)), cells)
    missing = awm_reward(answer_correct, jnp.zeros(jnp.shape(answer_correct)), cells)
    share = jnp.asarray(memory_share, jnp.float32)
    chex.assert_equal_shape([answerable, share])
    return share * answerable + (1.0 - share) * missing


def grounding_share(supported: chex.ArrayTree, written: chex.ArrayTree) -> jax.Array:
    """Share of the findings that their cited page supports (appendix C.3).

    Args:
      supported: `[..., finding]` bool, True where the page supports the finding.
      written: same shape, bool, False on padding.

    Returns:
      `[...]` float32; 0 for an empty memory, which supports nothing.
    """
    supported, written = jnp.asarray(supported, bool), jnp.asarray(written, bool)
    chex.assert_equal_shape([supported, written])
    return (supported & written).sum(-1) / jnp.maximum(written.sum(-1), 1)


def echo_penalty(
    similarity: chex.ArrayTree, written: chex.ArrayTree, *, weight=0.0, threshold=0.9
) -> jax.Array:
    """Penalty on findings that merely repeat the predicted answer (appendix C.3).

    Costs no model pass, but it also punishes a finding whose value *is* the answer, which is
    why the paper leaves it out; 0 with the default weight.

    Args:
      similarity: `[..., finding]` in [0, 1], of a finding's text to the predicted answer.
      written: same shape, bool, False on padding.
      weight: what a memory of echoes alone costs, in units of reward.
      threshold: similarity from which on a finding counts as an echo.

    Returns:
      `[...]` float32, not positive, to be added to the reward.
    """
    return -weight * grounding_share(jnp.asarray(similarity) >= threshold, written)


def judge_passes(
    judged: chex.ArrayTree, *, reader_rollouts: int = 1, findings: chex.ArrayTree = 0
) -> JudgePasses:
    """Counts the passes that rewards cost beyond scoring the answers (appendix C.4).

    Args:
      judged: bool, any shape, True for rollouts whose memory was judged.
      reader_rollouts: K answers read from each memory.
      findings: checked findings of each rollout, where grounding is checked at all.
    """
    rollouts = jnp.sum(jnp.asarray(judged, bool))
    reads = reader_rollouts * rollouts
    return JudgePasses(reads, reads, jnp.sum(jnp.where(judged, findings, 0)))
