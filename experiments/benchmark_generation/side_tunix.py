"""The sampler of google-tunix 0.1.7, on its own Qwen3."""

import sys

import jax.numpy as jnp
import worker
from tunix.generate import sampler
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params

CONFIG = qwen3.ModelConfig(
    num_layers=4,
    vocab_size=32_000,
    embed_dim=256,
    hidden_dim=1_024,
    num_heads=8,
    head_dim=32,
    num_kv_heads=4,
    rope_theta=1_000_000,
    norm_eps=1e-6,
    use_tied_embedding=True,
)


class Numbers:
    """A tokenizer whose text is the ids."""

    def encode(self, text, **_):
        return [int(word) for word in text.split()]

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def bos_id(self):
        return worker.VOCABULARY

    def eos_id(self):
        return worker.VOCABULARY

    def pad_id(self):
        return 0


model = qwen3_params.create_model_from_safe_tensors(sys.argv[1], CONFIG, dtype=jnp.float32)


def make_sampler(slots):
    sizes = (slots, CONFIG.num_layers, CONFIG.num_kv_heads, CONFIG.head_dim)
    return sampler.Sampler(model, Numbers(), sampler.CacheConfig(*sizes))


samplers = {}


def sample(prompts, new, slots, room):
    if slots not in samplers:
        samplers[slots] = make_sampler(slots)
    # The sampler puts its begin token in front: it stands for the first.
    texts = [" ".join(map(str, prompt[1:])) for prompt in prompts]
    # An end that is never sampled.
    out = samplers[slots](texts, new, max_prompt_length=room, eos_tokens=[-1])
    return [[int(token) for token in tokens] for tokens in out.tokens]


def complete(prompts, new, slots):
    sample(prompts, new, slots, room=len(prompts[0]))


def turns():
    """The whole conversation is read again at each turn, in a room of fixed size."""
    room = worker.TURNS * (worker.NEW + worker.SAMPLED)
    new = worker.prompts(worker.CONVERSATIONS, worker.TURNS * worker.NEW)
    held = [[] for _ in new]
    for turn in range(worker.TURNS):
        own = slice(turn * worker.NEW, (turn + 1) * worker.NEW)
        held = [earlier + row[own] for earlier, row in zip(held, new, strict=True)]
        sampled = sample(held, worker.SAMPLED, slots=room + worker.SAMPLED, room=room)
        held = [earlier + tokens for earlier, tokens in zip(held, sampled, strict=True)]


if __name__ == "__main__":
    worker.serve(complete, {"turns": turns}, ("google-tunix", "jax", "jaxlib", "flax"))
