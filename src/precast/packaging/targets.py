"""Which processors native code is made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precast.errors import InputValueError
from precast.runtime.processor import LEVELS, features_of_this_machine

NATIVE = "native"


@dataclass(frozen=True)
class BuildTarget:
    """A target: what the compiler is told, and what a processor must have to run the result."""

    name: str
    flags: tuple[str, ...]
    features: tuple[str, ...]


def build_targets(names: Sequence[str]) -> tuple[BuildTarget, ...]:
    """The targets of these names, each once, in a fixed order."""
    if isinstance(names, str) or not names:
        raise InputValueError(
            f"targets cannot be {names!r}.",
            why="they are a sequence of names",
            fix="Write, for example, targets=('x86-64-v3', 'native').",
        )
    unknown = [name for name in names if name not in (NATIVE, *LEVELS)]
    if unknown:
        raise InputValueError(
            f"There is no target {unknown[0]!r}.",
            why=f"targets are {', '.join((NATIVE, *LEVELS))}",
            fix="Name one of these; 'native' is the processor of this machine.",
        )
    return tuple(_target(name) for name in sorted(set(names)))


def _target(name: str) -> BuildTarget:
    if name == NATIVE:
        return BuildTarget(name, (), features_of_this_machine())
    return BuildTarget(name, (f"-march={name}",), ("x86_64", *LEVELS[name]))
