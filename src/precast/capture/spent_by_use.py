"""Objects of libraries that are spent by use, as nobody can put back what they were: iterators, generators of chance.

Before: ``next(self.numbers)``, ``self.chance.random()``
After:  ``CaptureError`` before the code that names them has run; whoever traces runs the program in Python instead

A trace runs a program several times, and compiled code would keep for ever what the first of them took.
"""

import random
import re
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from precast.capture.reachable_state import Place
from precast.errors import CaptureError
from precast.tracing.trusted_code import is_trusted


class SpentByUse:
    """The names under which such objects are found, and a check of code that is about to run."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, places: Iterable[Place], values: Iterable[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            if _is_spent_by_use(value):
                self._paths[_name_of(place.path)] = place.path

    def check(self, code: CodeType) -> None:
        """Refuse code that names one of them."""
        for name in (*code.co_names, *code.co_freevars) if self._paths else ():
            if name in self._paths:
                raise CaptureError(
                    f"The program uses {self._paths[name]}, which every use changes.",
                    at=f"{code.co_filename}:{code.co_firstlineno}, in {code.co_qualname}",
                    why="tracing would take from it, too, and compiled code would keep what was taken first",
                    fix="Take the next value outside, and pass it as an argument.",
                )


def _name_of(path: str) -> str:
    """By which name code that leads there must have begun its last step: containers are followed without names."""
    path = re.sub(r"\[.*?\]", "", path)
    variable = re.fullmatch(r"the (?:variable|global) (\w+) of \S+", path)
    return variable[1] if variable else path.rpartition(".")[2]


def _is_spent_by_use(value: Any) -> bool:
    kind = type(value)
    if kind.__module__.startswith("numpy.random"):
        return True
    # Those of the user's classes keep their state in attributes, where it is seen.
    return isinstance(value, random.Random) or (isinstance(value, Iterator) and is_trusted(kind.__module__))
