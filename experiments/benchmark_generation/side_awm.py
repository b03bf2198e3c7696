"""Our side, through `serving.Conversations`, as an agent's policy is sampled."""

import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import worker

from awm_jax.models import encode, generate, hf, processor, serving
from awm_jax.rl.log_probs import token_log_probs

FOLDER = sys.argv[1]
POLICY = pathlib.Path(__file__).parents[1] / "tiny_world" / "policy"
model = hf.load_model(FOLDER, dtype="float32")
policy, pages_of_policy = hf.load_model(POLICY, dtype="float32"), processor.load_processor(POLICY)
BANNED = np.zeros(model.config.text.vocab_size, bool)


def conversations(count, new, lengths, piece=None):
    """As an agent's policy keeps them: `lengths` are the prompts that there is room for."""
    return serving.Conversations(
        model,
        model.params,
        encode=None,
        pad_id=0,
        stop_ids=(),
        banned=BANNED,
        max_new_tokens=new,
        prompt_buckets=lengths,
        batch_buckets=(count,),
        cache_rows=None,
        prefill_chunk=piece,
        decode_chunk=new,
        choice=(1.0, 0, 0.0),
    )


def request(row, turn, ids, kept):
    time = len(ids)
    return serving.Request(
        ids=ids,
        positions=np.broadcast_to(np.arange(time, dtype=np.int32), (3, time)),
        pages=(),
        page_tokens=(),
        is_image=np.zeros(time, bool),
        kept=kept,
        kept_pages=0,
        seed=(row, turn),
    )


def complete(prompts, new, slots):
    time = len(prompts[0])
    room = slots - worker.SAMPLED_ALONE
    lengths = tuple(sorted({time, room}))
    ids = np.array(prompts, np.int32)
    ask = conversations(len(prompts), new, lengths)
    ask([request(row, 0, each, 0) for row, each in enumerate(ids)], 0.0)


def turns():
    """Compiles, too; the answer is the number of programs."""
    before = generate.program_count()
    length = worker.TURNS * (worker.NEW + worker.SAMPLED)
    ask = conversations(worker.CONVERSATIONS, worker.SAMPLED, (length,), 64)
    new = worker.prompts(worker.CONVERSATIONS, worker.TURNS * worker.NEW)
    held = [np.zeros(0, np.int32)] * worker.CONVERSATIONS
    for turn in range(worker.TURNS):
        requests = []
        for row, earlier in enumerate(held):
            own = new[row][turn * worker.NEW : (turn + 1) * worker.NEW]
            ids = np.concatenate([earlier, own]).astype(np.int32)
            requests.append(request(row, turn, ids, len(earlier)))
        done = ask(requests, 0.0)
        held = [
            np.concatenate([asked.ids, each.token_ids])
            for asked, each in zip(requests, done, strict=True)
        ]
    return generate.program_count() - before


@jax.jit
def _gradient(params, ids):
    def loss(params):
        hidden, head = model.hidden(params, ids)[:, :-1], model.output_embedding(params)
        return -token_log_probs(hidden, head, ids[:, 1:], chunk_size=256).mean()

    return jax.value_and_grad(loss)(params)


def gradient():
    """Loss and full gradient of 8 x 256 tokens."""
    loss, gradients = _gradient(model.params, jnp.array(worker.prompts(8, 256), jnp.int32))
    jax.block_until_ready(gradients)
    return float(loss)


def page_features(rollouts):
    """The vision tower's part of a number of rollouts that look at the same 12 pages."""
    features = encode.PageFeatures(policy, policy.params, pages_of_policy)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 512, 384, 3), dtype=np.uint8)
    pages = [
        types.SimpleNamespace(image=image, digest=str(number))
        for number, image in enumerate(images)
    ]
    for start in range(0, len(pages), 3):
        for _ in range(rollouts):
            features.encode(pages[start : start + 3])


if __name__ == "__main__":
    worker.serve(
        complete,
        {
            "turns": turns,
            "gradient": gradient,
            "pages of 1": lambda: page_features(1),
            "pages of 8": lambda: page_features(8),
        },
        ("jax", "jaxlib", "flax"),
    )
