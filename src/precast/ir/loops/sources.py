"""C++ text between code generation and building."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """One C++ file to compile."""

    name: str
    text: str


@dataclass(frozen=True)
class Sources:
    """Everything the C++ compiler is given: units, headers by name, and whether oneDNN is called."""

    units: tuple[Unit, ...]
    headers: tuple[Unit, ...]
    needs_onednn: bool
