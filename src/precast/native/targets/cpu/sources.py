"""C++ sources, as passed from code generation to the build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effort = Literal["loops", "routines", "once"]
"""What kind of code a unit is, and so how it is optimized: kernels; our routines; host code that runs once a call."""


@dataclass(frozen=True)
class Unit:
    """One C++ file to compile."""

    name: str
    text: str
    effort: Effort = "loops"
    needs_onednn: bool = False


@dataclass(frozen=True)
class Sources:
    """All inputs of the C++ compiler: units, and headers by name."""

    units: tuple[Unit, ...]
    headers: tuple[Unit, ...]

    @property
    def needs_onednn(self) -> bool:
        return any(unit.needs_onednn for unit in self.units)
