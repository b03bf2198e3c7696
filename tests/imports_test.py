"""Who may import whom: the source of the package is parsed, nothing is run."""

import ast
import pathlib

from absl.testing import absltest, parameterized

PACKAGE = pathlib.Path(__file__).parents[1] / "awm_jax"

# What each package may import from awm_jax, itself aside. Host code knows no JAX, device code
# knows no documents; they meet in policy, training and the command line.
MAY_IMPORT = {
    "types": set(),
    "servers": set(),
    "rl": set(),
    "models": set(),
    "documents": {"types", "servers"},
    "judging": {"types", "servers"},
    "datasets": {"types", "documents"},
    "agent": {"types", "documents"},
    "policy": {"types", "models", "servers"},
    "policy_served": {"types", "models", "servers"},
    "training": {"types", "rl", "models", "policy", "agent", "judging", "datasets"},
    "evaluation": {"types", "documents", "agent", "judging", "datasets"},
}
EVERYTHING = {"commands", "cli", "__main__"}
NEVER_JAX = {
    "types",
    "servers",
    "policy_served",
    "documents",
    "judging",
    "datasets",
    "agent",
    "evaluation",
}
DEVICE_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "chex", "orbax"}
ONLY_COMMANDS = {"absl", "ml_collections"}


def _part(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(source: str) -> set[str]:
    """Dotted names of all modules that the source imports, at any depth of nesting."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"relative import on line {node.lineno}; write the whole name")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def violations(part: str, source: str) -> list[str]:
    """What the source of a module in `part` imports although it may not."""
    if part in EVERYTHING or part == "__init__":
        return []

    def forbidden(name: str) -> bool:
        top, *rest = name.split(".")
        if top == "awm_jax":
            return bool(rest) and rest[0] not in MAY_IMPORT[part] | {part}
        return top in ONLY_COMMANDS or (top in DEVICE_LIBRARIES and part in NEVER_JAX)

    return sorted(name for name in _imported(source) if forbidden(name))


SOURCES = sorted(PACKAGE.rglob("*.py"))


class ImportsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        (str(path.relative_to(PACKAGE)).replace("/", "_").removesuffix(".py"), path)
        for path in SOURCES
    )
    def test_module_imports_only_what_it_may(self, path):
        self.assertEmpty(violations(_part(path), path.read_text(encoding="utf-8")))

    @parameterized.parameters(
        ("agent", "import jax.numpy as jnp", ["jax.numpy"]),
        ("rl", "from awm_jax import types", ["awm_jax.types"]),
        ("models", "def f():\n    from awm_jax.policy import x", ["awm_jax.policy.x"]),
        ("training", "import ml_collections", ["ml_collections"]),
        ("training", "from awm_jax.rl import losses", []),
    )
    def test_a_forbidden_import_is_found(self, part, source, expected):
        self.assertEqual(violations(part, source), expected)

    def test_package_inits_hold_no_code(self):
        for path in PACKAGE.rglob("__init__.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            allowed = (ast.Expr, ast.Assign) if path.parent == PACKAGE else ()
            self.assertTrue(all(isinstance(node, allowed) for node in body), path)


if __name__ == "__main__":
    absltest.main()
