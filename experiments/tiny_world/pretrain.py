"""Makes the tiny policy and the tiny reader from nothing; see README.md.

python experiments/tiny_world/pretrain.py --out experiments/tiny_world --work runs/pretrain
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import shutil
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import lessons
import numpy as np
import optax
import vocabulary

from awm_jax.agent import prompts
from awm_jax.datasets import tiny_world
from awm_jax.judging.reader import READER_SYSTEM
from awm_jax.models import config, hf, processor, qwen3_vl
from awm_jax.types import Message

PATCH, MERGE = 16, 2
# The share of the other steps that the patch projection takes. A pixel enters it six times, as
# three equal colours in two equal frames, so that equal steps would move it six times as fast.
PATCH_STEP = 1 / 8
# Of the reader's steps: what Muon takes of them, and what the token embedding does.
MUON_STEP, EMBEDDING_STEP = 5.0, 1 / 4

PIXEL_STEPS, READING_STEPS, PROTOCOL_STEPS = 350, 300, 400
PICKING_STEPS, READER_STEPS = 400, 600
READER_EXAMPLES = 20_000
ROW_LENGTH, READER_ROW_LENGTH = 112, 128


def text_config(tokenizer, *, hidden: int, inner: int, layers: int, head_dim: int) -> dict:
    return {
        # Rows in multiples of 16; those behind the last token are never used.
        "vocab_size": -(-tokenizer.get_vocab_size() // 16) * 16,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
    }


def policy_config(tokenizer) -> config.Config:
    ids = {text: tokenizer.token_to_id(text) for text in vocabulary.SPECIAL}
    text = text_config(tokenizer, hidden=64, inner=192, layers=3, head_dim=32)
    text |= {
        "model_type": "qwen3_vl_text",
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
        },
    }
    vision = {
        "model_type": "qwen3_vl",
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": MERGE,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "hidden_act": "gelu_pytorch_tanh",
    }
    return config.parse_config(
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "text_config": text,
            "vision_config": vision,
            "image_token_id": ids[vocabulary.IMAGE],
            "video_token_id": ids[vocabulary.VIDEO],
            "vision_start_token_id": ids[vocabulary.VISION_START],
            "vision_end_token_id": ids[vocabulary.VISION_END],
            "tie_word_embeddings": True,
        }
    )


def reader_config(tokenizer) -> config.Config:
    text = text_config(tokenizer, hidden=64, inner=192, layers=4, head_dim=32)
    text |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 4}
    return config.parse_config(
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **text}
    )


class Log:
    """Prints what happens and keeps it, one JSON object a line."""

    def __init__(self, path: pathlib.Path):
        self.file = path.open("w", encoding="utf-8")
        self.start, self.cpu = time.time(), time.process_time()

    def __call__(self, **record) -> None:
        record["wall_s"] = round(time.time() - self.start, 1)
        record["cpu_s"] = round(time.process_time() - self.cpu, 1)
        for key, value in record.items():
            if isinstance(value, float):
                record[key] = round(value, 4)
        print(" ".join(f"{key}={value}" for key, value in record.items()), flush=True)
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()


def fresh_parameters(model) -> dict:
    """The model's random parameters, fitted to dark words on white pages."""
    params = jax.tree.map(lambda x: x, model.params)
    table = params["language_model"]["embed_tokens"]
    table["embedding"] = table["embedding"] * 2.5
    if model.config.vision is not None:
        # White paper gives nothing but its position: what is left to see is the ink.
        projection = params["visual"]["patch_embed"]["proj"]
        projection["bias"] = -projection["kernel"].reshape(-1, projection["bias"].size).sum(0)
        table = params["visual"]["pos_embed"]
        table["embedding"] = table["embedding"] * 10
    return params


# --- pixels ---------------------------------------------------------------------------------


def patches(images: jax.Array) -> jax.Array:
    """`[page, height, width, 3]` uint8 -> `[page * patch, features]`, merged blocks together."""
    count, height, width, channels = images.shape
    rows, columns = height // PATCH // MERGE, width // PATCH // MERGE
    x = images.astype(jnp.float32) / 127.5 - 1.0
    x = x.reshape(count, rows, MERGE, PATCH, columns, MERGE, PATCH, channels)
    x = x.transpose(0, 1, 4, 2, 5, 7, 3, 6)
    x = jnp.broadcast_to(x[..., None, :, :], (*x.shape[:-2], 2, PATCH, PATCH))
    return x.reshape(count * rows * columns * MERGE**2, -1)


