"""One of the processes that hosts_test starts: `hosts_process.py WHAT COORDINATOR COUNT INDEX`."""

import functools
import json
import os
import pathlib
import sys
import time

# The compiler's cheapest code, and two devices a process; set before JAX reads it.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

from awm_jax.models import hf  # noqa: E402
from awm_jax.rl import losses  # noqa: E402
from awm_jax.training import batch as batch_lib  # noqa: E402
from awm_jax.training import checkpoint, grpo, hosts, sharding, state  # noqa: E402

DATA = pathlib.Path(__file__).parents[1] / "data"
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.9))
# Whole micro-batches, over all processes.
SHAPE = batch_lib.PackShape(rows=4, row_length=12, image_tokens=8, target_rows=8, target_length=4)


def lessons(image_token_id: int):
    """Seven trajectories of one or two sequences, some with images, and their advantages."""
    rng, made = np.random.default_rng(0), []
    for index in range(7):
        sequences = []
        for _ in range(1 + index % 2):
            length = int(rng.integers(5, 11))
            ids = rng.integers(0, 190, length).astype(np.int32)
            pages = (index,) if index % 3 else ()
            ids[1 : 1 + 2 * len(pages)] = image_token_id
            trained = np.arange(length) >= 4
            old = np.where(trained, rng.normal(-5.3, 0.1, length), 0.0).astype(np.float32)
            sequences.append(batch_lib.TrainingSequence(ids, trained, old, pages, index))
        made.append((sequences, float(rng.normal())))
    return made


def update_once(mesh, directory: pathlib.Path | None = None, restored: int = 0):
    """One update of the tiny policy; its metrics, and the parameters after it, whole."""
    model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32", **sharding.model_options(mesh))
    config = model.config
    frozen = {"visual": model.params["visual"]}
    trained = {name: tree for name, tree in model.params.items() if name != "visual"}
    update = grpo.make_update(
        model,
        frozen,
        OPTIMIZER,
        functools.partial(losses.clipped_policy_loss, aggregate="sequence"),
        banned=np.zeros(config.text.vocab_size, bool),
        temperature=0.7,
        chunk_size=8,
        mesh=mesh,
    )
    taps = 1 + len(config.vision.deepstack_visual_indexes)
    of_page = functools.partial(_features, shape=(2, taps, config.text.hidden_size))
    shape, given = hosts.own_shape(SHAPE), lessons(config.image_token_id)
    packed = batch_lib.pack(
        given[hosts.share(given)],
        shape,
        position_ids=lambda ids, pages: np.broadcast_to(np.arange(len(ids)), (3, len(ids))),
        page_features=of_page,
        feature_shape=(taps, config.text.hidden_size),
        image_token_id=config.image_token_id,
        pad_id=0,
    )
    nothing = batch_lib.empty_batch(shape, (taps, config.text.hidden_size), 0)
    batches = hosts.global_batches(packed, nothing, mesh, image_token_id=config.image_token_id)
    current = state.initial_state(trained, OPTIMIZER)
    if directory is None:
        return grpo.update_state(update, current, batches, 5)
    with checkpoint.open_checkpoints(directory, keep=2) as kept:
        current = checkpoint.restore(kept, current, {"seed": 0}) or current
        current, metrics = grpo.update_state(update, current, batches, 5)
        checkpoint.save(kept, current, {"seed": 0})
    return current, metrics


def _features(page: int, shape):
    return np.random.default_rng(page).normal(size=shape).astype(np.float32)


def update(count: int, index: int, folder: pathlib.Path):
    """An update with a checkpoint; then the second process dies and the first goes on."""
    mesh = sharding.make_mesh(fsdp=count, tensor=2)
    current, metrics = update_once(mesh, folder / "checkpoints")
    own = hosts.own_copy(current.params, mesh)
    kernel = own["language_model"]["layers"]["self_attn"]["q_proj"]["kernel"]
    if hosts.first():
        # The second does not take part: what a process has of its own needs none of the others.
        total = float(jnp.sum(kernel))
    whole = hosts.whole(current.params)
    if hosts.first():
        np.savez(folder / "params.npz", *jax.tree.leaves(whole))
        shard = kernel.sharding.shard_shape(kernel.shape)
        print(json.dumps(metrics | {"total": total, "shard": shard}), flush=True)
    else:
        os._exit(3)
    hosts.gathered(["more"])


def agree(count: int, index: int, folder: pathlib.Path):
    """What processes tell each other."""
    made = folder / "made"
    with hosts.first_alone("make"):
        if hosts.first():
            time.sleep(0.2)
            made.write_text("here")
        found = made.read_text()
    with hosts.written_by_first(folder / "lines.jsonl") as path:
        before = path.read_text()
        with path.open("a") as file:
            file.write(f"{index}\n")
    tasks = list(range(10))
    # Neighbours of other processes, as on a torus; the mesh puts them in order.
    torus = [*jax.devices()[::2], *jax.devices()[1::2]]
    mesh = sharding.make_mesh(data=2, fsdp=count // 2, tensor=2, devices=torus)
    try:
        hosts.own_mesh(sharding.make_mesh(tensor=2 * count))
    except ValueError as error:
        refused = str(error)
    values = {
        "found": found,
        "before": before,
        "share": tasks[hosts.share(tasks)],
        "of_first": hosts.of_first(index == 0),
        "total": hosts.total({"pages": index}),
        "own_mesh": dict(hosts.own_mesh(mesh).shape),
        "name": hosts.own_name("index"),
        "sampler": hosts.own_sampler({"batch_buckets": (2, 4, 30), "top_k": 5}),
        "refused": refused,
    }
    everybody = hosts.gathered([values] * (1 + index % 2))
    if hosts.first():
        print(json.dumps(everybody))


def main():
    what, coordinator, count, index, folder = sys.argv[1:]
    count, index = int(count), int(index)
    jax.config.update("jax_num_cpu_devices", 2)
    with hosts.together(coordinator=coordinator, count=count, index=index, heartbeat_seconds=10):
        {"update": update, "agree": agree}[what](count, index, pathlib.Path(folder))


if __name__ == "__main__":
    main()
