"""Mutation and aliasing out of the graph: a functional program, and the facts that its callers need."""

from precast.trace.functionalize.analysis import analyze
from precast.trace.functionalize.program import functionalize
from precast.trace.functionalize.run import functionalized

__all__ = ["analyze", "functionalize", "functionalized"]