def page_grid(count: int) -> np.ndarray:
    grid = (1, tiny_world.PAGE_HEIGHT // PATCH, tiny_world.PAGE_WIDTH // PATCH)
    return np.tile(np.array([grid], np.int32), (count, 1))


def image_features(model, params, images):
    """Features of whole pages, `[page * token, ...]`."""
    return model.image_features(params, patches(images), page_grid(images.shape[0]))


def step_size(number: int, steps: int, peak: float, *, warmup: int, decay: float) -> np.float32:
    """Up to `peak`, flat, and down to a twentieth over the last `decay` of the steps."""
    down = max(0.0, (number - steps * (1 - decay)) / (steps * decay)) if decay else 0.0
    return np.float32(peak * min(1.0, number / warmup) * (1 - 0.95 * down))


def slowed(part: str, share: float) -> optax.GradientTransformation:
    """Takes this share of the steps of the parameters in whose path `part` stands."""

    def slow(updates, _):
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x * share if part in jax.tree_util.keystr(path) else x, updates
        )

    return optax.stateless(slow)


def optimiser() -> optax.GradientTransformation:
    """AdamW for a step size of 1: whoever applies the updates scales them.

    With the step size as an argument, all stages share one compiled step.
    """
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b2=0.98),
        optax.add_decayed_weights(0.01),
        slowed("patch_embed", PATCH_STEP),
        optax.scale(-1.0),
    )


def reader_optimiser() -> optax.GradientTransformation:
    """Muon on the matrices of the layers, AdamW on the rest, for a step size of 1.

    The embedding takes smaller steps: at full ones the names of the rivers grow alike before the
    reader has learnt to tell them apart.
    """

    def matrices(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, x: (
                optax.contrib.MuonDimensionNumbers(1, 2)
                if x.ndim == 3 and "layers" in jax.tree_util.keystr(path)
                else None
            ),
            params,
        )

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(
            MUON_STEP,
            adam_learning_rate=1.0,
            adam_b2=0.98,
            weight_decay=0.01 / MUON_STEP,
            adam_weight_decay=0.01,
            muon_weight_dimension_numbers=matrices,
        ),
        slowed("embed_tokens", EMBEDDING_STEP),
    )


def apply_updates(params, updates, size):
    return jax.tree.map(lambda x, update: x + size * update, params, updates)


def learn_pixels(model, params, images, labels, *, steps, batch, peak, seed, log) -> dict:
    """Teaches the vision tower what is written: each merged token its word, row and page.

    The heads score against the token embedding, so that an image token comes to lie near the
    tokens of the words that it shows. DeepStack's taps learn the same.
    """
    hidden = model.config.text.hidden_size
    shape = (2, lessons.PIXEL_SLOTS, hidden, hidden)
    heads = jax.random.normal(jax.random.key(seed), shape) * hidden**-0.5
    state = {"params": params, "heads": heads}
    tx = optimiser()

    def loss(state, images, labels):
        features = image_features(model, state["params"], images)
        both = jnp.stack([features.merged, features.deepstack[0]])
        both = both * jax.lax.rsqrt(jnp.mean(both**2, -1, keepdims=True) + 1e-6)
        # k merged or tap, n image token, s slot, d and e hidden, v vocabulary.
        embedding = model.output_embedding(state["params"])
        logits = jnp.einsum("knd,ksde,ve->knsv", both, state["heads"], embedding)
        flat = jnp.broadcast_to(labels.reshape(1, -1, lessons.PIXEL_SLOTS), logits.shape[:-1])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, flat)
        right = (jnp.argmax(logits, -1) == flat).mean(1)
        return loss.mean(), (right, jnp.sqrt(jnp.mean(features.merged**2)))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(state, moments, images, labels, size):
        (value, extra), grads = jax.value_and_grad(loss, has_aux=True)(state, images, labels)
        updates, moments = tx.update(grads, moments, state)
        return apply_updates(state, updates, size), moments, value, extra

    moments, rng = tx.init(state), np.random.default_rng(seed)
    for number in range(1, steps + 1):
        chosen = rng.integers(len(images), size=batch)
        rate = step_size(number, steps, peak, warmup=20, decay=0.4)
        state, moments, value, (right, size) = step(
            state, moments, images[chosen], labels[chosen], rate
        )
        if number % 25 == 0 or number == steps:
            log(
                stage="pixels", step=number, loss=float(value), size=float(size),
                merged=[round(float(x), 3) for x in right[0]],
                tap=[round(float(x), 3) for x in right[1]],
            )  # fmt: skip
    return state["params"]


