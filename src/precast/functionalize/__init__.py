"""Mutation and aliasing out of the graph: a functional program, and the facts that its callers need."""

from precast.functionalize.analysis import analyze
from precast.functionalize.functional_program import functionalize
from precast.functionalize.functional_run import functionalized

__all__ = ["analyze", "functionalize", "functionalized"]
