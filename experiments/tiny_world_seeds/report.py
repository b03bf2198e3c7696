"""What the seeds say: rates, and AWM against answer-only by question, each seed and all together.

python experiments/tiny_world_seeds/report.py runs/tiny_world_seeds SEED...   # results.json, table
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np

from awm_jax.agent import records
from awm_jax.evaluation import audit, cells, statistics

HERE = pathlib.Path(__file__).parent
VARIANTS = ("SFT-0", "answer_grpo-20", "awm_grpo-20", "answer_grpo-40", "awm_grpo-40")


def judged(path, seed):
    """Trajectories and verdicts; the seed is put into the question's id, so that seeds add up."""
    pairs = []
    for record in records.read_records(path):
        question = record.trajectory.question
        renamed = dataclasses.replace(question, id=f"{seed}/{question.id}")
        pairs.append((dataclasses.replace(record.trajectory, question=renamed), record.verdict))
    return pairs


def rates(pairs):
    """Shares of the judged rollouts, and of the right ones those whose memory cannot answer."""
    found = cells.summarize(verdict for _, verdict in pairs)
    words = [len(f.text.split()) for t, _ in pairs for f in t.memory.findings]
    return {
        "rollouts": len(pairs),
        "final_acc": found.final_acc,
        "mem_acc": found.mem_acc,
        "p_mmc": found.p_mmc,
        "p_mmc_interval": found.p_mmc_interval,
        "cells": dataclasses.asdict(found),
        "echo_rate": audit.artifact_audit(pairs).echo_rate,
        "words_a_finding": float(np.mean(words)),
    }


def change(first, second):
    """Differences in percentage points with their 95 % intervals, paired by question."""
    found = statistics.paired_bootstrap(first, second, seed=0)
    return {
        name: [100 * x for x in (value.difference, value.low, value.high)]
        for name in ("p_mmc", "mem_acc", "final_acc")
        for value in [getattr(found, name)]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("seeds", nargs="+", type=int)
    options = parser.parse_args()
    report = {
        "seeds": {},
        "times": {},
        "awm_less_answer_only": {},
        "second_reader": {},
        "ablations": {},
    }
    everything = {}
    for seed in options.seeds:
        folder = options.work / str(seed)
        places = {
            ("full", name): folder / "train" / f"evaluation-{name}.jsonl" for name in VARIANTS
        } | {("given", name): folder / f"given-{name}" / "trajectories.jsonl" for name in VARIANTS}
        for key, path in places.items():
            if path.exists():
                everything.setdefault(key, {})[seed] = judged(path, seed)
        for name in VARIANTS:
            summary = folder / f"second-{name}" / "summary.json"
            if summary.exists():
                second = json.loads(summary.read_text())["second_reader"]
                report["second_reader"].setdefault(seed, {})[name] = second
        ablations = sorted((folder / "ablations").glob("*/summary.json"))
        if ablations:
            report["ablations"][seed] = {
                path.parent.name: json.loads(path.read_text())["rows"] for path in ablations
            }
        report["times"][seed] = {
            str(path.relative_to(folder).with_suffix("")): json.loads(path.read_text())
            for path in sorted(folder.rglob("*.time"))
        }
    for (setting, name), by_seed in everything.items():
        for seed, pairs in by_seed.items():
            report["seeds"].setdefault(seed, {})[f"{setting} {name}"] = rates(pairs)
    for setting in ("full", "given"):
        for steps in (20, 40):
            first = everything.get((setting, f"answer_grpo-{steps}"), {})
            second = everything.get((setting, f"awm_grpo-{steps}"), {})
            both = [seed for seed in first if seed in second]
            found = {seed: change(first[seed], second[seed]) for seed in both}
            if len(both) > 1:
                one, other = ([p for seed in both for p in runs[seed]] for runs in (first, second))
                found["pooled"] = change(one, other)
            if found:
                report["awm_less_answer_only"][f"{setting} {steps}"] = found
    (HERE / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    print(
        "| seed | variant | final acc. | mem acc. | P_mmc | 95 % interval | echoes | words a note |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for seed, variants in report["seeds"].items():
        for name, r in variants.items():
            low, high = (100 * x for x in r["p_mmc_interval"])
            print(
                f"| {seed} | {name} | {100 * r['final_acc']:.1f} | {100 * r['mem_acc']:.1f} | "
                f"{100 * r['p_mmc']:.1f} | [{low:.1f}, {high:.1f}] | {100 * r['echo_rate']:.1f} | "
                f"{r['words_a_finding']:.1f} |"
            )
    print("\n| seed | run | P_mmc of two readers | kappa | agreement |\n|---|---|---:|---:|---:|")
    for seed, runs in report["second_reader"].items():
        for name, r in runs.items():
            both = " and ".join(f"{100 * share:.1f}" for share in r["p_mmc"])
            print(f"| {seed} | {name} | {both} | {r['kappa']:.3f} | {r['agreement']:.4f} |")
    print("\n| seed | ablation | variant | final acc. | mem acc. | P_mmc |")
    print("|---|---|---|---:|---:|---:|")
    for seed, ablations in report["ablations"].items():
        for name, rows in ablations.items():
            for row in rows:
                shares = (row["final_acc"], row["mem_acc"], row["p_mmc"])
                shown = " | ".join(f"{100 * share:.1f}" for share in shares)
                print(f"| {seed} | {name} | {row['variant']} | {shown} |")
    print("\n| setting, updates | seed | P_mmc | memory | final |\n|---|---|---:|---:|---:|")
    for setting, by_seed in report["awm_less_answer_only"].items():
        for seed, found in by_seed.items():
            shown = " | ".join("{:+.1f} [{:.1f}, {:.1f}]".format(*x) for x in found.values())
            print(f"| {setting} | {seed} | {shown} |")


if __name__ == "__main__":
    main()