def feature_table(model, params, images, *, batch: int = 128) -> qwen3_vl.ImageFeatures:
    """`[page, token, hidden]` and `[taps, page, token, hidden]`: what the tower makes of all."""
    run = jax.jit(functools.partial(image_features, model))
    merged, taps = [], []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        short = batch - len(part)
        features = run(params, np.pad(part, ((0, short), (0, 0), (0, 0), (0, 0))))
        count = len(part) * lessons.PAGE_TOKENS
        merged.append(np.asarray(features.merged)[:count])
        taps.append(np.asarray(features.deepstack)[:, :count])
    shape = (len(images), lessons.PAGE_TOKENS, -1)
    merged, taps = np.concatenate(merged), np.concatenate(taps, axis=1)
    return qwen3_vl.ImageFeatures(
        jnp.asarray(merged.reshape(shape)), jnp.asarray(taps.reshape(len(taps), *shape))
    )


# --- sequences ------------------------------------------------------------------------------


def collate(
    examples: Sequence[lessons.Example], rows: int, time: int, pad: int, model
) -> dict[str, np.ndarray]:
    """Packs examples into rows, the longest first; whoever finds no room is left out.

    Returns:
      ids, segments, weight, marks: `[rows, time]`.
      positions: `[3, rows, time]`, where the model has images.
      pages: `[rows * TOP_K]`, indices of the pages shown, in the order of the rows.
    """
    ids = np.full((rows, time), pad, np.int32)
    segments = np.zeros((rows, time), np.int32)
    weight = np.zeros((rows, time), np.float32)
    marks = np.full((rows, time), lessons.UNMARKED, np.int32)
    positions = np.zeros((3, rows, time), np.int32)
    filled, pages = [0] * rows, [[] for _ in range(rows)]
    for example in sorted(examples, key=lambda example: -len(example.ids)):
        count = len(example.ids)
        row = next((row for row in range(rows) if filled[row] + count <= time), None)
        if row is None:
            continue
        part = slice(filled[row], filled[row] + count)
        ids[row, part], weight[row, part] = example.ids, example.weight
        # What stands before the first token of a segment does not predict it.
        weight[row, part.start] = 0
        segments[row, part] = segments[row].max() + 1
        if example.marks is not None:
            marks[row, part] = example.marks
        if model.config.vision is not None:
            positions[:, row, part], _ = processor.mrope_positions(
                example.ids,
                page_grid(len(example.pages)),
                image_token_id=model.config.image_token_id,
                merge_size=MERGE,
            )
        filled[row] += count
        pages[row] += example.pages
    batch = {"ids": ids, "segments": segments, "weight": weight, "marks": marks}
    if model.config.vision is not None:
        flat = sum(pages, [])
        batch["positions"] = positions
        batch["pages"] = np.zeros(rows * lessons.TOP_K, np.int32)
        batch["pages"][: len(flat)] = flat
    return batch


def sequence_hidden(model, params, batch, table) -> jax.Array:
    features = {}
    if table is not None:
        features["position_ids"] = batch["positions"]
        features["image_features"] = qwen3_vl.ImageFeatures(
            table.merged[batch["pages"]].reshape(-1, table.merged.shape[-1]),
            table.deepstack[:, batch["pages"]].reshape(
                table.deepstack.shape[0], -1, table.merged.shape[-1]
            ),
        )
    return model.hidden(params, batch["ids"], segment_ids=batch["segments"], **features)


def next_token_loss(model, params, hidden, batch):
    """The weighted mean of the losses, and which predictions are right, `[rows, time - 1]`."""
    logits = jnp.einsum("btd,vd->btv", hidden[:, :-1], model.output_embedding(params))
    targets, weight = batch["ids"][:, 1:], batch["weight"][:, 1:]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.sum(loss * weight) / jnp.sum(weight), jnp.argmax(logits, -1) == targets


def mark_loss(head, hidden, batch):
    """How well `head` `[hidden, 3]` tells the marks; see `lessons.marked`."""
    known = batch["marks"] != lessons.UNMARKED
    loss = optax.softmax_cross_entropy_with_integer_labels(
        hidden @ head, jnp.where(known, batch["marks"], 0)
    )
    return jnp.sum(loss * known) / jnp.maximum(jnp.sum(known), 1)


