"""New weights for a running SGLang server, and proof that it has them.

python -m awm_jax handover DIR --server http://localhost:30000 --version 20
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from awm_jax import servers
from awm_jax.commands import display
from awm_jax.models import hf
from awm_jax.models.processor import load_processor
from awm_jax.rl.log_probs import token_log_probs
from awm_jax.training import handover

_EPILOG = """\
The server is paused, told to read the checkpoint from its disk with its prefix cache flushed, and
let go on. Then its version is read back, and its log-probs of the probe's tokens are compared with
those worked out here. Where anything is amiss it stays paused, and the exit status is 1.
"""
# Some English, some numbers, some markup: what a policy of this project reads and writes.
_PROBE = (
    'The survey of 2020 lists a depth of 14.5 m on page 7, and 3,200 visitors. {"name": '
    '"update_memory", "arguments": {"source_page": 7, "finding": "The depth is 14.5 m."}}'
)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m awm_jax handover",
        description="Makes a running SGLang server take the weights of a checkpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("checkpoint", type=pathlib.Path, help="in Hugging Face's form, as train and sft export it")
    add("--server", required=True, metavar="URL", help="its host, such as http://localhost:30000")
    add("--version", required=True, type=int, help="of the policy; the server must say it")
    add("--seen_as", metavar="DIR", help="the checkpoint's folder as the server sees it")
    add("--key", metavar="VARIABLE", help="environment variable with the server's key")
    add("--probe", type=pathlib.Path, metavar="FILE", help="another text to compare log-probs of")
    add(
        "--tolerance",
        type=float,
        default=0.05,
        help="mean absolute difference of log-probs, in nats (default: %(default)s)",
    )
    add("--dtype", default="bfloat16", help="in which the server computes (default: %(default)s)")
    add("--timeout_s", type=float, default=600.0, help="of a request (default: %(default)s)")
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the command; the exit status is 1 where the server has not the weights, 2 for errors."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except (handover.HandoverError, servers.ServerError) as error:
        print(f"handover: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"handover: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    # A weight update that timed out may have been done: it is not sent twice.
    server = servers.Server(
        arguments.server, "any", arguments.key, timeout_s=arguments.timeout_s, retries=0
    )
    text = _PROBE if arguments.probe is None else arguments.probe.read_text(encoding="utf-8")
    probe = make_probe(arguments.checkpoint, text, dtype=arguments.dtype)
    seen_as = arguments.seen_as or str(arguments.checkpoint.resolve())

    def post(path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return servers.post(server, path, body, read=lambda reply: reply)[0]

    difference = handover.hand_over(
        post, seen_as, version=arguments.version, probe=probe, tolerance=arguments.tolerance
    )
    display.console.print(
        f"{arguments.server} has version {arguments.version}: log-probs of "
        f"{len(probe.log_probs)} tokens differ by {difference:.4f} nats on average"
    )
    return 0


def make_probe(checkpoint: pathlib.Path, text: str, *, dtype: str) -> handover.Probe:
    """A text's tokens and their log-probs under the checkpoint's weights."""
    model, processor = hf.load_model(checkpoint, dtype=dtype), load_processor(checkpoint)
    (ids,) = processor.encode([text], [[]])

    @jax.jit
    def log_probs(params, ids):
        hidden = model.hidden(params, ids)[:, :-1]
        head = model.output_embedding(params)
        return token_log_probs(hidden, head, ids[:, 1:], chunk_size=256)

    ids = np.asarray(ids, np.int32)
    found = log_probs(model.params, jnp.asarray(ids)[None])
    return handover.Probe(ids, np.asarray(found[0]))
