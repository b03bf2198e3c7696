"""What a command would do, without a device: files are looked for and settings are checked."""

import collections
import pathlib
from collections.abc import Callable

import ml_collections

from awm_jax.agent import records, rollout
from awm_jax.commands import checks as settings_checks
from awm_jax.commands import display, metric_logs
from awm_jax.datasets import longdocurl, mmlongbench, steps
from awm_jax.models import hf
from awm_jax.models.processor import load_processor
from awm_jax.training import batch, state

Rows = list[tuple[str, str]]


def run(command: str, config: ml_collections.ConfigDict) -> None:
    """Prints the resolved config and what was found.

    Raises:
      ValueError: something is missing or wrong; all of it is named.
    """
    checks: dict[str, Callable[[], str]] = {}
    for name in ("policy", "reader"):
        if name in config:
            checks[name] = lambda name=name: _checkpoint(config[name].checkpoint)
    for name in ("data", "train_data", "eval_data"):
        if name in config:
            checks[name] = lambda name=name: _data(config[name])
    checks["rollout"] = lambda: str(rollout.RolloutSettings(**config.rollout))
    if "packing" in config:
        checks["packing"] = lambda: str(batch.PackShape(**config.packing))
    if "rewards" in config:
        for name, values in config.rewards.items():
            checks[f"reward {name}"] = lambda values=values: str(
                settings_checks.cell_rewards(values)
            )
        checks["groups"] = lambda: settings_checks.check_groups(config.groups)
        checks["steps"] = lambda: settings_checks.check_steps(config.steps)
        checks["optimizer"] = lambda: _optimizer(config)
        checks["updates"] = lambda: settings_checks.check_updates(config)
        checks["loss"] = lambda: settings_checks.check_loss(config.loss)
        checks["mesh"] = lambda: settings_checks.check_mesh(config)
        checks["types"] = lambda: settings_checks.check_dtypes(config)
        checks["logs"] = lambda: metric_logs.check(config.log_to)
    if "attention" in config:
        # The devices may be others where it is run.
        checks["attention"] = lambda: settings_checks.check_attention(
            config.attention, None, config.policy.dtype
        )
    if "trajectories" in config:
        checks["trajectories"] = lambda: _trajectories(config)
    rows, wrong = [], []
    for name, check in checks.items():
        try:
            rows.append((name, check()))
        except (ValueError, TypeError, OSError) as error:
            wrong.append(f"{name}: {error}")
    display.console.print(str(config))
    display.show_plan(f"{command}, not run", [*rows, ("would write to", config.run_dir)])
    if wrong:
        raise ValueError(f"{command} cannot run:\n  " + "\n  ".join(wrong))


def _checkpoint(name: str) -> str:
    if name.startswith(("http://", "https://")):
        return f"{name}, a server; not asked"
    if not pathlib.Path(name).is_dir():
        return f"{name}, no folder here: a name on the Hugging Face hub; not looked for"
    config, processor = hf.load_config(name), load_processor(name)
    files = sorted(pathlib.Path(name).glob("*.safetensors"))
    if not files:
        raise ValueError(f"{name}: no *.safetensors")
    size = sum(file.stat().st_size for file in files)
    kind = "text" if processor.image is None else "text and images"
    return f"{name}, {kind}, {config.text.num_hidden_layers} layers, {size:,} bytes of weights"


def _data(section: ml_collections.ConfigDict) -> str:
    if section.root is None:
        raise ValueError("no root; name the data set's folder")
    root = pathlib.Path(section.root)
    dataset = section.get("dataset")
    if dataset == "tiny_world":
        return f"tiny world in {root}, {section.documents} documents, made where absent"
    if dataset in ("mmlongbench", "longdocurl"):
        module = {"mmlongbench": mmlongbench, "longdocurl": longdocurl}[dataset]
        questions, report = module.load(root)
        return f"{len(questions)} questions; {report}"
    if dataset == "recipe":
        return f"{len(steps.read_questions(root / 'questions.jsonl'))} questions in {root}"
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder")
    return f"{root}, {sum(1 for _ in (root / 'documents').glob('*'))} files of documents"


def _optimizer(config: ml_collections.ConfigDict) -> str:
    section = config.optimizer
    state.adamw(**section, updates=settings_checks.update_count(config))
    return f"AdamW, learning rate {section.learning_rate}, {section.decay}"


def _trajectories(config: ml_collections.ConfigDict) -> str:
    found = {name: records.read_records(name) for name in config.trajectories}
    if empty := [name for name, read in found.items() if not read]:
        raise ValueError(f"no trajectories in {empty}")
    statuses = collections.Counter(r.trajectory.status for read in found.values() for r in read)
    updates = -(-config.epochs * statuses["answered"] // config.trajectories_per_update)
    return f"{dict(statuses)}; at most {updates} updates"
