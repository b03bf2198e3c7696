"""New weights for a server that makes the rollouts: SGLang's native endpoints, and proof.

The order is that of slime, the framework of SGLang's authors: pause, update with a flush of the
prefix cache, continue, then look. A server's word is not taken for it: some versions answered
"success" while weights were dropped, and a cache that was not flushed answers from the old ones.
So the version is read back, and log-probs of known tokens under the new weights are compared
with the trainer's. Where anything is amiss the server stays paused: nothing is sampled from
weights that nobody knows.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# (path on the server's host, the request's JSON object or None for a GET) -> the reply's.
Post = Callable[[str, Mapping[str, Any] | None], Mapping[str, Any]]


class HandoverError(RuntimeError):
    """The server does not have the weights that it was given; it was left paused."""


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Tokens whose log-probs are known under the new weights.

    Attributes:
      token_ids: `[time]` int32, text alone, of at least two tokens.
      log_probs: `[time - 1]` float32, of each token but the first given those before it, in
        nats, at temperature 1 over the whole vocabulary.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray

    def __post_init__(self):
        if len(self.token_ids) < 2 or len(self.log_probs) != len(self.token_ids) - 1:
            raise ValueError(
                f"{len(self.token_ids)} tokens and {len(self.log_probs)} log-probs: expected two "
                "tokens or more and a log-prob for each but the first"
            )


def hand_over(
    post: Post,
    checkpoint: str | os.PathLike,
    *,
    version: int,
    probe: Probe,
    tolerance: float = 0.05,
) -> float:
    """Makes the server take the weights of a checkpoint and checks that it did.

    Args:
      post: asks the server; `awm_jax.servers.post` with its server and a reader bound.
      checkpoint: as `models.hf.save_model` writes it, on a disk that the server sees.
      version: of the policy; the server must say it afterwards.
      probe: has to tell the new weights from the old ones.
      tolerance: on the mean absolute difference of the probe's log-probs, in nats. A server that
        computes in bfloat16 differs by some hundredths.

    Returns:
      The mean absolute difference that was found.

    Raises:
      HandoverError: it refused, says another version, or gives other log-probs.
    """
    post("/pause_generation", {"mode": "abort"})
    reply = post(
        "/update_weights_from_disk",
        {
            "model_path": os.fspath(checkpoint),
            "weight_version": str(version),
            "flush_cache": True,
            "abort_all_requests": True,
        },
    )
    if reply.get("success") is not True:
        raise HandoverError(f"{checkpoint}: the server refused: {reply.get('message', reply)}")
    post("/continue_generation", {})
    try:
        said = post("/get_weight_version", None).get("weight_version")
        if said != str(version):
            raise HandoverError(
                f"{checkpoint}: asked for version {version}, the server has {said!r}"
            )
        difference = _difference(post, probe)
        if not difference <= tolerance:
            raise HandoverError(
                f"{checkpoint}: the log-probs of {len(probe.log_probs)} tokens differ by "
                f"{difference:.3f} nats on average, at most {tolerance} was expected. The server "
                "says version "
                f"{version}, but has other weights, another dtype, or a cache of old ones"
            )
    except Exception:
        post("/pause_generation", {"mode": "abort"})
        raise
    return difference


def _difference(post: Post, probe: Probe) -> float:
    """Mean absolute difference of the log-probs, in nats; NaN where the server gives NaN."""
    reply = post(
        "/generate",
        {
            "input_ids": [int(token) for token in probe.token_ids],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        },
    )
    try:
        # Triples of log-prob, id and text; the first token has no log-prob.
        found = reply["meta_info"]["input_token_logprobs"]
        ids = [int(id) for _, id, *_ in found]
        log_probs = np.array([value for value, *_ in found[1:]], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise HandoverError(f"no log-probs in the server's reply: {error!r}") from error
    if ids != [int(token) for token in probe.token_ids]:
        raise HandoverError("the server's log-probs are of other tokens than the probe's")
    return float(np.abs(log_probs - probe.log_probs).mean())
