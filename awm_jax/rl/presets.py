"""Named objectives as plain keyword dicts: what to pass to advantages, policy loss and KL.

Each has the same entries:

  advantages        for `advantages.group_advantages`
  policy            for `losses.clipped_policy_loss`
  kl                for `losses.kl_penalty`
  off_policy_kl     whether `kl_penalty` gets `old_log_probs` too
  kl_coefficient    its weight in `losses.combine`; 0 needs no reference model

`awm` is what the paper describes. The others reproduce the defaults of other trainers, to
compare with them; where these are known to be unfortunate it is said.
"""

AWM = {
    # The paper, sections 3.1 and C.6: deviation over n, epsilon 1e-6.
    "advantages": {"epsilon": 1e-6, "ddof": 0, "scale_by_std": True},
    # Not in the paper. Clip range of its first author's public precursor; the average over
    # tokens is DAPO's.
    "policy": {"clip_low": 0.2, "clip_high": 0.28, "aggregate": "token"},
    # Coefficient of the precursor, which used k3; k2 has the gradient of the KL itself.
    "kl": {"estimator": "k2", "aggregate": "token"},
    "kl_coefficient": 0.001,
    "off_policy_kl": False,
}

# TRL 1.16.0, GRPOConfig defaults (loss_type "dapo", beta 0, and with a beta k3 times ratio).
TRL = {
    "advantages": {"epsilon": 1e-4, "ddof": 1, "scale_by_std": True},
    "policy": {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"},
    "kl": {"estimator": "k3", "aggregate": "token"},
    "kl_coefficient": 0.0,
    "off_policy_kl": True,
}

# Tunix 0.1.7, GRPOConfig defaults. Its KL term, k1 inside the loss, has no expected gradient.
TUNIX = {
    "advantages": {"epsilon": 1e-6, "ddof": 1, "scale_by_std": True},
    "policy": {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "sequence"},
    "kl": {"estimator": "k1", "aggregate": "sequence"},
    "kl_coefficient": 0.04,
    "off_policy_kl": False,
}

# DAPO (https://arxiv.org/abs/2503.14476, sections 3.1 and 3.3) with verl's deviation over n - 1.
# Its resampling of groups without spread and its overlong penalty are not losses.
DAPO = {
    "advantages": {"epsilon": 1e-6, "ddof": 1, "scale_by_std": True},
    "policy": {"clip_low": 0.2, "clip_high": 0.28, "aggregate": "token"},
    "kl": {"estimator": "k2", "aggregate": "token"},
    "kl_coefficient": 0.0,
    "off_policy_kl": False,
}

# Dr. GRPO (https://arxiv.org/abs/2503.20783, section 3.2): no deviation, and a constant in
# place of the length. Set it to the longest response that the sampler may give.
DR_GRPO = {
    "advantages": {"epsilon": 0.0, "ddof": 0, "scale_by_std": False},
    "policy": {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregate": "fixed_length",
        "fixed_length": 1024,
    },
    "kl": {"estimator": "k2", "aggregate": "fixed_length", "fixed_length": 1024},
    "kl_coefficient": 0.0,
    "off_policy_kl": False,
}

PRESETS = {"awm": AWM, "trl": TRL, "tunix": TUNIX, "dapo": DAPO, "dr_grpo": DR_GRPO}
