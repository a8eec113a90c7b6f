"""Runs passes over a program: times each, checks that it keeps its contract, and records what it did."""

import time
from collections.abc import Callable, Sequence

from torch import fx

from precast.graph.program import PassRecord, Program
from precast.graph.verifier import verify

Pass = Callable[[Program], Program]
"""Never changes its input; returns the same object when it had nothing to do."""


def run_passes(program: Program, passes: Sequence[Pass], *, check: bool = True) -> Program:
    """Apply the passes in order; the result's ``history`` records what each one did."""
    for a_pass in passes:
        program = run_pass(program, a_pass, check=check)
    return program


def run_pass(program: Program, a_pass: Pass, *, check: bool = True) -> Program:
    """Apply one pass, verify what came out if it changed anything, and record it."""
    name = pass_name(a_pass)
    before = _fingerprint(program.graph)
    started = time.perf_counter()
    result = a_pass(program)
    seconds = time.perf_counter() - started
    changed = result is not program
    assert _fingerprint(program.graph) == before, f"pass {name} changed its input"
    if changed and check:
        verify(result, after=f"pass {name}")
    record = PassRecord(name, seconds, changed, len(before), len(result.graph.nodes))
    return result.replace(history=(*program.history, record))


def _fingerprint(graph: fx.Graph) -> list[tuple[object, ...]]:
    """The contents of a graph, in a form that shows any edit."""
    return [(node.op, node.name, node.target, node.args, node.kwargs) for node in graph.nodes]


def pass_name(a_pass: Pass) -> str:
    """The function's name, looking through ``functools.partial``."""
    function = getattr(a_pass, "func", a_pass)
    return str(getattr(function, "__name__", type(function).__name__))
