"""What a run needs on each chip, worked out before any hardware is paid for.

The programs of a run are compiled ahead of time for devices that need not be here, with shapes in
the place of arrays, and the compiler says what they take. Three things it is not asked: whether
that fits (compilers for GPUs do not say), how many operations there are (it counts the body of a
loop once), and what else the run holds on the chip meanwhile.
"""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh

from awm_jax.models import encode, generate, hf
from awm_jax.models.config import Config, TextConfig
from awm_jax.models.qwen3 import Model
from awm_jax.models.qwen3_vl import ImageFeatures, patch_layout
from awm_jax.training import grpo, sharding, state
from awm_jax.training.batch import PackShape, PolicyBatch

GIB = 2**30
# GiB of a chip: of TPUs what their compiler lets a program use, of GPUs what NVIDIA's driver
# reports in all. JAX takes 75 % of that unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.
CAPACITY: Mapping[str, float] = {
    "v5e": 15.75,
    "v5p": 95.74,
    "v6e": 31.25,
    "h100": 79.6,
    "h200": 140.4,
}
_GPUS = ("h100", "h200")
_COLLECTIVES = ["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"]
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


class Target(NamedTuple):
    """Devices to plan for, which need not be here.

    Attributes:
      name: as asked for.
      devices: what is compiled for; for GPUs, CPU devices in their place.
      slices: how many groups of chips with a slow network between them.
      gib: what a program can use of one; None where nothing is known to compare with.
      compiler: what compiles, in words.
    """

    name: str
    devices: tuple[Any, ...]
    slices: int
    gib: float | None
    compiler: str


class Traffic(NamedTuple):
    """Collectives of one kind in a program: how many, and bytes of their larger side per chip."""

    count: int
    bytes: float


class Program(NamedTuple):
    """What a program takes, per chip.

    Attributes:
      name: what it does.
      held: bytes by name of what the run has on the chip meanwhile, the program's own inputs
        included.
      temporaries: bytes beyond the inputs, where it needs most: activations, results.
      traffic: by kind of collective. Loops of known length count as often as they turn; decode's
        loop, whose length is not known, once: a token.
      flops: useful operations, analytic: a chip's share; for decode those of a chunk of tokens.
      seconds: to compile.
      refused: what the compiler said where it found no room; temporaries are then all that it
        told, inputs included.
    """

    name: str
    held: Mapping[str, int]
    temporaries: int
    traffic: Mapping[str, Traffic]
    flops: float
    seconds: float
    refused: str

    @property
    def peak(self) -> int:
        return sum(self.held.values()) + self.temporaries


class Sampler(NamedTuple):
    """The largest shapes of `awm_jax.models.serving.Conversations`.

    `rows` are sampled together, `cache_rows` kept; prompts have up to `prompt` tokens, read in
    pieces of `piece`; messages `new_tokens`, sampled `chunk` at a time; `choice` is (top_p,
    top_k, min_p).
    """

    rows: int
    cache_rows: int
    prompt: int
    piece: int
    new_tokens: int
    chunk: int
    choice: tuple[float, int, float]


class Job(NamedTuple):
    """A run, as far as its programs depend on it; names as in the config of `train`.

    `page_patches` are those of the largest page. A run without KL has no reference; one with it
    would read the warm start, which is held in any case.
    """

    policy: Config
    reader: Config
    dtype: str
    reader_dtype: str
    master_dtype: str
    remat: bool
    attention: str
    optimizer: optax.GradientTransformation
    policy_loss: grpo.PolicyLoss
    packing: PackShape
    log_prob_chunk: int
    sampler: Sampler
    reading: Sampler
    page_patches: int


