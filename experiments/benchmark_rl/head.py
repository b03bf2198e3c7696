"""Gradients for hidden states and head at a real vocabulary, in blocks and with whole logits.

Reports what the compiler says it needs and, unless --compile_only, CPU seconds a call. One JSON
object on standard output.
"""

import argparse
import functools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from awm_jax.rl import log_probs

MIB = 2**20


def blocks(hidden, head, targets, *, chunk_size):
    return log_probs.token_log_probs(hidden, head, targets, chunk_size=chunk_size)


def whole(hidden, head, targets):
    every = jax.nn.log_softmax((hidden @ head.T).astype(jnp.float32))
    return jnp.take_along_axis(every, targets[:, None], axis=-1)[:, 0]


def policy_gradient(function, prompt):
    """Gradient of a clipped loss of the last tokens, behind `prompt` others."""

    def loss(hidden, head, targets, old, advantages):
        ratio = jnp.exp(function(hidden[prompt:], head, targets) - old)
        clipped = jnp.clip(ratio, 0.8, 1.28)
        return -jnp.minimum(ratio * advantages, clipped * advantages).mean()

    return jax.jit(jax.grad(loss, argnums=(0, 1)))


def shapes(options, prompt):
    tokens, dtype = options.tokens, jnp.dtype(options.dtype)
    return (
        jax.ShapeDtypeStruct((prompt + tokens, options.hidden), dtype),
        jax.ShapeDtypeStruct((options.vocab, options.hidden), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
        jax.ShapeDtypeStruct((tokens,), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.float32),
    )


def compiled(function, options, prompt=0):
    return policy_gradient(function, prompt).lower(*shapes(options, prompt)).compile()


def temporaries(program):
    return program.memory_analysis().temp_size_in_bytes / MIB


def seconds(programs, options):
    """CPU and wall seconds of each program; they take turns."""
    rng = np.random.default_rng(0)
    hidden, head, targets, old, advantages = shapes(options, 0)
    arguments = (
        jnp.asarray(rng.standard_normal(hidden.shape, np.float32), hidden.dtype),
        jnp.asarray(rng.standard_normal(head.shape, np.float32) / options.hidden**0.5),
        jnp.asarray(rng.integers(0, options.vocab, targets.shape), jnp.int32),
        jnp.full(old.shape, -12.0),
        jnp.asarray(rng.standard_normal(advantages.shape, np.float32)),
    )
    found = {name: {"cpu_s": [], "wall_s": []} for name in programs}
    for _ in range(options.repeats):
        for name, program in programs.items():
            start = time.process_time(), time.perf_counter()
            jax.block_until_ready(program(*arguments))
            found[name]["cpu_s"].append(time.process_time() - start[0])
            found[name]["wall_s"].append(time.perf_counter() - start[1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=2_560)
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--chunk_size", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--compile_only", action="store_true")
    options = parser.parse_args()
    in_blocks = functools.partial(blocks, chunk_size=options.chunk_size)
    programs = {"blocks": compiled(in_blocks, options), "whole": compiled(whole, options)}
    head_gradient = options.vocab * options.hidden * 4 / MIB
    reserved = {name: temporaries(program) for name, program in programs.items()}
    report = {
        "jax": jax.__version__,
        "options": vars(options),
        "head_gradient_mib": head_gradient,
        "temporaries_mib": reserved,
        "temporaries_mib_by_prompt_tokens": {
            prompt: temporaries(compiled(in_blocks, options, prompt)) for prompt in (4_096, 16_384)
        },
        # The head's gradient is summed where the result lies: it is not among the temporaries.
        "temporaries_ratio": reserved["blocks"] / reserved["whole"],
        "at_most": {"temporaries_ratio": 1 / 20, "cpu_ratio": 1.1},
    }
    if not options.compile_only:
        report["timings"] = seconds(programs, options)
        least = {name: min(timing["cpu_s"]) for name, timing in report["timings"].items()}
        report["cpu_ratio"] = least["blocks"] / least["whole"]
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
