"""Files and functions stay small. The few that are not stand in ``size_ratchet.txt``, a list that may only shrink."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repository.sources import package_files, relative

LONGEST_FILE = 500
LONGEST_FUNCTION = 60
LIST = Path(__file__).with_name("size_ratchet.txt")


def oversized(name: str, code: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of the file and of its functions, where they are too long."""
    lines = len(code.splitlines())
    if lines > LONGEST_FILE:
        yield name, lines
    for function, lines in _functions(ast.parse(code)):
        if lines > LONGEST_FUNCTION:
            yield f"{name}::{function}", lines


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield prefix + node.name, node.end_lineno - node.lineno + 1


def complaints(found: dict[str, int], listed: dict[str, int]) -> list[str]:
    """What is wrong with the sizes found, given those the list puts up with."""
    unlisted = [
        f"{name}: {lines} lines are too many; find a seam" for name, lines in found.items() if name not in listed
    ]
    grown = [
        f"{name}: grew from {listed[name]} to {lines} lines; find a seam"
        for name, lines in found.items()
        if lines > listed.get(name, lines)
    ]
    mended = [f"{name}: no longer too long; remove it from {LIST.name}" for name in listed if name not in found]
    return unlisted + grown + mended


def read_list(text: str) -> dict[str, int]:
    """The entries of the list, one a line: a name and its number of lines."""
    entries = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {name: int(lines) for name, lines in entries}


def test_files_and_functions_are_short():
    found = dict(item for path in package_files() for item in oversized(relative(path), path.read_text()))
    wrong = complaints(found, read_list(LIST.read_text()))
    assert not wrong, "\n".join(wrong)


def test_a_long_file_is_seen():
    assert not list(oversized("a.py", "x = 1\n" * 500))
    assert dict(oversized("a.py", "x = 1\n" * 501)) == {"a.py": 501}


def test_a_long_function_is_seen_wherever_it_stands():
    body = "        x = 1\n" * 60
    assert dict(oversized("a.py", f"class A:\n    def f(self):\n{body}")) == {"a.py::A.f": 61}
    assert dict(oversized("a.py", f"if True:\n    async def f():\n{body}")) == {"a.py::f": 61}


def test_a_function_of_just_the_right_size_passes():
    assert not list(oversized("a.py", "def f():\n" + "    x = 1\n" * 59))


def test_what_is_too_long_must_be_listed():
    assert complaints({"a.py": 501}, {}) == ["a.py: 501 lines are too many; find a seam"]
    assert not complaints({"a.py": 501}, {"a.py": 501})


def test_what_is_listed_must_not_grow():
    assert complaints({"a.py": 511}, {"a.py": 510}) == ["a.py: grew from 510 to 511 lines; find a seam"]
    assert not complaints({"a.py": 505}, {"a.py": 510})


def test_what_became_short_leaves_the_list():
    assert complaints({}, {"a.py": 510}) == ["a.py: no longer too long; remove it from size_ratchet.txt"]


def test_the_list_is_read_line_by_line():
    assert read_list("# why\n\na.py 510\na.py::A.f 70\n") == {"a.py": 510, "a.py::A.f": 70}
