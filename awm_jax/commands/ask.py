"""One question about one PDF: pages as they are looked at, notes as they are written, the answer.

python -m awm_jax ask report.pdf "What was the rate in 2020?" --policy http://localhost:8000/v1
python -m awm_jax ask report.pdf "..." --policy DIR --reader DIR --out report.html
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

import ml_collections

from awm_jax.agent import rollout
from awm_jax.commands import ask_display, display, provenance, served
from awm_jax.documents import index, pdf, workers
from awm_jax.evaluation import report
from awm_jax.judging import reader
from awm_jax.policy_served import TOOL_FORMS
from awm_jax.types import ANSWERED, Document, Generate, Page, Question, Trajectory, Verdict

_EPILOG = """\
Keys of hosted services are read from the environment: --key OPENAI_API_KEY names the variable.
The reader answers from the question and the notes alone. If it cannot, do not trust the notes to
hold what the answer rests on, however right the answer may be.
"""
# Of a local checkpoint: each is one compiled program, the shortest that fits is used.
_PROMPT_BUCKETS = (256, 512, 1024, 2048, 4096, 8192)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m awm_jax ask",
        description="Asks one question about one PDF file and writes down how it was answered.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("document", type=pathlib.Path, help="a PDF file, or a folder of page images")
    add("question")
    add(
        "--policy",
        required=True,
        metavar="URL|DIR",
        help="who looks at the pages: a server with the OpenAI API, or a Qwen3-VL checkpoint",
    )
    add("--model", default="", help="as the server calls it; by default its only model")
    add("--key", metavar="VARIABLE", help="environment variable with the server's key")
    add(
        "--reader",
        metavar="URL|DIR",
        help="who answers from the notes alone; by default the policy's model, without pages",
    )
    add("--reader_model", default="", help="likewise")
    add("--reader_key", metavar="VARIABLE", help="likewise")
    add(
        "--hosted",
        action="store_true",
        help="the servers are hosted services: leave out the field that turns thinking off",
    )
    add(
        "--tools",
        choices=TOOL_FORMS,
        default="text",
        help="how tools go to a server: as Qwen3 is trained, or as the API has them, for hosted "
        "models (default: %(default)s)",
    )
    add(
        "--extra",
        default="{}",
        metavar="JSON",
        help="further fields of the requests to servers, null to take one out: "
        '\'{"max_tokens": null, "max_completion_tokens": 512}\'',
    )
    add("--max_steps", type=int, default=15, help="(default: %(default)s)")
    add("--max_tokens", type=int, default=512, help="of a message (default: %(default)s)")
    add("--temperature", type=float, default=0.0, help="(default: %(default)s)")
    add("--dpi", type=float, default=144, help="of the pages (default: %(default)s)")
    add("--max_pixels", type=int, default=2**20, help="of a page (default: %(default)s)")
    add("--timeout_s", type=float, default=120.0, help="of a request (default: %(default)s)")
    add("--dtype", default="bfloat16", help="of a checkpoint (default: %(default)s)")
    add(
        "--index",
        default=":memory:",
        metavar="DIR|URL",
        help="made by the command index; by default the document is indexed for this question",
    )
    add("--out", type=pathlib.Path, help="the page to write (default: NAME-answer.html)")
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status: 1 where no answer was given, 2 for errors."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"ask: {error}", file=sys.stderr)
        return 2


@dataclasses.dataclass(frozen=True)
class _Player:
    """A model in one of its roles."""

    generate: Generate
    name: str


def _run(arguments: argparse.Namespace) -> int:
    document = pdf.open_document(arguments.document, run=workers.run)
    policy = _player(arguments, arguments.policy, arguments.model, arguments.key)
    if arguments.reader:
        reads = _player(
            arguments, arguments.reader, arguments.reader_model, arguments.reader_key, reads=True
        )
    elif served.is_url(arguments.policy):
        reads = _player(arguments, arguments.policy, arguments.model, arguments.key, reads=True)
    else:
        reads = policy
    ask_display.show_document(
        document, policy.name, f"{reads.name}, without pages" if reads is policy else reads.name
    )
    began = time.monotonic()
    render = pdf.make_render(
        {document.id: document},
        dpi=arguments.dpi,
        max_pixels=arguments.max_pixels,
        run=workers.run,
    )
    question = Question("asked", document.id, arguments.question, "", "")
    trajectory = _roll_out(arguments, question, document, policy.generate, render)
    [reading] = reader.readings(reads.generate, [(question.text, trajectory.memory)], seed=(0,))
    verdict = Verdict(
        0.0,
        0.0,
        reading.answer or "",
        scorer="",
        error=f"the reader failed: {reading.finish_reason}" if reading.answer is None else "",
    )
    ask_display.show_outcome(trajectory, verdict)
    facts = provenance.facts(
        ml_collections.ConfigDict({k: str(v) for k, v in vars(arguments).items() if v is not None})
    )
    out = arguments.out or pathlib.Path(f"{arguments.document.stem}-answer.html")
    report.write_report(
        out,
        [(trajectory, verdict)],
        title=question.text,
        provenance={
            "document": f"{document.id}, {document.page_count} pages",
            "sha256": document.digest[:12],
            "policy": policy.name,
            "reader": reads.name,
            "temperature": str(arguments.temperature),
            "seconds": f"{time.monotonic() - began:.1f}",
            "commit": facts["commit"],
            "prompts": facts["prompts"],
        },
        render=render,
        gold=False,
    )
    display.show_files([out])
    return 0 if trajectory.status == ANSWERED else 1


def _roll_out(
    arguments: argparse.Namespace,
    question: Question,
    document: Document,
    generate: Generate,
    render: Callable[[str, int], Page],
) -> Trajectory:
    """The agent on one question, each step shown as soon as it is done."""
    settings = rollout.RolloutSettings(
        max_steps=arguments.max_steps, temperature=arguments.temperature
    )
    client = index.open_client(arguments.index)
    try:
        index.build_index(client, [document])
        [trajectory] = rollout.run_rollouts(
            [(question, 0, (0,))],
            generate,
            search=index.make_search(client, [document]),
            render=render,
            settings=settings,
            map_tools=ask_display.make_shown_map(),
        )
    finally:
        client.close()
    return trajectory


def _player(arguments, where: str, model: str, key: str | None, *, reads=False) -> _Player:
    """A server or a checkpoint; `reads` for the reader, which does not think aloud."""
    if served.is_url(where):
        section = {
            "model": model,
            "key_variable": key,
            "timeout_s": arguments.timeout_s,
            "max_tokens": arguments.max_tokens,
            "tools": arguments.tools,
            "max_images": None,
            "hosted": arguments.hosted,
            "extra": arguments.extra,
        }
        generate, server = served.served_generate(where, section, thinking_off=reads)
        return _Player(generate, str(server))
    if not pathlib.Path(where).is_dir():
        raise ValueError(f"{where}: expected a URL, http://..., or the folder of a checkpoint")
    # Imported where it is used: servers need no JAX.
    from awm_jax.models import hf
    from awm_jax.models.processor import load_processor
    from awm_jax.policy import make_generate

    model_read = hf.load_model(where, dtype=arguments.dtype)
    if model_read.config.vision is None and not reads:
        raise ValueError(f"{where}: the policy reads pages; found a text model")
    generate = make_generate(
        model_read,
        model_read.params,
        load_processor(hf.checkpoint_directory(where)),
        max_new_tokens=arguments.max_tokens,
        prompt_buckets=_PROMPT_BUCKETS,
        batch_buckets=(1,),
        enable_thinking=False if reads and model_read.config.vision is None else None,
    )
    return _Player(generate, where)
