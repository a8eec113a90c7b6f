"""The fixed part of a library: the C interface, the routines that programs call, and the headers of all units."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from precast.ir.loops.sources import Sources, Unit

ROUTINE_FILES = {
    **dict.fromkeys(
        ("convolution", "convolution_backward_data", "convolution_backward_weights", "depthwise_convolution"),
        ("convolution", "direct_convolution", "own_convolutions", "product"),
    ),
    "grouped_product": ("grouped_product", "matmul", "product"),
    "matmul": ("matmul", "product"),
}
"""Which source files have a routine, where it is not the file of its own name."""
IN_LOOPS = frozenset({"direct_convolution", "own_convolutions", "product", "scan", "search", "sort"})
"""Files whose loops run slower when they are compiled as routines are."""
NEEDS_ONEDNN = frozenset({"convolution", "matmul"})
"""Files that call oneDNN."""
IN_EVERY_LIBRARY = ("support", "state")
"""Compiled as one unit: the standard headers of both take half of their time."""
_HERE = Path(__file__).parent


def routine_sources(routines: Iterable[str]) -> Sources:
    """What every library has, and these routines. Which program it is for does not matter."""
    files = sorted({file for routine in routines for file in ROUTINE_FILES.get(routine, (routine,))})
    return Sources((_unit(*IN_EVERY_LIBRARY), *map(_unit, files)), _headers())


@cache
def _unit(name: str, *others: str) -> Unit:
    text = "\n".join((_HERE / "support" / f"{each}.cpp").read_text() for each in (name, *others))
    return Unit(f"{name}.cpp", text, "loops" if name in IN_LOOPS else "routines", needs_onednn=name in NEEDS_ONEDNN)


@cache
def _headers() -> tuple[Unit, ...]:
    paths = sorted([*_HERE.glob("include/*.h"), *_HERE.glob("support/*.h"), public_header()])
    return tuple(Unit(path.name, path.read_text()) for path in paths)


def public_header() -> Path:
    """Where ``precast.h`` lies: inside an installed package, or at the root of a checkout."""
    package = _HERE.parent
    candidates = [package / "include" / "precast.h", package.parent.parent / "include" / "precast.h"]
    return next(path for path in candidates if path.exists())
