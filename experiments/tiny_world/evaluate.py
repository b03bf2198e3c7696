"""What the tiny policy does before RL, sampled with the agent itself on development documents.

python experiments/tiny_world/evaluate.py --models experiments/tiny_world --work runs/pretrain
"""

import argparse
import collections
import json
import pathlib

import lessons

from awm_jax import policy
from awm_jax.agent import rollout
from awm_jax.judging import mmlongbench, reader
from awm_jax.models import hf, processor


def load(folder: pathlib.Path, **limits):
    """A model directory as `Generate`."""
    model = hf.load_model(folder, dtype="float32")
    return policy.make_generate(model, model.params, processor.load_processor(folder), **limits)


def evaluate(models: pathlib.Path, library: lessons.Library, *, samples: int, seed: int) -> dict:
    """Rates over all rollouts, and over those of one-hop and of two-hop questions."""
    generate = load(
        models / "policy", max_new_tokens=48, prompt_buckets=(32, 96, 192), batch_buckets=(64, 256)
    )
    read = load(
        models / "reader",
        max_new_tokens=16,
        prompt_buckets=(64, 160),
        batch_buckets=(256,),
        enable_thinking=False,
    )
    tasks = [
        (question, rollout_index, (seed, place, rollout_index))
        for place, question in enumerate(library.questions)
        for rollout_index in range(samples)
    ]
    trajectories = rollout.run_rollouts(
        tasks,
        generate,
        search=library.search,
        render=library.page,
        settings=rollout.RolloutSettings(max_steps=6),
    )
    items = [(t.question.text, t.memory) for t in trajectories]
    answers = reader.read_memories(read, items, seed=(seed,))
    groups = collections.defaultdict(list)
    for trajectory, answer in zip(trajectories, answers, strict=True):
        gold, kind = trajectory.question.answer, trajectory.question.answer_format
        right = mmlongbench.score(gold, trajectory.final_answer, kind) > 0
        answerable = mmlongbench.score(gold, answer, kind) > 0
        violations = any(turn.violations for turn in trajectory.turns)
        hops = ("one", "two")[len(trajectory.question.evidence_pages) - 1]
        for group in ("all", hops):
            groups[group].append((right, answerable, trajectory.status, violations))
    result = {}
    for group, rows in sorted(groups.items()):
        correct = [row for row in rows if row[0]]
        result[group] = {
            "rollouts": len(rows),
            "final_acc": round(sum(row[0] for row in rows) / len(rows), 3),
            "mem_acc": round(sum(row[1] for row in rows) / len(rows), 3),
            "p_mmc": round(sum(not row[1] for row in correct) / max(1, len(correct)), 3),
            "clean": round(sum(not row[3] for row in rows) / len(rows), 3),
            "status": dict(collections.Counter(row[2] for row in rows)),
        }
    notes = [finding.text for t in trajectories for finding in t.memory.findings]
    result["notes"] = collections.Counter(
        "".join("#" if letter.isdigit() else letter for letter in note) for note in notes
    ).most_common(5)
    # What follows from a group of 8: does it have a spread to learn from?
    by_question = collections.defaultdict(set)
    for trajectory, row in zip(trajectories, groups["all"], strict=True):
        by_question[trajectory.question.id].add(row[:2])
    result["answer_spread"] = round(
        sum(len({cell[0] for cell in cells}) > 1 for cells in by_question.values())
        / len(by_question),
        3,
    )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the world")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--documents", type=int, default=50)
    arguments = parser.parse_args()
    library = lessons.open_library(
        arguments.work / "dev", "dev", seed=arguments.seed, documents=arguments.documents,
        questions_per_document=4,
    )  # fmt: skip
    result = evaluate(arguments.models, library, samples=arguments.samples, seed=arguments.seed)
    for name, value in result.items():
        print(name, json.dumps(value))


if __name__ == "__main__":
    main()
