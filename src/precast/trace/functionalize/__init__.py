"""Functionalization: removes mutation and aliasing from a graph, and records the boundary facts that callers need."""

from precast.trace.functionalize.analysis import analyze
from precast.trace.functionalize.program import functionalize
from precast.trace.functionalize.run import functionalized

__all__ = ["analyze", "functionalize", "functionalized"]
