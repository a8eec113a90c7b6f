"""C++ text between code generation and building."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effort = Literal["loops", "routines", "once"]
"""What a unit's code is, and so how hard the compiler should try: kernels; routines of ours; what runs once a call."""


@dataclass(frozen=True)
class Unit:
    """One C++ file to compile."""

    name: str
    text: str
    effort: Effort = "loops"
    needs_onednn: bool = False


@dataclass(frozen=True)
class Sources:
    """Everything the C++ compiler is given: units, and headers by name."""

    units: tuple[Unit, ...]
    headers: tuple[Unit, ...]

    @property
    def needs_onednn(self) -> bool:
        return any(unit.needs_onednn for unit in self.units)