class SequenceTrainer:
    """Next-token training on packed batches of one shape, one compiled step for all stages.

    Parameters may have a part `marks`, `[hidden, 3]`: then the marks are learnt beside.
    """

    def __init__(self, model, table, *, tx, rows: int, time: int, pad: int, log: Log, frozen=()):
        """`table`: features of all pages, or None; `frozen`: top-level parameters that stay."""
        self.model, self.table, self.log, self.frozen = model, table, log, frozen
        self.collate = functools.partial(collate, rows=rows, time=time, pad=pad, model=model)
        self.tx = tx

        def hidden_and_loss(params, batch, table):
            params = {name: part for name, part in params.items() if name != "marks"}
            hidden = sequence_hidden(model, params, batch, table)
            return hidden, *next_token_loss(model, params, hidden, batch)

        def loss(moving, still, batch, table):
            hidden, value, _ = hidden_and_loss(moving | still, batch, table)
            if "marks" in moving:
                value += mark_loss(moving["marks"], hidden, batch)
            return value

        def step(moving, moments, still, batch, table, size):
            value, grads = jax.value_and_grad(loss)(moving, still, batch, table)
            updates, moments = self.tx.update(grads, moments, moving)
            return apply_updates(moving, updates, size), moments, value

        def wrong(params, batch, table):
            _, _, right = hidden_and_loss(params, batch, table)
            return ~right & (batch["weight"][:, 1:] > 0)

        self.step = jax.jit(step, donate_argnums=(0, 1))
        self.wrong = jax.jit(wrong)

    def share_right(self, params, examples: Sequence[lessons.Example]) -> float:
        """The share of examples whose weighted tokens are all predicted right."""
        batch = self.collate(examples)
        rows, columns = np.nonzero(np.asarray(self.wrong(params, batch, self.table)))
        failed = {
            (row, batch["segments"][row, at + 1]) for row, at in zip(rows, columns, strict=True)
        }
        return 1 - len(failed) / int(batch["segments"].max(axis=1).sum())

    def learn(
        self, params, mix, *, stage, steps, peak, seed, probes, every=50, warmup=20, decay=0.4
    ) -> dict:
        """Trains on `mix`: pools of examples and how many of each go into a batch.

        `probes` are examples by name whose share that is all right is logged.
        """
        moving = {name: part for name, part in params.items() if name not in self.frozen}
        moving = jax.tree.map(jnp.array, moving)
        still = {name: part for name, part in params.items() if name in self.frozen}
        moments, rng, values = self.tx.init(moving), np.random.default_rng(seed), []
        for number in range(1, steps + 1):
            chosen = [pool[i] for pool, count in mix for i in rng.integers(len(pool), size=count)]
            rate = step_size(number, steps, peak, warmup=warmup, decay=decay)
            moving, moments, value = self.step(
                moving, moments, still, self.collate(chosen), self.table, rate
            )
            values.append(value)
            if number % every == 0 or number == steps:
                found = {
                    name: self.share_right(moving | still, part) for name, part in probes.items()
                }
                self.log(
                    stage=stage, step=number, loss=float(np.mean(jax.device_get(values))), **found
                )
                values = []
        return moving | still


# --- the two models -------------------------------------------------------------------------


def make_tokenizer(library: lessons.Library, rng: np.random.Generator):
    """A tokenizer for the transcripts of this world."""
    transcripts = []

    class Transcriber(lessons.Writer):
        def example(self, prompt, parts, pages=()):
            transcripts.append(prompt + "".join(text for text, _ in parts))

    writer = Transcriber(None, processor.render_chat)
    for question in library.questions[:500]:
        lessons.teacher_contexts(
            writer, library, question, rng, generic_last=0.6, generic_earlier=0.3
        )
        lessons.memory_answer(writer, library, rng)
        lessons.reader_example(writer, rng)
        lessons.direct_answer(writer, library, question)
    transcripts += [word for page in library.words for word, _, _ in page]

    def opening(system: str, user: str, tools=()) -> str:
        messages = [Message("system", (system,)), Message("user", (user + "\0",))]
        return processor.render_chat(messages, tools).partition("\0")[0]

    openings = (
        opening(prompts.AGENT_SYSTEM, "Question: ", prompts.AGENT_TOOLS),
        opening(prompts.DIRECT_SYSTEM, ""),
        opening(READER_SYSTEM, "Question: "),
    )
    return vocabulary.train_tokenizer(transcripts, openings, merges=200)


