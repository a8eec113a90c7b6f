"""Saves the captured entries of a step as one file that trains without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precast.export.program import ExportedProgram
from precast.options import Options
from precast.packaging.package import package_programs


def save_step(
    programs: Mapping[str, ExportedProgram],
    path: Path,
    seed: int,
    *,
    targets: Sequence[str],
    sign: Any,
    options: Options,
) -> Path:
    """Write the entries over one state; state that no entry updates, such as learning rates, remains assignable."""
    kept = replace(options, freeze=False)
    return package_programs(programs, path=path, targets=targets, samples=False, sign=sign, options=kept, seed=seed)
