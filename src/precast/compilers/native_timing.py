"""The ways of computing a product, timed: a library of programs that do nothing else, one for each way."""

from __future__ import annotations

import time
from functools import partial

import torch

from precast.build.library import build
from precast.cache import Store
from precast.codegen.describe import Entry
from precast.codegen.generate import generate
from precast.compilers.native_choice import WAYS, Measure, Problem
from precast.ir.loops.buffers import View, contiguous_buffer, whole
from precast.ir.loops.index import constant, symbol
from precast.ir.loops.program import LibraryCall, LoopProgram, SizeSource
from precast.ir.loops.sources import Sources
from precast.lower.plan import plan
from precast.runtime.entry import Entry as OpenEntry
from precast.runtime.entry import library_entries

TURNS = 4
MOST_ROWS, MOST_WORK = 256, 3 * 2**26
"""A larger product is measured by a part of it: all ways go over it in blocks."""
COLD_ELEMENTS = 2**23
"""Weights are not in the cache when their turn comes in a model: here, they come from all over so much memory."""


def timing_sources() -> Sources:
    """The library of all ways; whatever the sizes are, it is the same."""
    return generate([_entry(way) for way in WAYS])


def timer(*, store: Store, compiler: str | None = None) -> Measure:
    """Builds the library, or finds it; what is returned measures with it."""
    with store.held():
        library = build(timing_sources(), store=store, compiler=compiler)
        ways = tuple(library_entries(library.path, needs=library.needs))
    return partial(measure, ways=ways, memory=torch.full((COLD_ELEMENTS,), 0.5))


def measure(problem: Problem, *, ways: tuple[OpenEntry, ...], memory: torch.Tensor) -> list[float]:
    """The shortest time of each way, in seconds, for a problem of this shape: they take turns."""
    rows = min(problem.rows, MOST_ROWS)
    most_elements = min(MOST_WORK // rows, len(memory))
    elements = max(1, min(problem.columns, most_elements // problem.depth)) * problem.depth
    left = torch.full((rows, problem.depth), 0.5)
    places = memory.unfold(0, elements, elements)
    # Where one thread does it all, others may run on its processor meanwhile.
    clock = time.thread_time if problem.threads == 1 else time.perf_counter
    times = [float("inf")] * len(ways)
    for turn in range(TURNS + 1):
        for number, way in enumerate(ways):
            right = places[(turn * len(ways) + number) % len(places)].view(-1, problem.depth)
            start = clock()
            way.run([left, right], like_torch=True)
            # The first turn prepares what is kept from call to call.
            times[number] = min(times[number], clock() - start) if turn else times[number]
    return times


def _entry(way: int) -> Entry:
    rows, columns, depth = symbol("rows"), symbol("columns"), symbol("depth")
    left, right = contiguous_buffer("left", "f32", (rows, depth)), contiguous_buffer("right", "f32", (columns, depth))
    result = contiguous_buffer("result", "f32", (rows, columns))
    turned = View(right, (depth, columns), (constant(1), depth), constant(0))
    call = LibraryCall("result", "matmul", (whole(left), turned), (whole(result),), numbers=(constant(way),))
    sizes = (SizeSource("rows", 0, 0), SizeSource("depth", 0, 1), SizeSource("columns", 1, 0))
    program = LoopProgram(f"way_{way}", (left, right), (result,), sizes, (call,))
    return Entry(program, plan(program))
