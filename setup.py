"""Packaging of awm_jax: AWM-GRPO in JAX/Flax."""

import pathlib

import setuptools

setuptools.setup(
    name="awm-jax",
    version="0.1.0",
    description="AWM-GRPO in JAX/Flax: document agents that leave notes one can answer from",
    long_description=(pathlib.Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=setuptools.find_packages(include=["awm_jax", "awm_jax.*"]),
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "chex>=0.1.90",
        "flax>=0.12.6",
        "jax>=0.10.2",
        "jinja2>=3.1",
        "matplotlib>=3.9",
        "ml-collections>=1.1",
        "numpy>=2.0",
        "openai>=2.0",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.12.8",
        "pillow>=11.0",
        "pymupdf>=1.26",
        "qdrant-client>=1.16",
        "rapidfuzz>=3.10",
        "rich>=14.0",
        "safetensors>=0.6",
        "tokenizers>=0.22",
        "transformers>=5.0",
    ],
    package_data={
        "awm_jax.agent": ["trajectory.schema.json"],
        "awm_jax.evaluation": ["report.html"],
    },
    extras_require={
        "test": [
            "pytest>=8.0",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.120",
            "ruff>=0.12",
        ],
        # Live comparison with Hugging Face; the committed goldens need none of it.
        "parity": ["torch>=2.8"],
        # What `log_to` of a config may name.
        "tensorboard": ["tensorboardX>=2.6"],
        "wandb": ["wandb>=0.17"],
        # Plans for TPUs without them: `python -m awm_jax plan`.
        "plan": ["libtpu>=0.0.42"],
    },
    classifiers=[
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