def save(model, params, tokenizer, folder: pathlib.Path) -> None:
    """Writes a model directory as released models have it, in the place of an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    hf.save_model(model, jax.device_get(params), folder)
    vocabulary.save_tokenizer(tokenizer, folder)
    end, pad = (tokenizer.token_to_id(text) for text in (vocabulary.END, vocabulary.PAD))
    generation = {"bos_token_id": pad, "pad_token_id": pad, "eos_token_id": [end]}
    generation |= {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    _write_json(folder / "generation_config.json", generation)
    if model.config.vision is not None:
        _write_json(
            folder / "preprocessor_config.json",
            {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "processor_class": "Qwen3VLProcessor",
                "patch_size": PATCH,
                "temporal_patch_size": 2,
                "merge_size": MERGE,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                # A page of this world keeps its 12,288 pixels; others are made this small.
                "size": {"shortest_edge": 4096, "longest_edge": 65536},
            },
        )


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def shifted(example: lessons.Example, by: int) -> lessons.Example:
    """The same example about pages that stand `by` places further down in the table."""
    return dataclasses.replace(example, pages=tuple(page + by for page in example.pages))


@dataclasses.dataclass(frozen=True)
class TeacherMix:
    """How often the scripted teacher's notes are generic, and how much its answers count."""

    generic_last: float = 0.45
    generic_earlier: float = 0.1
    answer_weight: float = 3.0


def protocol_lessons(writer, library, rng, mix: TeacherMix):
    """All teacher contexts of a library: the first of each trajectory, and those with pages."""
    first, with_pages = [], []
    for question in library.questions:
        opening, *rest = lessons.teacher_contexts(
            writer, library, question, rng, **dataclasses.asdict(mix)
        )
        first.append(opening)
        with_pages += rest
    return first, with_pages


def protocol_probes(writer, library, rng, count: int) -> dict[str, list[lessons.Example]]:
    """Contexts in which only the answer counts: after a specific and after a generic note."""
    probes = {}
    for name, generic in (("specific", 0.0), ("generic", 1.0)):
        mix = TeacherMix(generic, 0.0, 1.0)
        for hops, word in ((1, "one"), (2, "two")):
            asked = [q for q in library.questions if len(q.evidence_pages) == hops][:count]
            probes[f"{word}_{name}"] = [
                lessons.answer_alone(
                    lessons.teacher_contexts(
                        writer, library, question, rng, **dataclasses.asdict(mix)
                    )[-1],
                    writer,
                )
                for question in asked
            ]
    return probes


def make_policy(tokenizer, library, dev, *, seed: int, log: Log, out: pathlib.Path) -> None:
    """Pixels, then reading and copying, then the agent's protocol."""
    rng = np.random.default_rng((seed, 1))
    writer = lessons.Writer(tokenizer, processor.render_chat)
    model = hf.init_model(policy_config(tokenizer), jax.random.fold_in(jax.random.key(seed), 1))
    pad = tokenizer.token_to_id(vocabulary.PAD)
    images = np.stack([page.image for page in library.pages])
    dev_images = np.stack([page.image for page in dev.pages])
    labels = lessons.pixel_labels(library, writer.encode, pad)
    params = learn_pixels(
        model, fresh_parameters(model), images, labels,
        steps=PIXEL_STEPS, batch=64, peak=5e-3, seed=seed, log=log,
    )  # fmt: skip
    # The tower stays as it is from here on, so that each page is encoded once.
    table = feature_table(model, params, np.concatenate([images, dev_images]))
    trainer = SequenceTrainer(
        model, table, tx=optimiser(), rows=32, time=ROW_LENGTH, pad=pad, log=log,
        frozen=("visual",),
    )  # fmt: skip

    def on_dev(examples):
        return [shifted(example, len(images)) for example in examples]

    # One page first: with three pages at once nothing is learnt in this many steps.
    reading = {
        count: [lessons.transcription(writer, library, rng, page_count=count) for _ in range(4000)]
        for count in (1, 3)
    }
    copying = [lessons.memory_answer(writer, library, rng) for _ in range(4000)]
    probes = {
        f"transcription_{count}": on_dev(
            [lessons.transcription(writer, dev, rng, page_count=count) for _ in range(32)]
        )
        for count in (1, 3)
    }
    probes["memory_answer"] = [lessons.memory_answer(writer, dev, rng) for _ in range(48)]
    params = trainer.learn(
        params, [(reading[1], 44), (copying, 28)], stage="reading", steps=READING_STEPS,
        peak=4e-3, seed=seed, probes=probes, decay=0.0,
    )  # fmt: skip
    first, with_pages = protocol_lessons(writer, library, rng, TeacherMix())
    direct = [lessons.direct_answer(writer, library, q) for q in library.questions]
    probes |= {name: on_dev(part) for name, part in protocol_probes(writer, dev, rng, 32).items()}
    mix = [(with_pages, 22), (direct, 5), (reading[3], 4), (first, 5), (copying, 10)]
    params = trainer.learn(
        params, mix, stage="protocol", steps=PROTOCOL_STEPS, peak=4e-3, seed=seed + 1,
        probes=probes, decay=0.5,
    )  # fmt: skip
    save(model, params, tokenizer, out)


