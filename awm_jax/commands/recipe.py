"""The paper's data recipe (section 4.1), from questions to SFT trajectories and RL groups.

Five steps, each a folder of the run directory with a manifest. A step that is finished is not
done again; one that was killed goes on.

    questions    a subset of the data set, none about a document of an evaluation set
    teacher      the teacher's rollouts on all of them
    difficulty   the policy's rollouts on all of them
    split        trajectories for SFT, balanced over difficulty, and the pool for RL
    groups       the fine-tuned policy's rollouts on the pool; the groups that are mixed

`sft` fine-tunes between `split` and `groups`, which needs its policy.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections

from awm_jax import servers
from awm_jax.agent import records, rollout
from awm_jax.commands import display, sources
from awm_jax.datasets import doc750k, recipe, steps
from awm_jax.evaluation.run import evaluate
from awm_jax.types import Question, Trajectory, Verdict

STEPS = ("questions", "teacher", "difficulty", "split", "groups")
QUESTIONS, TRAJECTORIES, SFT, POOL = (
    "questions.jsonl",
    "trajectories.jsonl",
    "sft.jsonl",
    "pool.jsonl",
)


def run(config: ml_collections.ConfigDict) -> None:
    """Does the steps up to `config.until`, in order."""
    if config.until not in STEPS:
        raise ValueError(f"until {config.until!r}: expected one of {STEPS}")
    run_dir = pathlib.Path(config.run_dir)
    doers = dict(zip(STEPS, (_questions, _teacher, _difficulty, _split, _groups), strict=True))
    for name in STEPS[: STEPS.index(config.until) + 1]:
        manifest, new = doers[name](config, run_dir)
        counts = ", ".join(f"{what} {count}" for what, count in manifest["counts"].items())
        display.show_plan("", [(name, ("" if new else "done before: ") + counts)])
    display.show_files([run_dir / name for name in STEPS[: STEPS.index(config.until) + 1]])


def _questions(config, run_dir) -> tuple[dict[str, Any], bool]:
    def make(folder: pathlib.Path) -> dict[str, Any]:
        questions, images, digest = sources.load_questions(config.data)
        chosen = recipe.choose(
            questions, config.questions.count, seed=config.questions.seed, name=lambda q: q.id
        )
        if images:
            documents = [question.document for question in chosen]
            doc750k.link_pages(config.data.root, folder / "documents", images, documents)
        counts = {"of": len(questions), "data_sha256": digest, "chosen": len(chosen)}
        found = _overlaps(config, chosen)
        about = {o.question for o in found if o.kind in (recipe.SAME_NAME, recipe.SAME_FILE)}
        if about:
            raise ValueError(
                f"{len(about)} questions are about documents of an evaluation set: "
                + "; ".join(f"{o.question}: {o.kind} ({o.found})" for o in found[:10])
            )
        dropped = {o.question for o in found} if config.questions.drop_same_text else set()
        kept = [question for question in chosen if question.id not in dropped]
        steps.write_questions(folder / QUESTIONS, kept)
        counts |= dict(collections.Counter(overlap.kind for overlap in found))
        return counts | {"kept": len(kept)}

    return steps.do_step(
        run_dir / "questions",
        settings={
            "data": sources.data_settings(config.data),
            "questions": config.questions.to_dict(),
            "evaluation_sets": config.evaluation_sets.to_dict(),
        },
        inputs={},
        outputs=(QUESTIONS,),
        make=make,
    )


def _teacher(config, run_dir) -> tuple[dict[str, Any], bool]:
    return _rollouts(config, run_dir, "teacher", config.teacher, run_dir / "questions" / QUESTIONS)


def _difficulty(config, run_dir) -> tuple[dict[str, Any], bool]:
    asked = run_dir / "questions" / QUESTIONS
    return _rollouts(config, run_dir, "difficulty", config.difficulty, asked)


def _split(config, run_dir) -> tuple[dict[str, Any], bool]:
    inputs = {
        "questions": run_dir / "questions" / QUESTIONS,
        "teacher": run_dir / "teacher" / TRAJECTORIES,
        "difficulty": run_dir / "difficulty" / TRAJECTORIES,
    }

    def make(folder: pathlib.Path) -> dict[str, Any]:
        best = recipe.best_trajectories(_judged(inputs["teacher"]))
        made = recipe.split(
            steps.read_questions(inputs["questions"]),
            best,
            recipe.solve_rates(_judged(inputs["difficulty"])),
            **config.split,
        )
        (folder / SFT).unlink(missing_ok=True)
        records.append_records(folder / SFT, map(records.Record, made.sft))
        steps.write_questions(folder / POOL, made.pool)
        return {
            "teachable": len(best),
            "sft": len(made.sft),
            "pool": len(made.pool),
            "unjudged": len(made.unjudged),
            # Hardest first: of so many so many were taken.
            "buckets": [f"{taken} of {held}" for held, taken in made.buckets],
        }

    return steps.do_step(
        run_dir / "split",
        settings={"split": config.split.to_dict()},
        inputs=inputs,
        outputs=(SFT, POOL),
        make=make,
    )


def _groups(config, run_dir) -> tuple[dict[str, Any], bool]:
    asked = run_dir / "split" / POOL

    def keep(folder: pathlib.Path, judged) -> dict[str, Any]:
        rates = recipe.solve_rates(judged)
        pool = steps.read_questions(asked)
        mixed = recipe.mixed_questions(pool, rates)
        steps.write_questions(folder / QUESTIONS, mixed)
        # What `dataset="recipe"` of another config reads is one folder.
        documents = folder / "documents"
        documents.unlink(missing_ok=True)
        documents.symlink_to((_documents(config, run_dir) / "documents").resolve())
        return {
            "pool": len(pool),
            "mixed": len(mixed),
            "always_right": sum(rate.correct == rate.attempts for rate in rates.values()),
            "never_right": sum(rate.correct == 0 for rate in rates.values()),
        }

    return _rollouts(
        config, run_dir, "groups", config.groups, asked, outputs=(QUESTIONS,), after=keep
    )


def _rollouts(
    config,
    run_dir,
    name,
    section,
    asked,
    *,
    outputs=(),
    after=lambda folder, judged: {},
) -> tuple[dict[str, Any], bool]:
    """A step of rollouts: every question of a file, `section.samples` times, judged."""
    settings = dataclasses.replace(
        rollout.RolloutSettings(**config.rollout), temperature=section.temperature
    )

    def make(folder: pathlib.Path) -> dict[str, Any]:
        questions = steps.read_questions(asked)
        path = folder / TRAJECTORIES
        with sources.open_library(
            config.data,
            questions,
            documents_in=_documents(config, run_dir) / "documents",
            index_at=config.index_at or run_dir / "index",
        ) as library:
            generate = sources.make_generate(section, questions)
            play = functools.partial(
                rollout.run_rollouts,
                search=library.search,
                render=library.render,
                settings=settings,
            )
            roll_out = functools.partial(play, generate=generate)
            if section.kind == "server":
                at_once = 2 * servers.Server(**section.server).concurrency
                roll_out = rollout.each_alone(play, generate, at_once=at_once)
            judged = evaluate(
                questions,
                roll_out=roll_out,
                judge=sources.make_judge(config.reader),
                seed=(config.seed, STEPS.index(name)),
                samples=section.samples,
                path=path,
                at_once=config.at_once,
                # What failed for a reason that may have passed.
                redo_failed=True,
            )
        failed = [(t, v) for t, v in judged if not t.valid or v.error]
        if len(failed) > config.most_failures * len(judged):
            raise ValueError(
                f"{name}: {len(failed)} of {len(judged)} rollouts failed, more than the share "
                f"{config.most_failures} that may. Run the command again to try those again. The "
                f"first: {failed[0][1].error or failed[0][0].error}"
            )
        right = [trajectory for trajectory, verdict in judged if verdict.answer_correct]
        return {
            "questions": len(questions),
            "rollouts": len(judged),
            "right": len(right),
            "questions_right": len({trajectory.question.id for trajectory in right}),
            "failed": len(failed),
            "memory_answerable": sum(verdict.memory_answerable for _, verdict in judged),
            "statuses": dict(collections.Counter(t.status for t, _ in judged)),
        } | after(folder, judged)

    return steps.do_step(
        run_dir / name,
        settings={
            name: sources.described(section),
            "rollout": config.rollout.to_dict(),
            "reader": sources.described(config.reader),
            "data": sources.data_settings(config.data),
            "seed": config.seed,
        },
        inputs={"questions": asked},
        outputs=(TRAJECTORIES, *outputs),
        make=make,
    )


def _judged(path: pathlib.Path) -> list[tuple[Trajectory, Verdict]]:
    return [(record.trajectory, record.verdict) for record in records.read_records(path)]


def _overlaps(config, questions: Sequence[Question]) -> list[recipe.Overlap]:
    found = []
    for section in config.evaluation_sets.values():
        if section.root is None:
            raise ValueError("an evaluation set without a root; name its folder to check against")
        others, _, _ = sources.load_questions(section)
        found += recipe.overlaps(
            questions,
            others,
            digests=_file_digests(config.data.root, questions),
            other_digests=_file_digests(section.root, others),
        )
    return found


def _file_digests(root: str, questions: Sequence[Question]) -> dict[str, str]:
    """sha256 of the questions' documents, by id, of those that are a file."""
    folder = pathlib.Path(root) / "documents"
    names = dict.fromkeys(question.document for question in questions)
    return {name: steps.file_digest(folder / name) for name in names if (folder / name).is_file()}


def _documents(config, run_dir: pathlib.Path) -> pathlib.Path:
    """The folder in which `documents/` lies."""
    return (
        run_dir / "questions"
        if config.data.dataset == "doc750k"
        else pathlib.Path(config.data.root)
    )
