"""Shrink a failing graph to the smallest that still fails: delta debugging on nodes."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import fx
from torch._subclasses import FakeTensor

from precast.compilers.child_process import Checker, ChildProcessChecker
from precast.compilers.input_metadata import random_input_like
from precast.compilers.node_values import node_values
from precast.compilers.repro_script import save_repro
from precast.compilers.shrink_strategies import STRATEGIES, Case, Values
from precast.compilers.tensor_file import lay_out, overlaps
from precast.errors import InputValueError

Report = Callable[[Case, int], None]


def minifier(
    graph_module: fx.GraphModule,
    inputs: Sequence[object],
    checker: Checker,
    *,
    max_granularity: int | None = None,
    save_dir: str | Path | None = None,
) -> tuple[fx.GraphModule, list[object]]:
    """Return the smallest graph found, and its inputs, for which ``checker(graph_module, inputs)`` still returns True.

    The checker gets copies that it may change. ``max_granularity`` bounds how many nodes are left out at once. Ctrl-C
    ends the search early. The result is printed, and saved in ``save_dir`` (if None, a new temporary one) as a script
    ``repro.py``. If the checker crashes or hangs, wrap it:
    ``minifier(graph_module, inputs, in_child_process(checker, crashes=True))``.
    """
    case = Case(graph_module, [_real(value) for value in inputs])
    _check_arguments(case, checker, max_granularity)
    values = (
        checker.node_values(*_copies(case)) if isinstance(checker, ChildProcessChecker) else node_values(*_copies(case))
    )
    with _progress() as report:
        smallest = shrink(case, checker, values, max_granularity=max_granularity, report=report)
    folder = Path(save_dir) if save_dir is not None else Path(tempfile.mkdtemp(prefix="precast_repro_"))
    script = save_repro(smallest.graph_module, smallest.inputs, folder)
    print(script.read_text(encoding="utf-8"))
    print(f"# {len(case.operations)} operations became {len(smallest.operations)}; saved as {script}")
    return smallest.graph_module, smallest.inputs


def shrink(
    case: Case,
    checker: Checker,
    values: Values,
    *,
    max_granularity: int | None = None,
    report: Report = lambda case, tries: None,
) -> Case:
    """Return the case after no strategy makes it smaller any more, from large steps to small ones; or until Ctrl-C."""
    chunk = _first_chunk(case, max_granularity)
    tries = 0
    # What was found in hours should survive the impatience of its user.
    with suppress(KeyboardInterrupt):
        while chunk:
            for candidate in _candidates(case, chunk, values):
                tries += 1
                report(case, tries)
                if checker(*_copies(candidate)):
                    case, chunk = candidate, min(chunk, _first_chunk(candidate, max_granularity))
                    break
            else:
                chunk //= 2
    return case


def _candidates(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    for strategy in STRATEGIES:
        for candidate in strategy(case, chunk, values):
            if candidate.size < case.size:
                yield candidate


def _first_chunk(case: Case, max_granularity: int | None) -> int:
    """Return the largest power of two that leaves something of the graph, and is allowed."""
    half = max(1, len(case.operations) // 2)
    chunk = 1 << (half.bit_length() - 1)
    return chunk if max_granularity is None else min(chunk, max_granularity)


def _copies(case: Case) -> tuple[fx.GraphModule, list[object]]:
    graph_module = fx.GraphModule(case.graph_module, copy.deepcopy(case.graph_module.graph))
    return graph_module, [_copy_input(value) for value in case.inputs]


def _copy_input(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided or overlaps(value.shape, value.stride()):
        return value.detach().clone()
    return lay_out(value.detach(), value.stride())


def _real(value: object) -> object:
    """Return an input that can be run: random values for a fake tensor, the number that tracing saw for a symbol."""
    return random_input_like(value) if isinstance(value, FakeTensor | torch.SymInt) else value


def _check_arguments(case: Case, checker: Checker, max_granularity: int | None) -> None:
    if max_granularity is not None and max_granularity < 1:
        raise InputValueError(
            f"max_granularity must be at least 1, not {max_granularity}",
            why="it says how many nodes may be left out at once",
            fix="leave it out, or pass a positive number",
        )
    if not checker(*_copies(case)):
        raise InputValueError(
            "the checker returns False for the graph as given",
            why="minifying keeps what makes the checker return True, and here nothing does",
            fix="return True from the checker when the failure shows; check that the inputs are those that fail",
        )


@contextmanager
def _progress() -> Iterator[Report]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("minifying", total=None)

        def report(case: Case, tries: int) -> None:
            progress.update(task, description=f"minifying: {len(case.operations)} operations left, {tries} tries")

        yield report
