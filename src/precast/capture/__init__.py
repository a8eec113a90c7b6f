"""From a callable and example inputs to a graph: trees, state, dynamic sizes, and one run on fake tensors."""

from precast.capture.capture import capture
from precast.capture.dynamic_shapes import Dim
from precast.capture.symbolic import symbolic_trace

__all__ = ["Dim", "capture", "symbolic_trace"]
