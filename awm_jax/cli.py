"""The command line: `python -m awm_jax COMMAND --config=FILE [--config.name=value ...]`.

Flags are parsed here and a ConfigDict ends in the command: below it, functions take keyword
arguments.
"""

import importlib
import os
import sys

from absl import app, flags, logging
from ml_collections import config_flags

COMMANDS = {
    "train": "train one policy for each reward of the config, evaluate, compare",
    "sft": "fine-tune a policy on recorded trajectories and export it",
    "recipe": "make SFT trajectories and RL groups from questions, step by step",
    "evaluate": "run the agent over a benchmark and score what comes out",
    "controlled": "answer from no memory, the agent's own and a stronger model's, compare",
    "plan": "compile a run for a --topology that is not here (v5e:4x4, h100:8): does it fit?",
    "ask": "answer one question about one PDF, with notes to check (own --help)",
    "index": "put all documents of a folder into an index that ask can use (own --help)",
    "diagnose": "can one answer from the memories in a file of trajectories? (own --help)",
    "tables": "the paper's tables from the records of evaluated runs (own --help)",
    "handover": "give a running SGLang server new weights, see that it has them (own --help)",
}
# Commands without a config.
OWN_FLAGS = ("ask", "index", "diagnose", "handover", "tables")
# Commands that can say what they would do.
DRY = ("train", "sft", "evaluate")
_LAST_LINE = f"Settings stand in the files of configs/. {', '.join(DRY)} also take --dry_run."
_CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
_TOPOLOGY = flags.DEFINE_string("topology", "", "plan: for what, such as v5e:4x4 or h100:8")
_QUICK = flags.DEFINE_bool("quick", False, "plan: in seconds; memory is not that of the run")
_OUTPUT = flags.DEFINE_string("output", "", "plan: file for the plan as JSON")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "check files and settings, print the plan, end")


def _usage() -> str:
    lines = [f"  {name:<12}{what}" for name, what in COMMANDS.items()]
    usage = "usage: python -m awm_jax COMMAND --config=FILE [--config.name=value ...]"
    return "\n".join([usage, "", *lines, "", _LAST_LINE])


def _set_up() -> None:
    """Quiet logs, and compiled programs that are kept between runs; before JAX is first used."""
    if not flags.FLAGS.is_parsed() or not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(".cache", "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _run(argv: list[str]) -> None:
    command = argv[1] if len(argv) > 1 else ""
    if command not in COMMANDS or len(argv) > 2:
        found = f"found {' '.join(argv[1:])!r}, expected one of the commands\n\n" if command else ""
        sys.exit(found + _usage())
    if _CONFIG.value is None:
        sys.exit(f"{command} needs --config=FILE, such as configs/tiny_world.py")
    _set_up()
    if _DRY_RUN.value and command not in DRY:
        sys.exit(f"{command} has no --dry_run; {', '.join(DRY)} have")
    try:
        if _DRY_RUN.value:
            from awm_jax.commands import dry_run

            return dry_run.run(command, _CONFIG.value)
        if command == "plan":
            from awm_jax.commands import plan

            return plan.run(
                _CONFIG.value,
                topology=_TOPOLOGY.value,
                quick=_QUICK.value,
                output=_OUTPUT.value,
            )
        importlib.import_module(f"awm_jax.commands.{command}").run(_CONFIG.value)
    except (ValueError, OSError) as error:
        # What a user can mend is said without the way to it; --verbosity=1 shows that too.
        logging.debug("%s failed", command, exc_info=True)
        sys.exit(f"{command}: {error}")


def _parse(argv: list[str]) -> list[str]:
    """absl's parser; a setting that the config does not have is said without a traceback."""
    try:
        return app.parse_flags_with_usage(argv)
    except (AttributeError, KeyError) as error:
        # An AttributeError of ml_collections holds the KeyError, and that the part that is not
        # there, quoted, and perhaps a line with one that is spelled alike.
        inner = error.args[0] if error.args and isinstance(error.args[0], KeyError) else error
        found = str((*inner.args, "")[0])
        if not found.startswith("'"):
            # Of the config file itself.
            raise
        _, name, alike = found.split("'", 2)
        given = [arg for arg in argv if name in arg.partition("=")[0].split(".")]
        sys.exit(f"{' '.join(given)}: the config has no {name!r}. {alike.strip()}".strip())


def main() -> None:
    """Parses the flags and runs the command."""
    if sys.argv[1:2] and sys.argv[1] in OWN_FLAGS:
        _set_up()
        command = importlib.import_module(f"awm_jax.commands.{sys.argv[1]}")
        sys.exit(command.main(sys.argv[2:]))
    if {"-h", "--help"} & set(sys.argv[1:]):
        # Of absl's flags a user needs none but those of the usage line.
        print(_usage())
        return
    app.run(_run, flags_parser=_parse)
