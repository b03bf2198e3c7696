"""AWM-GRPO in JAX/Flax: document agents that leave notes one can answer from.

The public names, by the part of the paper they belong to:

  memory-only answerability (section 2)
    awm_jax.evaluation.cells: summarize, wilson_interval, CellSummary
    awm_jax.judging.mmlongbench, awm_jax.judging.longdocurl: score
    awm_jax.judging.reader: read_memories
  the reward and its advantages (section 3)
    awm_jax.rl.rewards: awm_reward, answer_only_reward, CellRewards, check_order
    awm_jax.rl.advantages: group_advantages, segment_advantages
    awm_jax.rl.losses: clipped_policy_loss, kl_penalty
    awm_jax.rl.log_probs: token_log_probs
    awm_jax.rl.simulation: simulate_advantages, exact_advantages
  the agent (section 2, appendix B)
    awm_jax.agent.rollout: run_rollouts
    awm_jax.types: the records that all of it speaks in
  models
    awm_jax.models.hf: load_model, save_model
"""

__version__ = "0.1.0"
