"""In a copy of the package: how far the golden logits are, and the first test that fails."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

DATA = pathlib.Path("tests/data")


def largest_error() -> float | str:
    """Of the logits at real tokens, from ids, pixels and grids alone; or the error raised."""
    from awm_jax.models import hf

    golden = np.load(DATA / "tiny_qwen3_vl.npz")
    model = hf.load_model(DATA / "tiny_qwen3_vl", dtype="float32")
    real = golden["right.attention_mask"] != 0
    try:
        logits = model.apply(
            model.params,
            jnp.asarray(golden["right.input_ids"].astype(np.int32)),
            attention_mask=golden["right.attention_mask"],
            pixel_values=golden["pixel_values"].astype(np.float32),
            image_grid_thw=golden["image_grid_thw"],
        )
    except Exception as error:  # What a mutation may raise is not known.
        return type(error).__name__
    return float(np.abs(logits[real] - golden["logits"][real]).max())


class FirstFailure:
    """Keeps the name of the first test that fails."""

    def __init__(self):
        self.name = None

    def pytest_runtest_logreport(self, report):
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/models/")


def main():
    first = FirstFailure()
    tests = [f"tests/models/{name}" for name in sys.argv[1:]]
    options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = pytest.main([*options, *tests], plugins=[first])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"the tests did not run: {ended!r}")
    with jax.default_matmul_precision("highest"):
        error = largest_error()
    print()
    print(json.dumps({"largest_error": error, "noticed_by": first.name}))


if __name__ == "__main__":
    main()
