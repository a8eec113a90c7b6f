"""Timers around the steps of host code, for a program that was asked for its profile.

Before::

    kernels::exp(x, result);

After::

    { const precast::timed timed(forward_times[3]);
    kernels::exp(x, result);
    }
"""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.cpp_types import identifier
from precast.codegen.describe import Entry

TIMERS_HEADER = '#include "precast_profile.h"'


def timed_step(prefix: str, number: int, lines: Sequence[str]) -> list[str]:
    """The lines of a step with a timer around them."""
    return [f"    {{ const precast::timed timed({prefix}_times[{number}]);", *lines, "    }"]


def times_of(prefix: str, steps: int) -> list[str]:
    """Where the times of an entry are kept."""
    return [f"static precast::step_time {prefix}_times[{max(1, steps)}];"]


def times_function(entries: Sequence[Entry]) -> list[str]:
    """How they are read from outside."""
    tables = ", ".join(f"{identifier(entry.name)}_times" for entry in entries)
    return [
        "const precast::step_time* precast_step_times(size_t entry) {",
        f"    static const precast::step_time* const times[] = {{{tables}}};",
        f"    return entry < {len(entries)} ? times[entry] : nullptr;",
        "}",
        "",
    ]
