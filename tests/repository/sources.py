"""The package's own source files, for the tests that check the repository itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "precast"


def package_files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    """The path as it is written in a list or a message."""
    return path.relative_to(ROOT).as_posix()


def dotted_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, or reached as an attribute, as in ``torch.fx.Graph``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
