"""What a number needs beside it to be made again: commit, versions, prompts, configuration."""

import importlib.metadata
import platform
import subprocess
from typing import Any

import ml_collections

from awm_jax.agent import prompts

_PACKAGES = ("awm-jax", "jax", "flax", "optax", "transformers", "pymupdf", "qdrant-client")


def facts(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The resolved configuration and what it ran on."""
    return {
        "commit": _commit(),
        "prompts": prompts.prompt_hash(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "config": config.to_dict(),
    }


def _commit() -> str:
    """The checkout's commit, marked where the tree differs from it; "unknown" outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
