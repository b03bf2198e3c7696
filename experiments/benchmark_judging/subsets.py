"""Writes the lists of question ids that our diagnoses use. Ids alone: the data are not ours."""

import json
import pathlib
import sys

from awm_jax.datasets import mmlongbench

HERE = pathlib.Path(__file__).parent / "subsets"


def lists(path: str | pathlib.Path) -> dict[str, dict]:
    """Name -> rule, seed, hash of the file and ids."""
    questions, report = mmlongbench.load(path)
    chosen = {
        "mmlongbench_500": (
            mmlongbench.fixed_subset(questions, report),
            "awm_jax.datasets.mmlongbench.fixed_subset, size 500",
            mmlongbench.SUBSET_SEED,
        ),
        "mmlongbench_ep_given": (
            mmlongbench.evidence_given(questions, report),
            "awm_jax.datasets.mmlongbench.evidence_given, one or two gold pages",
            None,
        ),
    }
    return {
        name: {
            "rule": rule,
            "seed": seed,
            "count": len(found),
            "sha256_of_samples_json": report.digest,
            "ids": [question.id for question in found],
        }
        for name, (found, rule, seed) in chosen.items()
    }


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, content in lists(sys.argv[1]).items():
        (HERE / f"{name}.json").write_text(json.dumps(content, indent=0) + "\n")
        print(f"{name}: {content['count']} ids")
