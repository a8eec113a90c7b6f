"""Torch's own operators of one tensor with a dynamic first size, at 0, 1 and 2: eager's results, or both refuse."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.utils import _pytree as pytree

from precast import Dim
from precast.errors import PrecastError
from precast.export import export
from precast.graph.interpreter import interpret
from precast.graph.sizes import SymbolicSizes
from precast.trace.capture import capture
from tests.autograd.op_samples import _SEED, _UNINITIALIZED, GAPS, OPS, _samples

NAMES = [
    name
    for name in OPS
    if name not in GAPS["operator"] and OPS[name].name not in _UNINITIALIZED and not name.startswith("rand")
]
_SIZES = (0, 1, 2)
_EAGERS = (RuntimeError, IndexError, ValueError, TypeError)


Function = Callable[..., object]
Made = Callable[[Function, torch.Tensor], tuple[Function, SymbolicSizes]]


class _Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def captured(function: Function, example: torch.Tensor) -> tuple[Function, SymbolicSizes]:
    program = capture(function, (example,), dynamic_shapes=({0: Dim.AUTO},))
    return partial(interpret, program), program.sizes


def decomposed(function: Function, example: torch.Tensor) -> tuple[Function, SymbolicSizes]:
    """Exported with composite operators whole, and decomposed later, as packages are."""
    exported = export(_Module(function), (example,), dynamic_shapes=({0: Dim.AUTO},)).run_decompositions()
    return exported.module(), exported.program.sizes


def findings(names: Sequence[str], made: Made = captured) -> Iterator[str]:
    """What differs from eager, at which operator and size."""
    for name in names:
        for function, example in _calls(name):
            try:
                ours, sizes = made(function, example)
            except (PrecastError, *_EAGERS):
                continue
            allowed = [symbol.range for symbol in sizes.symbols]
            for size in _SIZES if len(allowed) == 1 else ():
                if size in allowed[0]:
                    told = _difference(function, ours, _of_size(example, size))
                    yield from [f"{name} at size {size}: {told}"] if told else []


def _calls(name: str) -> Iterator[tuple[Callable[..., object], torch.Tensor]]:
    """The first sample whose input has a size that may change, as a function of that input alone."""
    for sample in _samples(OPS[name], torch.float32, count=8):
        leaves = pytree.tree_leaves((sample.args, sample.kwargs))
        is_alone = isinstance(sample.input, torch.Tensor) and not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        if is_alone and sample.input.ndim and sample.input.shape[0] > 1 and sample.input.layout is torch.strided:
            call = partial(_call, OPS[name].get_op(), sample.args, sample.kwargs)
            yield call, sample.input.detach().contiguous()
            return


def _call(operator: Callable[..., object], args: Sequence[object], options: dict[str, object], x: object) -> object:
    return operator(x, *args, **options)


def _of_size(example: torch.Tensor, size: int) -> torch.Tensor:
    return example[:size].contiguous()


def _difference(eager: Callable[..., object], ours: Callable[..., object], x: torch.Tensor) -> str | None:
    results = []
    for function in (eager, ours):
        torch.manual_seed(_SEED)
        try:
            results.append(function(x.clone()))
        except PrecastError:
            # Refused by what tracing assumed of sizes.
            return None
        except _EAGERS as error:
            results.append(f"{type(error).__name__}: {error}".splitlines()[0])
    expected, found = results
    if isinstance(expected, str) or isinstance(found, str):
        return None if isinstance(found, str) and isinstance(expected, str) else f"{found} instead of {expected}"[:200]
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return None
