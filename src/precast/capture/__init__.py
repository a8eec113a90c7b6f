"""From a callable and example inputs to a graph: trees, state, dynamic sizes, and one run on fake tensors.

Names are imported when first used: a start without a trace needs to know a callable's modules, and nothing else here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that defines it.
_HOMES = {
    "Dim": "precast.capture.dynamic_shapes",
    "capture": "precast.capture.program",
    "symbolic_trace": "precast.capture.symbolic",
}

__all__ = ["Dim", "capture", "symbolic_trace"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'precast.capture' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from precast.capture.dynamic_shapes import Dim as Dim
    from precast.capture.program import capture as capture
    from precast.capture.symbolic import symbolic_trace as symbolic_trace
