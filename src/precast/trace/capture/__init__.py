"""From a callable and example inputs to a graph: pytrees, state, dynamic sizes, and one run on fake tensors.

Names are imported when first used: a warm start, without a trace, needs only ``module_state`` from here.
"""

from typing import TYPE_CHECKING

from precast.lazy_names import lazy_name

# Public name → the module that defines it.
_HOMES = {
    "Dim": "precast.trace.capture.dims",
    "capture": "precast.trace.capture.program",
    "symbolic_trace": "precast.trace.capture.symbolic",
}

__all__ = ["Dim", "capture", "symbolic_trace"]


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


if TYPE_CHECKING:
    from precast.trace.capture.dims import Dim as Dim
    from precast.trace.capture.program import capture as capture
    from precast.trace.capture.symbolic import symbolic_trace as symbolic_trace
