"""What a run would need on hardware that is not here, per chip, before it is paid for."""

import functools
import json
import math
import pathlib
import re

import jax
import ml_collections

from awm_jax.commands import checks, display
from awm_jax.models import hf
from awm_jax.models.attention import IMPLEMENTATIONS
from awm_jax.models.config import Config
from awm_jax.rl import losses
from awm_jax.training import plan, state
from awm_jax.training.batch import PackShape

# Shapes of released models, and of the policy that is made of one: no weights are needed.
_SHAPES = {
    "Qwen/Qwen3-VL-4B-Instruct": "experiments/plan/qwen3_vl_4b",
    "runs/qwen3vl_4b_sft/policy": "experiments/plan/qwen3_vl_4b",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "experiments/plan/qwen3_vl_30b_a3b",
    "Qwen/Qwen3-14B": "experiments/plan/qwen3_14b",
}


def run(config: ml_collections.ConfigDict, *, topology: str, quick: bool, output: str) -> None:
    """Compiles the run's programs for a topology, prints what they take and what to change.

    Args:
      config: of `train`.
      topology: see `awm_jax.training.plan.find_target`.
      quick: compiles in seconds; the memory is then not that of the run.
      output: file for the same as JSON; empty for none.
    """
    # The compiler for TPUs is a library; as a device it would be looked for and not found.
    jax.config.update("jax_platforms", "cpu")
    if cpu := re.fullmatch(r"(?:h100|h200|cpu):(\d+)", topology):
        jax.config.update("jax_num_cpu_devices", int(cpu[1]))
    checks.check_attention(config.attention, None, config.policy.dtype)
    if config.lora.rank:
        raise ValueError(
            f"found lora.rank {config.lora.rank}: plan knows the training of whole decoders alone; "
            "lora.rank 0 gives an upper bound"
        )
    target = plan.find_target(topology)
    mesh = plan.target_mesh(target, **config.mesh)
    job = _job(config, target)
    programs = plan.plan_run(job, mesh, quick=quick, said=_say)
    advice = [] if target.gib is None else plan.advise(job, mesh, target.gib, programs)
    _show(config, target, job, programs, advice, quick)
    if output:
        _write(pathlib.Path(output), config, target, job, programs, advice, quick)


def _job(config: ml_collections.ConfigDict, target: plan.Target) -> plan.Job:
    policy = _shape(config.policy.checkpoint)
    if policy.vision is None:
        raise ValueError(f"{config.policy.checkpoint}: the policy reads pages; found a text model")
    here = target.devices[0].platform
    return plan.Job(
        policy=policy,
        reader=_shape(config.reader.checkpoint),
        dtype=config.policy.dtype,
        reader_dtype=config.reader.dtype,
        master_dtype=config.master_dtype,
        remat=config.remat,
        # A kernel can be compiled for its own hardware only.
        attention=config.attention if IMPLEMENTATIONS[config.attention] in (None, here) else "xla",
        optimizer=state.adamw(**config.optimizer, updates=checks.update_count(config)),
        policy_loss=functools.partial(losses.clipped_policy_loss, **config.loss),
        packing=PackShape(**config.packing),
        log_prob_chunk=config.log_prob_chunk,
        sampler=_sampler(**config.sampler),
        reading=_sampler(**config.reader.sampler),
        page_patches=math.ceil(config.train_data.max_pixels / policy.vision.patch_size**2),
    )


def _shape(checkpoint: str) -> Config:
    """The shape of a checkpoint: of its directory, or of a model whose shape we have."""
    path = pathlib.Path(checkpoint)
    path = path if path.is_dir() else pathlib.Path(_SHAPES.get(checkpoint, checkpoint))
    if not path.is_dir():
        raise ValueError(
            f"{checkpoint}: expected a directory with a config.json, or one of {[*_SHAPES]} where "
            "experiments/ is; weights are not needed"
        )
    return hf.load_config(path)


def _sampler(
    *,
    max_new_tokens,
    prompt_buckets,
    batch_buckets,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    cache_rows=None,
    prefill_chunk=None,
    decode_chunk=32,
) -> plan.Sampler:
    """The largest shapes of a sampler; defaults as in `awm_jax.policy.make_generate`."""
    rows, prompt = max(batch_buckets), max(prompt_buckets)
    return plan.Sampler(
        rows,
        cache_rows or rows,
        prompt,
        prefill_chunk or prompt,
        max_new_tokens,
        min(decode_chunk, max_new_tokens),
        (top_p, top_k, min_p),
    )


def _gib(size: float) -> str:
    return f"{size / plan.GIB:.2f}"


def _say(program: plan.Program) -> None:
    """A line a program: the whole may take minutes."""
    display.console.print(
        f"{program.name}: peak {_gib(program.peak)} GiB, {program.seconds:.1f} s to compile"
    )


def _show(config, target, job, programs, advice, quick) -> None:
    chips, capacity = len(target.devices), "" if target.gib is None else f" of {target.gib} GiB"
    most = max(programs, key=lambda program: program.peak)
    held = {name: size for program in programs for name, size in program.held.items()}
    attention = job.attention
    if attention != config.attention:
        attention += f" in the place of {config.attention}"
    display.show_plan(
        f"{target.name}: {chips} chips{capacity}, mesh {config.mesh.to_dict()}",
        [
            ("compiled with", f"{target.compiler}{', quick' if quick else ''}"),
            ("policy", f"{config.policy.checkpoint}, {job.dtype}, {job.master_dtype} masters"),
            ("reader", f"{config.reader.checkpoint}, {job.reader_dtype}, frozen"),
            ("micro-batch", f"{job.packing.rows} rows of {job.packing.row_length} tokens"),
            ("attention", attention),
            *((f"{name}, GiB", _gib(size)) for name, size in held.items()),
        ],
    )
    columns = ("program", "held", "temporaries", "peak, GiB", "TFLOP", "compiled, s")
    rows = [
        [
            program.name,
            _gib(sum(program.held.values())),
            _gib(program.temporaries),
            _gib(program.peak),
            f"{program.flops / 1e12:.2f}",
            f"{program.seconds:.1f}",
        ]
        for program in programs
    ]
    display.show_table(columns, rows, "per chip")
    for program in programs:
        for kind, traffic in program.traffic.items():
            moved = f"{traffic.count} {kind}, {_gib(traffic.bytes)} GiB"
            display.console.print(f"{program.name}: {moved}")
    if target.gib is None:
        display.console.print("no capacity to compare with")
    elif advice:
        display.console.print("\n  ".join(["does not fit:", *advice]))
    else:
        display.console.print(f"fits: at most {_gib(most.peak)} GiB{capacity}, in {most.name!r}")
    if quick:
        display.console.print("quick: the memory is not that of the run")


def _write(path, config, target, job, programs, advice, quick) -> None:
    found = {
        "topology": target.name,
        "compiler": target.compiler,
        "capacity_gib": target.gib,
        "mesh": config.mesh.to_dict(),
        "attention": job.attention,
        "packing": job.packing._asdict(),
        "sampler": job.sampler._asdict(),
        "reading": job.reading._asdict(),
        "quick": quick,
        "programs": [
            {
                **program._asdict(),
                "peak": program.peak,
                "traffic": {kind: t._asdict() for kind, t in program.traffic.items()},
            }
            for program in programs
        ],
        "advice": advice,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
