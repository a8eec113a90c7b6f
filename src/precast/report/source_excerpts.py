"""The user's lines that nodes come from, numbered, and the functions around them."""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Iterable

from precast.graph.nodes import SourceLine
from precast.report.contents import Excerpt, Line

_AROUND = 3
"""How many lines are shown around one that is outside of functions."""


class SourceLines:
    """Numbers source lines in the order in which they occur."""

    def __init__(self) -> None:
        self._numbers: dict[SourceLine, int] = {}

    def number(self, line: SourceLine | None) -> int | None:
        """The number of a line; None for None."""
        return None if line is None else self._numbers.setdefault(line, len(self._numbers))

    def lines(self) -> tuple[Line, ...]:
        """All lines, by number."""
        return tuple(Line(each.file, each.line, each.function, each.code) for each in self._numbers)

    def excerpts(self) -> tuple[Excerpt, ...]:
        """The functions that contain the lines; nothing for files that cannot be read."""
        wanted: dict[str, set[int]] = defaultdict(set)
        for each in self._numbers:
            wanted[each.file].add(each.line)
        return tuple(excerpt for file, numbers in wanted.items() for excerpt in _excerpts(file, numbers))


def _excerpts(file: str, numbers: Iterable[int]) -> Iterable[Excerpt]:
    text = linecache.getlines(file)
    functions = _functions(text)
    spans = sorted({_span_around(number, functions, len(text)) for number in numbers if number <= len(text)})
    end = 0
    for first, last in spans:
        first = max(first, end + 1)
        if first <= last:
            yield Excerpt(file, first, tuple(line.rstrip("\n") for line in text[first - 1 : last]))
        end = max(end, last)


def _functions(text: list[str]) -> list[tuple[int, int]]:
    """The first and last lines of all functions, the innermost last."""
    try:
        tree = ast.parse("".join(text))
    except SyntaxError:
        # A notebook cell may contain more than Python.
        return []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted((node.lineno, node.end_lineno or node.lineno) for node in found)


def _span_around(number: int, functions: list[tuple[int, int]], count: int) -> tuple[int, int]:
    around = [span for span in functions if span[0] <= number <= span[1]]
    return around[0] if around else (max(1, number - _AROUND), min(count, number + _AROUND))
