"""Minifies a failing graph by delta debugging on its nodes, and writes the result as a self-contained script."""

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

from precast.debug.checking_interpreter import node_values
from precast.debug.child_process import Checker, ChildProcessChecker
from precast.debug.graph_source import graph_source, reader_source
from precast.debug.input_metadata import random_input_like
from precast.debug.saved_graph import EXAMPLES_FILE, placeholder_names, save_example_inputs, save_graph
from precast.debug.shrink_strategies import STRATEGIES, Case, Values
from precast.debug.tensor_file import lay_out, overlaps
from precast.errors import InputValueError

SCRIPT_FILE = "repro.py"

# Inputs up to this many elements are written into the script.
_INLINE_LIMIT = 64


def save_repro(graph_module: fx.GraphModule, inputs: Sequence[object], folder: Path) -> Path:
    """Save the graph, its inputs and a script that runs it on them; return the script's path."""
    save_graph(graph_module, folder, inputs)
    names = placeholder_names(graph_module)
    save_example_inputs(folder, names, inputs)
    script = folder / SCRIPT_FILE
    script.write_text(_script(graph_module, names, inputs), encoding="utf-8")
    return script


def _script(graph_module: fx.GraphModule, names: Sequence[str], inputs: Sequence[object]) -> str:
    source = graph_source(graph_module)
    written = [_literal(value) for value in inputs]
    parts = [source.text().rstrip()]
    if None in written:
        if not source.tensors:
            parts.insert(0, f"import json\nimport os\n\nimport torch\n\n\n{reader_source()}")
        parts.append(
            f"EXAMPLES = read_tensors(os.path.join(os.path.dirname(os.path.abspath(__file__)), {EXAMPLES_FILE!r}))"
        )
    lines = [f"    {text or f'EXAMPLES[{name!r}]'},  # {name}" for name, text in zip(names, written, strict=True)]
    parts.append("\n".join(["inf, nan = float('inf'), float('nan')", "inputs = [", *lines, "]"]))
    parts.append('if __name__ == "__main__":\n    print(FxModule()(*inputs))')
    return "\n\n\n".join(parts) + "\n"


def _literal(value: object) -> str | None:
    """Return the value as source; None for a tensor that is too large or not plain."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.is_contiguous() and value.numel() and value.device.type == "cpu" and not value.is_complex()
    if not plain or value.numel() > _INLINE_LIMIT or (value.element_size() == 1 and value.is_floating_point()):
        return None
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"


Report = Callable[[Case, int], None]


def minifier(
    graph_module: fx.GraphModule,
    inputs: Sequence[object],
    checker: Checker,
    *,
    max_granularity: int | None = None,
    save_dir: str | Path | None = None,
) -> tuple[fx.GraphModule, list[object]]:
    """Shrink a failing graph to the smallest one found for which ``checker(graph_module, inputs)`` returns True.

    Returns the graph and its inputs. The checker receives copies, which it may change. ``max_granularity`` limits how
    many nodes are removed at once. Ctrl-C ends the search early. The result is printed and saved as the script
    ``repro.py`` in ``save_dir`` (a new temporary folder if None). If the checker may crash or hang, wrap it:
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
    """Shrink the case, from large steps to small ones, until no strategy makes it smaller, or until Ctrl-C."""
    chunk = _first_chunk(case, max_granularity)
    tries = 0
    # Ctrl-C must not lose the progress made so far.
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
    """Return the largest power of two of at most half of the graph, and at most ``max_granularity``."""
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
    """Return a real input: random values for a fake tensor, the hint for a symbol."""
    return random_input_like(value) if isinstance(value, FakeTensor | torch.SymInt) else value


def _check_arguments(case: Case, checker: Checker, max_granularity: int | None) -> None:
    if max_granularity is not None and max_granularity < 1:
        raise InputValueError(
            f"max_granularity must be at least 1, not {max_granularity}",
            why="it says how many nodes may be removed at once",
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
