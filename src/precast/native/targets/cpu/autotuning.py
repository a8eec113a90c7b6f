"""Autotuning: where a library call has several variants, the fastest on this machine, measured once per shape.

Before: call mm: mm = matmul(x, weights transposed)
After:  call mm: mm = matmul(x, weights transposed, 2)

The number is a constant of the generated code. Measurements are cached on disk. Calls whose sizes are dynamic, or too
small to matter, use the routine's rule of thumb, and so do packages, which run on other machines.

Variants of a GEMM are timed with a library of minimal programs, one for each variant.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from precast.cache import Store, content_key, own_sources, processor_identity
from precast.native.describe import Entry
from precast.native.loops.buffers import View, contiguous_buffer, whole
from precast.native.loops.index import constant, symbol
from precast.native.loops.program import LibraryCall, LoopProgram, SizeSource, Step, with_steps
from precast.native.passes.memory import plan
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.sources import Sources
from precast.runtime.entry import Entry as OpenEntry
from precast.runtime.entry import library_entries

CHOICES = "choices"
"""The kind of the store's entries."""
WAYS = {0: "rule of thumb", 1: "oneDNN", 2: "own loops"}
"""The variants of a GEMM by their number in generated code; without a number, the rule of thumb decides."""
LEAST_GAIN = 0.03
"""A variant must save at least this share of the rule of thumb's time: less is noise."""
LEAST_WORK = 2**22
"""Multiplications of the smallest GEMM that is worth measuring."""
PATIENCE = 0.25
"""Seconds after which a compilation stops measuring; the remaining calls use the rule of thumb."""


@dataclass(frozen=True)
class Problem:
    """A GEMM of a given size with the weights of a linear layer, and the number of threads that it runs in."""

    rows: int
    columns: int
    depth: int
    threads: int

    @property
    def work(self) -> int:
        return self.rows * self.columns * self.depth


Times = Sequence[float]
Measure = Callable[[Problem], Times]
"""The time of each of `WAYS`, in seconds."""


def choose_ways(entries: Sequence[Entry], *, store: Store, measure: Callable[[], Measure]) -> list[Entry]:
    """The entries with the fastest variant in each call that has several; `measure` is called if one is unknown."""
    problems = [problem_of(step, entry) for entry in entries for step in entry.program.steps]
    counts = Counter(problem for problem in problems if problem is not None)
    ways = {problem: way for problem in counts if (way := _known_way(problem, store)) is not None}
    unknown = [problem for problem in counts if problem not in ways]
    if unknown:
        # The most expensive first.
        unknown.sort(key=lambda problem: -counts[problem] * problem.work)
        timer, end = measure(), time.monotonic() + PATIENCE
        for problem in unknown:
            if time.monotonic() < end:
                ways[problem] = _find_out(problem, timer, store)
    return [_with_ways(entry, ways) for entry in entries] if ways else list(entries)


def way_of(step: Step) -> str | None:
    """The name of the variant that was chosen for a step."""
    if not isinstance(step, LibraryCall) or step.routine != "matmul" or not step.numbers:
        return None
    (number,) = step.numbers
    assert number.constant is not None, f"the way of {step.name} is not known when it is compiled"
    return WAYS[number.constant]


def fastest(times: Times) -> int:
    """The fastest variant, if it is clearly faster than the rule of thumb's."""
    best = min(range(len(times)), key=times.__getitem__)
    return best if times[best] < (1 - LEAST_GAIN) * times[0] else 0


def problem_of(step: Step, entry: Entry) -> Problem | None:
    """What to measure for a step of an entry; None if there is no choice."""
    if not isinstance(step, LibraryCall) or step.routine != "matmul" or step.numbers:
        return None
    left, right = step.inputs[:2]
    sizes = [size.constant for size in (*left.shape, *right.shape[1:])]
    if len(sizes) != 3 or left.dtype != "f32" or right.buffer.name in entry.weights:
        return None
    rows, depth, columns = sizes
    if rows is None or depth is None or columns is None or rows * depth * columns < LEAST_WORK:
        return None
    lies_as_measured = _strides(left) == [depth, 1] and _strides(right) == [1, depth]
    return Problem(rows, columns, depth, torch.get_num_threads()) if lies_as_measured else None


def _strides(view: View) -> list[int | None]:
    return [stride.constant for stride in view.strides]


def _with_ways(entry: Entry, ways: dict[Problem, int]) -> Entry:
    steps = [_with_way(step, ways.get(problem)) if (problem := problem_of(step, entry)) else step
             for step in entry.program.steps]  # fmt: skip
    return replace(entry, program=with_steps(entry.program, steps))


def _with_way(step: Step, way: int | None) -> Step:
    assert isinstance(step, LibraryCall)
    return replace(step, numbers=(constant(way),)) if way else step


def _key(problem: Problem) -> str:
    sizes = (problem.rows, problem.columns, problem.depth, problem.threads)
    return content_key(["matmul", processor_identity(), own_sources(__name__), *map(str, sizes)])


def _known_way(problem: Problem, store: Store) -> int | None:
    data = store.get(CHOICES, _key(problem))
    return None if data is None else fastest(json.loads(data))


def _find_out(problem: Problem, measure: Measure, store: Store) -> int:
    times = list(measure(problem))
    store.put(CHOICES, _key(problem), json.dumps(times).encode())
    return fastest(times)


TURNS = 4
MOST_ROWS, MOST_WORK = 256, 3 * 2**26
"""A larger GEMM is measured by a part of it: all variants are blocked."""
COLD_ELEMENTS = 2**23
"""In a model, weights are not in cache when they are used: here, they cycle through this much memory."""


def timing_sources() -> Sources:
    """The library of all variants, which serves all sizes."""
    return generate([_entry(way) for way in WAYS])


def timer(*, store: Store, compiler: str | None = None) -> Measure:
    """Build or find the library; the returned function measures with it."""
    with store.held():
        library = build(timing_sources(), store=store, compiler=compiler)
        ways = tuple(library_entries(library.path, needs=library.needs))
    return partial(measure, ways=ways, memory=torch.full((COLD_ELEMENTS,), 0.5))


def measure(problem: Problem, *, ways: tuple[OpenEntry, ...], memory: torch.Tensor) -> list[float]:
    """The shortest time of each variant, in seconds, for a problem of this shape; the variants alternate."""
    rows = min(problem.rows, MOST_ROWS)
    most_elements = min(MOST_WORK // rows, len(memory))
    elements = max(1, min(problem.columns, most_elements // problem.depth)) * problem.depth
    left = torch.full((rows, problem.depth), 0.5)
    places = memory.unfold(0, elements, elements)
    # With a single thread, exclude the time in which other processes run on its core.
    clock = time.thread_time if problem.threads == 1 else time.perf_counter
    times = [float("inf")] * len(ways)
    for turn in range(TURNS + 1):
        for number, way in enumerate(ways):
            right = places[(turn * len(ways) + number) % len(places)].view(-1, problem.depth)
            start = clock()
            way.run([left, right], like_torch=True)
            # The first round fills what is cached from call to call.
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
