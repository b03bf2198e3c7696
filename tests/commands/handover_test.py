"""Weights handed to a server over HTTP, from the command line."""

import contextlib
import http.server
import io
import json
import pathlib
import threading

import numpy as np
from absl.testing import absltest

from awm_jax.commands import handover

ROOT = pathlib.Path(__file__).parents[2]
POLICY = ROOT / "experiments" / "tiny_world" / "policy"


class Sglang(http.server.BaseHTTPRequestHandler):
    """The native endpoints; `keeps` its old weights whatever it answers, where told to."""

    keeps, version, paused, weights = False, "0", False, None

    def do_GET(self):
        self._send({"weight_version": type(self).version})

    def do_POST(self):
        server = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/update_weights_from_disk":
            server.version, server.weights = body["weight_version"], body["model_path"]
            self._send({"success": True, "message": "Succeeded."})
        elif self.path == "/generate":
            ids = body["input_ids"]
            values = [-5.0] * len(ids) if server.keeps else self._log_probs(ids)
            triples = [[value, id, None] for value, id in zip(values, ids, strict=True)]
            triples[0][0] = None  # Nothing stands before it.
            self._send({"meta_info": {"input_token_logprobs": triples}})
        else:
            server.paused = self.path == "/pause_generation"
            self._send({"status": "ok"})

    def _log_probs(self, ids):
        probe = handover.make_probe(pathlib.Path(self.weights), handover._PROBE, dtype="float32")
        np.testing.assert_array_equal(ids, probe.token_ids)
        return [0.0, *probe.log_probs.tolist()]

    def _send(self, reply):
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Says nothing."""


class HandoverTest(absltest.TestCase):
    def run_command(self, *flags, **state):
        handler = type("Server", (Sglang,), state)
        server = http.server.HTTPServer(("localhost", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://localhost:{server.server_port}"
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = handover.main(
                [str(POLICY), "--server", url, "--version", "7", "--dtype", "float32", *flags]
            )
        return status, said.getvalue(), handler

    def test_an_honest_server_goes_on(self):
        status, said, server = self.run_command()
        self.assertEqual((status, said), (0, ""))
        self.assertEqual((server.version, server.paused), ("7", False))
        self.assertEqual(server.weights, str(POLICY.resolve()))

    def test_one_that_keeps_its_weights_is_found_out_and_stays_paused(self):
        status, said, server = self.run_command(keeps=True)
        self.assertEqual(status, 1)
        self.assertRegex(said, "log-probs of .* tokens differ by .* nats")
        self.assertTrue(server.paused)

    def test_a_folder_that_is_no_checkpoint(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = handover.main(
                [str(ROOT / "tests"), "--server", "http://localhost:9", "--version", "1"]
            )
        self.assertEqual(status, 2)
        self.assertIn("config.json", said.getvalue())


if __name__ == "__main__":
    absltest.main()