def find_target(topology: str) -> Target:
    """The devices of a name: "v5e:4x4", "v5p:2x2x2", "v5e:4x4*2" for two slices, "h100:8".

    GPUs are compiled for as so many CPU devices, which must have been made
    (`jax_num_cpu_devices`): the layout over the mesh is theirs, kernels and fusion are not.

    Raises:
      ValueError: no such kind or size, or the TPU's compiler is not installed.
    """
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?:\*(\d+))?", topology)
    if not match or match[1] not in {*CAPACITY, "cpu"}:
        raise ValueError(
            f"topology {topology!r}: expected KIND:SIZE such as v5e:4x4, v5e:4x4*2 for two slices "
            f"or h100:8, with a kind of {[*CAPACITY, 'cpu']}"
        )
    kind, size, slices = match[1], match[2], int(match[3] or 1)
    if kind in (*_GPUS, "cpu"):
        devices, needed = jax.devices("cpu"), math.prod(map(int, size.split("x"))) * slices
        if not 0 < needed <= len(devices):
            raise ValueError(f"topology {topology!r}: found {len(devices)} CPU devices")
        compiler = "XLA for CPU devices in their place: the memory is an estimate"
        return Target(topology, tuple(devices[:needed]), 1, CAPACITY.get(kind), compiler)
    try:
        found = topologies.get_topology_desc(
            topology_name=f"{kind}:{size}",
            platform="tpu",
            **({"num_slices": slices} if slices > 1 else {}),
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"topology {topology!r}: {str(error).strip().splitlines()[0]}\n"
            "TPUs need the extra `plan` (libtpu), which one process at a time can use, and a size "
            "that this kind is made in."
        ) from error
    return Target(topology, tuple(found.devices), slices, CAPACITY[kind], "libtpu")