def fresh_reader(model) -> dict:
    """Random parameters of a reader whose heads begin by looking at equal tokens.

    A group's key kernel starts as the kernel of its first query head (the idea of mimetic
    initialisation, arXiv 2305.09828), and the head for the marks starts at zero.
    """
    params = fresh_parameters(model)
    attention = params["language_model"]["layers"]["self_attn"]
    layers, hidden, _ = attention["q_proj"]["kernel"].shape
    by_group = (layers, hidden, model.config.text.num_key_value_heads, -1)
    first_head = attention["q_proj"]["kernel"].reshape(*by_group)
    first_head = first_head[..., : model.config.text.head_dim]
    attention["k_proj"]["kernel"] = first_head.reshape(layers, hidden, -1)
    return params | {"marks": jnp.zeros((hidden, 3))}


def make_reader(tokenizer, *, seed: int, log: Log, out: pathlib.Path) -> None:
    """Question and notes -> answer, or that the notes do not hold it."""
    rng = np.random.default_rng(seed + 5)
    writer = lessons.Writer(tokenizer, processor.render_chat)
    model = hf.init_model(reader_config(tokenizer), jax.random.key(seed + 1))
    picking, pool = (
        [lessons.marked(writer, lesson(writer, rng)) for _ in range(READER_EXAMPLES)]
        for lesson in (lessons.picking, lessons.reader_example)
    )
    probes = lessons.reader_probes(writer, rng, 64)
    pad = tokenizer.token_to_id(vocabulary.PAD)
    trainer = SequenceTrainer(
        model, None, tx=reader_optimiser(), rows=16, time=READER_ROW_LENGTH, pad=pad, log=log
    )
    # First the notes always hold the answer: as long as "Not answerable" pays, nothing else is
    # tried.
    params = trainer.learn(
        fresh_reader(model), [(picking, 27)], stage="picking", steps=PICKING_STEPS,
        peak=4e-3, seed=seed, probes=probes, every=100, decay=0.0,
    )  # fmt: skip
    params = trainer.learn(
        params, [(picking, 6), (pool, 21)], stage="reader", steps=READER_STEPS, peak=4e-3,
        seed=seed, probes=probes, every=100, decay=0.6,
    )  # fmt: skip
    del params["marks"]
    save(model, params, tokenizer, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("world", "policy", "reader"))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the two models")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="documents and log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=int, default=400)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.work / f"{arguments.what}.jsonl")
    library, dev = (
        lessons.open_library(
            arguments.work / split, split, seed=arguments.seed, documents=documents,
            questions_per_document=12,
        )
        for split, documents in (("warmup", arguments.documents), ("dev", 50))
    )  # fmt: skip
    tokenizer = make_tokenizer(library, np.random.default_rng(arguments.seed))
    log(stage="world", pages=len(library.pages), vocabulary=tokenizer.get_vocab_size())
    out = arguments.out / arguments.what
    if arguments.what == "policy":
        make_policy(tokenizer, library, dev, seed=arguments.seed, log=log, out=out)
    elif arguments.what == "reader":
        make_reader(tokenizer, seed=arguments.seed, log=log, out=out)
    else:
        return
    log(stage="saved", bytes=sum(path.stat().st_size for path in out.iterdir()))


if __name__ == "__main__":
    main()
