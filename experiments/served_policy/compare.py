"""The same policy on this machine's devices and behind a server: do the conversations agree?

Both are asked greedily, with the documents, tools and prompts of the tiny world. Writes
result.json beside this file.
"""

import argparse
import contextlib
import json
import pathlib

from awm_jax.agent import rollout
from awm_jax.commands.served import find_server
from awm_jax.datasets import tiny_world
from awm_jax.documents import index, pdf
from awm_jax.models import hf
from awm_jax.models.processor import load_processor
from awm_jax.policy import make_generate
from awm_jax.policy_served import make_served_generate

CHECKPOINT = pathlib.Path("experiments/tiny_world/policy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--server", required=True, help="name and version, for the result")
    parser.add_argument("--questions", type=int, default=16)
    arguments = parser.parse_args()
    root = pathlib.Path("runs/worlds/served_policy")
    questions = tiny_world.make_world(root, "test", seed=0, documents=4)[: arguments.questions]
    documents, _ = pdf.open_documents(root / "documents", (q.document for q in questions))
    model = hf.load_model(str(CHECKPOINT), dtype="float32")
    local = make_generate(
        model,
        model.params,
        load_processor(str(CHECKPOINT)),
        max_new_tokens=64,
        prompt_buckets=(256,),
        batch_buckets=(16,),
    )
    served = make_served_generate(find_server(arguments.url, concurrency=2), max_tokens=64)
    with contextlib.closing(index.open_client(":memory:")) as client:
        index.build_index(client, list(documents.values()))

        def roll_out(generate):
            return rollout.run_rollouts(
                [(question, 0, (place,)) for place, question in enumerate(questions)],
                generate,
                search=index.make_search(client, list(documents.values())),
                render=pdf.make_render(documents, dpi=72, max_pixels=96 * 128),
                settings=rollout.RolloutSettings(temperature=0.0),
            )

        ours, theirs = roll_out(local), roll_out(served)
    said = [[[turn.sample.text for turn in t.turns] for t in found] for found in (ours, theirs)]
    result = {
        "server": arguments.server,
        "conversations": len(ours),
        "messages": sum(len(texts) for texts in said[0]),
        "conversations with the same messages": sum(a == b for a, b in zip(*said, strict=True)),
        "statuses here": sorted({t.status for t in ours}),
        "statuses there": sorted({t.status for t in theirs}),
    }
    text = json.dumps(result, indent=1)
    pathlib.Path(__file__).with_name("result.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
