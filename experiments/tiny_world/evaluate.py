"""The tiny models before RL, on development documents: the agent's rates, the reader's replies.

python experiments/tiny_world/evaluate.py --models experiments/tiny_world --work runs/pretrain
"""

import argparse
import collections
import json
import pathlib

import lessons
import numpy as np

from awm_jax import policy
from awm_jax.agent import rollout
from awm_jax.datasets import tiny_world
from awm_jax.judging import mmlongbench, reader
from awm_jax.models import hf, processor
from awm_jax.types import Finding, Memory, Question


def load(folder: pathlib.Path, **limits):
    """A model directory as `Generate`."""
    model = hf.load_model(folder, dtype="float32")
    return policy.make_generate(model, model.params, processor.load_processor(folder), **limits)


def reader_notes(
    question: Question, rng: np.random.Generator
) -> dict[str, tuple[list[Finding], bool]]:
    """By kind: notes about a question, and whether they answer it."""
    attribute, rivers = tiny_world.parse_question(question.text)
    values, pages = tiny_world.gold_values(question), question.evidence_pages

    def note(text, place):
        return Finding(pages[place], text)

    def another(names, *taken):
        return str(rng.choice([name for name in names if name not in taken]))

    facts = [
        tiny_world.FINDING.format(attribute=attribute, river=river, value=value)
        for river, value in zip(rivers, values, strict=True)
    ]
    right = [note(text, place) for place, text in enumerate(facts)]
    generic = [note(f"lists values of {river}", place) for place, river in enumerate(rivers)]
    other_river = another(tiny_world.RIVERS, *rivers)
    other_attribute = another(tiny_world.ATTRIBUTES, attribute)
    in_place = {
        "the last of another river": facts[-1].replace(rivers[-1], other_river),
        "the last of another attribute": facts[-1].replace(attribute, other_attribute),
    }
    return {
        "right": (right, True),
        "generic, then right": (generic[-1:] + right, True),
        "generic": (generic, False),
        "the last generic": (right[:-1] + generic[-1:], False),
        "none": ([], False),
        **{name: (right[:-1] + [note(text, -1)], False) for name, text in in_place.items()},
    }


def evaluate_reader(read, library: lessons.Library, *, seed: int) -> dict:
    """The share of right replies by kind of notes, and of how many, by hops."""
    rng = np.random.default_rng(seed)
    notes = [reader_notes(question, rng) for question in library.questions]
    shares = {}
    for kind in notes[0]:
        items = [
            (question.text, Memory(tuple(by_kind[kind][0])))
            for question, by_kind in zip(library.questions, notes, strict=True)
        ]
        replies = reader.read_memories(read, items, seed=(seed,))
        right = collections.defaultdict(list)
        for question, by_kind, reply in zip(library.questions, notes, replies, strict=True):
            gold = tiny_world.answer_text(tiny_world.gold_values(question))
            expected = gold if by_kind[kind][1] else lessons.NOT_ANSWERABLE
            right[len(question.evidence_pages)].append(reply == expected)
        shares[kind] = {
            f"{hops} hops": (round(sum(found) / len(found), 3), len(found))
            for hops, found in sorted(right.items())
        }
    return shares


def evaluate(generate, read, library: lessons.Library, *, samples: int, seed: int) -> dict:
    """Rates over all rollouts, and over those of one-hop and of two-hop questions."""
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
    generate = load(
        arguments.models / "policy",
        max_new_tokens=48,
        prompt_buckets=(32, 96, 192),
        batch_buckets=(64, 256),
    )
    read = load(
        arguments.models / "reader",
        max_new_tokens=16,
        prompt_buckets=(64, 160),
        batch_buckets=(256,),
        enable_thinking=False,
    )
    for name, value in (
        evaluate_reader(read, library, seed=arguments.seed)
        | evaluate(generate, read, library, samples=arguments.samples, seed=arguments.seed)
    ).items():
        print(name, json.dumps(value))


if __name__ == "__main__":
    main()
