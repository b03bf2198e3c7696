"""Weights handed to a server that may lie about having taken them."""

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax.training import handover

IDS = np.array([5, 6, 7], np.int32)
# Log-probs of tokens 6 and 7 under the weights of each checkpoint.
WEIGHTS = {"old": (-1.0, -2.0), "new": (-1.5, -0.5)}


class Double:
    """SGLang's endpoints; `lie` is how it misbehaves."""

    def __init__(self, lie=""):
        self.lie = lie
        self.weights, self.version, self.cached = "old", "0", "old"
        self.paused, self.paths = False, []

    def __call__(self, path, body):
        self.paths.append(path)
        return getattr(self, path.strip("/"))(body)

    def pause_generation(self, body):
        self.paused = True
        return {"status": "ok"}

    def continue_generation(self, body):
        self.paused = False
        return {"status": "ok"}

    def update_weights_from_disk(self, body):
        if self.lie == "refuses":
            return {"success": False, "message": "missing tensor lm_head.weight"}
        if self.lie != "keeps_version":
            self.version = body["weight_version"]
        if self.lie != "drops_weights":
            self.weights = body["model_path"]
        if body["flush_cache"] and self.lie != "keeps_cache":
            self.cached = self.weights
        return {"success": True, "message": "Succeeded."}

    def get_weight_version(self, body):
        return {"weight_version": self.version}

    def generate(self, body):
        if self.paused:
            raise AssertionError("asked while paused")
        if self.lie == "no_log_probs":
            return {"text": "", "meta_info": {}}
        values = WEIGHTS[self.cached]
        if self.lie == "nan":
            values = (float("nan"), values[1])
        ids = body["input_ids"] if self.lie != "other_ids" else [5, 6, 8]
        triples = [[value, id, None] for value, id in zip((None, *values), ids, strict=True)]
        return {"text": "", "meta_info": {"input_token_logprobs": triples}}


def probe(log_probs=WEIGHTS["new"]):
    return handover.Probe(IDS, np.array(log_probs, np.float32))


class HandOverTest(parameterized.TestCase):
    def test_an_honest_server_goes_on_with_the_new_weights(self):
        double = Double()
        difference = handover.hand_over(
            double, "new", version=3, probe=probe((-1.51, -0.53)), tolerance=0.05
        )
        # (0.01 + 0.03) / 2
        self.assertAlmostEqual(difference, 0.02, places=5)
        self.assertEqual((double.weights, double.version, double.paused), ("new", "3", False))
        self.assertEqual(
            double.paths,
            [
                "/pause_generation",
                "/update_weights_from_disk",
                "/continue_generation",
                "/get_weight_version",
                "/generate",
            ],
        )

    @parameterized.parameters(
        ("refuses", "refused: missing tensor"),
        ("keeps_version", "asked for version 3, the server has '0'"),
        # (0.5 + 1.5) / 2
        ("drops_weights", "differ by 1.000 nats"),
        ("keeps_cache", "differ by 1.000 nats"),
        ("nan", "differ by nan"),
        ("other_ids", "other tokens"),
        ("no_log_probs", "no log-probs"),
    )
    def test_a_lie_is_found_and_the_server_stays_paused(self, lie, reason):
        double = Double(lie)
        with self.assertRaisesRegex(handover.HandoverError, reason):
            handover.hand_over(double, "new", version=3, probe=probe())
        self.assertTrue(double.paused)

    @parameterized.parameters(((5,), ()), ((5, 6), (-1.0, -2.0)))
    def test_a_probe_that_proves_nothing_is_refused(self, ids, log_probs):
        with self.assertRaisesRegex(ValueError, "a log-prob for each but the first"):
            handover.Probe(np.array(ids), np.array(log_probs))


if __name__ == "__main__":
    absltest.main()