def target_mesh(target: Target, *, data: int, fsdp: int, tensor: int) -> Mesh:
    """As `sharding.make_mesh`, over all devices of the target; `data` goes over the slices.

    Raises:
      ValueError: the sizes are not those of the target.
    """
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    if math.prod(sizes.values()) != len(target.devices):
        raise ValueError(
            f"mesh {sizes} has {math.prod(sizes.values())} devices, {target.name} has "
            f"{len(target.devices)}; choose sizes whose product is that"
        )
    if target.slices == 1:
        return sharding.make_mesh(**sizes, devices=target.devices)
    if data % target.slices:
        raise ValueError(f"mesh {sizes}: data does not divide over {target.slices} slices")
    grid = mesh_utils.create_hybrid_device_mesh(
        (data // target.slices, fsdp, tensor), (target.slices, 1, 1), devices=target.devices
    )
    return Mesh(grid, sharding.AXES, axis_types=(AxisType.Auto,) * len(sharding.AXES))


def shard_bytes(tree) -> int:
    """Bytes of a tree of placed shapes on one chip."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def plan_run(
    job: Job,
    mesh: Mesh,
    *,
    quick: bool = False,
    said: Callable[[Program], None] = lambda program: None,
) -> list[Program]:
    """Compiles the largest programs of a run, in the order in which a step runs them.

    What is held follows `commands.train`: the warm start and the reader through the whole run;
    the policy's sampling copy and cache during the rollouts, the reader's while it reads.

    Args:
      job: the run.
      mesh: of `target_mesh`.
      quick: the compiler's lowest level: seconds, but not the memory of the run.
      said: told about each program when it was compiled.

    Raises:
      ValueError: the models cannot be spread over the mesh.
    """
    sharding.check_mesh(mesh, job.policy, rows=job.packing.rows)
    sharding.check_mesh(mesh, job.reader)
    laid = sharding.model_options(mesh)
    policy = hf.abstract_model(
        job.policy, dtype=job.dtype, attention=job.attention, remat=job.remat, **laid
    )
    reader = hf.abstract_model(job.reader, dtype=job.reader_dtype, **laid)
    frozen = {"visual": policy.params["visual"]}
    trained = {name: tree for name, tree in policy.params.items() if name != "visual"}
    current = state.abstract_state(trained, job.optimizer, dtype=job.master_dtype)
    held = {
        "parameters": shard_bytes(current.params),
        "optimiser": shard_bytes(current.opt_state),
        "warm start, vision tower": shard_bytes(policy.params),
        "reader": shard_bytes(reader.params),
    }
    programs = []

    def compiled(name, program, *arguments, flops=0.0, also=(), **options):
        """Adds a program; gives its results as placed shapes, None where it was refused."""
        made, results = _compile(
            program, arguments, options, quick=quick, platform=mesh.devices.flat[0].platform
        )
        programs.append(Program(name, {**held, **dict(also)}, flops=flops / mesh.size, **made))
        said(programs[-1])
        return results

    pixels, layout = _pages(job)
    compiled(
        "policy: read pages",
        encode._features,
        frozen["visual"],
        pixels,
        layout,
        model=policy,
        flops=vision_flops(job.policy, len(pixels)),
    )
    _sampling(
        "policy", policy, {**frozen, **current.params}, job.dtype, job.sampler, dict(held), compiled
    )
    _sampling("reader", reader, reader.params, job.reader_dtype, job.reading, dict(held), compiled)
    text, shape = job.policy.text, job.packing
    update = grpo.make_update(
        policy,
        frozen,
        job.optimizer,
        job.policy_loss,
        banned=np.zeros(text.vocab_size, bool),
        temperature=1.0,
        chunk_size=job.log_prob_chunk,
        mesh=mesh,
        dtype=job.dtype,
    ).programs
    batch = _batch(shape, job.policy, job.dtype, mesh)
    forward = decoder_flops(
        text,
        shape.rows * shape.row_length,
        shape.row_length / 2,
        shape.target_rows * shape.target_length,
    )
    summed = {"gradients": shard_bytes(current.params)}
    one = compiled(
        "update: micro-batch",
        update["of_batch"],
        current.params,
        frozen,
        batch,
        flops=3 * forward,
        also={**summed, "micro-batch": shard_bytes(batch)},
    )
    if one is not None:
        another = {**summed, "micro-batch's gradients": summed["gradients"]}
        compiled("update: add", update["add"], one, one, also=another)
        left_out = jax.ShapeDtypeStruct((), jnp.int32)
        compiled("update: apply", update["apply"], current, one, left_out, also=summed)
    return programs


def _sampling(name, model: Model, params, dtype, sampler: Sampler, held, compiled) -> None:
    """Gathers parameters, makes the store, reads prompts, samples; `held` gets what stays."""

    def compiled_here(what, *arguments, **options):
        return compiled(f"{name}: {what}", *arguments, also=held, **options)

    laid = sharding.laid_for_sampling(params, jax.tree.leaves(params)[0].sharding.mesh)
    gathered = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=place), params, laid
    )
    # The largest array is copied last here: it needs most beside the copy of the others.
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(gathered), strict=True)
    moved = [(a, b) for a, b in pairs if sharding.moves(a, b.sharding, dtype)]
    copy, copy_bytes = f"{name}'s sampling copy", sum(shard_bytes(b) for _, b in moved)
    if moved:
        largest, result = max(moved, key=lambda pair: shard_bytes(pair[1]))
        held[copy] = copy_bytes - shard_bytes(result)
        compiled_here("gather", sharding.gather, largest, place=result.sharding, dtype=dtype)
        held[copy] = copy_bytes
    text, (rows, cache_rows, prompt, piece, new, chunk, choice) = model.config.text, sampler
    store = compiled_here(
        "make cache",
        generate.make_store,
        gathered,
        model=model,
        rows=cache_rows,
        slots=prompt + new,
    )
    held[f"{name}'s key/value cache"] = shard_bytes(store)
    # It makes what is held from here on.
    features = None
    if model.config.vision is not None:
        taps = len(model.config.vision.deepstack_visual_indexes)
        features = ImageFeatures(
            jax.ShapeDtypeStruct((rows * piece, text.hidden_size), dtype),
            jax.ShapeDtypeStruct((taps, rows * piece, text.hidden_size), dtype),
        )

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    store = compiled_here(
        "prefill",
        generate.prefill,
        store,
        gathered,
        ints(rows),
        ints(rows),
        ints(rows, piece),
        ints(rows),
        ints(3, rows, piece),
        features,
        model=model,
        reach=prompt,
        flops=decoder_flops(text, rows * piece, prompt - piece / 2, 0),
    )
    if store is None:
        return
    compiled_here(
        "decode",
        generate.decode,
        store,
        gathered,
        generate.Pending(*[ints(rows)] * len(generate.Pending._fields)),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows)),
        jax.ShapeDtypeStruct((text.vocab_size,), jnp.bool_),
        ints(2),
        jax.ShapeDtypeStruct((), jnp.float32),
        model=model,
        reach=prompt + new,
        steps=chunk,
        choice=choice,
        flops=decoder_flops(text, rows * chunk, prompt + new, rows * chunk),
    )


def _batch(shape: PackShape, config: Config, dtype: str, mesh: Mesh) -> PolicyBatch:
    """A micro-batch's shapes, where an update puts it."""
    rows = (shape.rows, shape.row_length)
    targets = (shape.target_rows, shape.target_length)
    taps = 1 + len(config.vision.deepstack_visual_indexes)
    of = jax.ShapeDtypeStruct
    batch = PolicyBatch(
        input_ids=of(rows, jnp.int32),
        segment_ids=of(rows, jnp.int32),
        position_ids=of((3, *rows), jnp.int32),
        image_features=of((shape.image_tokens, taps, config.text.hidden_size), jnp.dtype(dtype)),
        predictor=of(targets, jnp.int32),
        targets=of(targets, jnp.int32),
        mask=of(targets, jnp.bool_),
        old_log_probs=of(targets, jnp.float32),
        advantages=of(targets[:1], jnp.float32),
        trajectory=of(targets[:1], jnp.int32),
    )
    return _placed(batch, sharding.batch_shardings(mesh, batch))


def _pages(job: Job):
    """Pixels and layout of as many of the largest pages as go through the tower together."""
    vision, patches = job.policy.vision, encode.rounded_up(job.page_patches)
    side = vision.spatial_merge_size
    most = max(1, encode._PATCHES_AT_ONCE // patches)
    frames = next(count for count in encode._FRAMES if count <= most)
    layout = patch_layout(np.array([[1, side, patches // side]] * frames), vision)
    return np.zeros((patches * frames, vision.patch_features), np.float32), layout


def _placed(shapes, places):
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        places,
    )


@contextlib.contextmanager
def _compiler(quick: bool) -> Iterator[None]:
    """No cache, whose hits would be timed, and level O0 where quick."""
    values = {"jax_enable_compilation_cache": False}
    values |= {"jax_optimization_level": "O0"} if quick else {}
    before = {name: getattr(jax.config, name) for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _compile(
    program, arguments, options, *, quick: bool, platform: str
) -> tuple[dict[str, Any], Any]:
    """Fields of a `Program`, and the placed shapes of the results, None where refused."""
    with _compiler(quick):
        began = time.monotonic()
        lowered = program.lower(*arguments, **options)
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            said = " ".join(str(error).split())[:300]
            made = {"temporaries": refused_bytes(said), "traffic": {}, "refused": said}
            return made | {"seconds": time.monotonic() - began}, None
        seconds = time.monotonic() - began
    memory = compiled.memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    beyond = new + memory.temp_size_in_bytes
    # The peak knows what is never there together; that of the CPU's compiler leaves out too much.
    if platform != "cpu" and memory.peak_memory_in_bytes:
        beyond = memory.peak_memory_in_bytes - memory.argument_size_in_bytes
    made = {"temporaries": max(0, beyond), "traffic": traffic_of(compiled.as_text())}
    results = _placed(lowered.out_info, compiled.output_shardings)
    return made | {"seconds": seconds, "refused": ""}, results


def refused_bytes(message: str) -> int:
    """What a compiler that refused a program said it takes in all; 0 where it did not say."""
    found = re.findall(r"([\d.]+)([KMGT])(?:iB)? (?:exceeds|of [\d.]+[KMGT] hbm)", message)
    return int(max((float(n) * 1024 ** (1 + "KMGT".index(unit)) for n, unit in found), default=0))


_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.+?) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:calls|body|to_apply|called_computations|branch_computations)=([^,}]+)")
_TURNS = re.compile(r"known_trip_count[^\d]*(\d+)")


def traffic_of(text: str) -> dict[str, Traffic]:
    """The collectives of a compiled program, those in loops as often as the loops turn.

    Args:
      text: as `jax.stages.Compiled.as_text` has it.
    """
    moved: dict[str, list[tuple[str, float]]] = {}
    calls: dict[str, list[tuple[str, int]]] = {}
    entry, inside = "", ""
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            inside = opened[1]
            entry = inside if line.startswith("ENTRY") else entry
            moved[inside], calls[inside] = [], []
        elif operation := _OPERATION.match(line):
            result, opcode = operation.groups()
            kind, turns = opcode.removesuffix("-start"), _TURNS.search(line)
            if kind in _COLLECTIVES:
                operands = line[operation.end() : line.find("), ", operation.end())]
                moved[inside].append((kind, max(_largest(result), _largest(operands))))
            for called in _CALLED.findall(line):
                for name in re.findall(r"[\w.\-]+", called):
                    calls[inside].append((name, int(turns[1]) if turns else 1))
    totals: dict[str, Traffic] = {}

    def visit(name: str, times: int) -> None:
        for kind, size in moved.get(name, ()):
            count, total = totals.get(kind, (0, 0.0))
            totals[kind] = Traffic(count + times, total + times * size)
        for called, turns in calls.get(name, ()):
            visit(called, times * turns)

    visit(entry, 1)
    return dict(sorted(totals.items()))


def _largest(shapes: str) -> float:
    """Bytes of the largest array in a piece of a program's text."""
    return max(
        (
            math.prod(int(n) for n in dims.split(",") if n) * _BYTES[dtype]
            for dtype, dims in re.findall(r"([a-z]\w*)\[([\d,]*)\]", shapes)
            if dtype in _BYTES
        ),
        default=0.0,
    )


def decoder_flops(text: TextConfig, tokens: int, sources: float, heads: int) -> float:
    """Useful operations of a forward pass, two for a multiply and add.

    Args:
      text: the decoder's shape; of a sparse layer, the experts that a token goes through count.
      tokens: that go through the decoder.
      sources: how many tokens each of them sees, on average.
      heads: for how many of them the whole vocabulary is scored.
    """
    queries = text.num_attention_heads * text.head_dim
    keys = text.num_key_value_heads * text.head_dim
    inner = text.intermediate_size
    if text.num_experts is not None:
        inner = text.num_experts_per_tok * text.moe_intermediate_size
    linear = text.hidden_size * (2 * queries + 2 * keys + 3 * inner)
    layers = 2 * tokens * text.num_hidden_layers * (linear + 2 * queries * sources)
    return layers + 2 * heads * text.vocab_size * text.hidden_size


def vision_flops(config: Config, patches: int) -> float:
    """Useful operations of the vision tower on so many patches, attention left out."""
    v = config.vision
    block = 4 * v.hidden_size**2 + 2 * v.hidden_size * v.intermediate_size
    merged = v.hidden_size * v.spatial_merge_size**2
    merger = merged * (merged + v.out_hidden_size) / v.spatial_merge_size**2
    mergers = (1 + len(v.deepstack_visual_indexes)) * merger
    return 2 * patches * (v.depth * block + v.patch_features * v.hidden_size + mergers)


def advise(job: Job, mesh: Mesh, gib: float, programs: list[Program]) -> list[str]:
    """What to change for each program that does not fit into so many GiB: its largest part."""
    changes = {
        "parameters": "a larger mesh.fsdp x mesh.tensor",
        "optimiser": "a larger mesh.fsdp x mesh.tensor",
        "gradients": "a larger mesh.fsdp x mesh.tensor",
        "reader": "a larger mesh.fsdp x mesh.tensor, or a smaller reader",
        "copy": "a larger mesh.tensor",
        "cache": "fewer sampler.batch_buckets or shorter prompt_buckets, or a larger mesh.tensor",
    }
    update = "fewer packing.rows, a shorter row_length, or a larger mesh.tensor"
    update += "" if job.remat else "; remat = True"
    advice = []
    for program in programs:
        if program.peak <= gib * GIB and not program.refused:
            continue
        parts = {**program.held, "temporaries": program.temporaries}
        largest = max(parts, key=parts.get)
        of_program = update if program.name.startswith("update") else changes["cache"]
        of_program = changes["copy"] if program.name.endswith("gather") else of_program
        change = next((changes[end] for end in changes if largest.endswith(end)), of_program)
        advice.append(
            f"{program.name}: {program.peak / GIB:.2f} GiB of {gib:.2f}, of which {largest} "
            f"{parts[largest] / GIB:.2f}: {change}"
            + (f" (the compiler refused it: {program.refused[:120]})" if program.refused else "")
        )
    return advice
