"""What the routines of the support library compute, said with torch: the oracle for library calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from precast.ir.loops.program import Finish

Tensors = Sequence[torch.Tensor]
Shapes = Sequence[Sequence[int]]


def run_routine(routine: str, inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    """The outputs of a library call; `shapes` are theirs."""
    return _ROUTINES[routine](inputs, shapes, numbers)


def finish(result: torch.Tensor, epilogue: Sequence[Finish], inputs: Tensors) -> torch.Tensor:
    """The result of a routine after its epilogue; `inputs` are all of the call's."""
    for each in epilogue:
        operands = () if each.operand is None else (inputs[each.operand],)
        result = _FINISHES[each.operation](result, *operands)
    return result


def _matmul(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    left, right = inputs
    return (left @ right,)


def _geometry(rank: int, numbers: Sequence[int]) -> tuple[object, ...]:
    """Arguments of torch's convolution operators."""
    spatial = rank - 2
    stride, padding, dilation = (list(numbers[1 + n * spatial :][:spatial]) for n in range(3))
    return stride, padding, dilation, False, [0] * spatial, numbers[0]


def _convolution(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    source, weights = inputs
    return (torch.ops.aten.convolution(source, weights, None, *_geometry(source.ndim, numbers)),)


def _convolution_backward_data(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    gradient, weights = inputs
    source = gradient.new_empty(shapes[0])
    geometry = _geometry(source.ndim, numbers)
    mask = [True, False, False]
    return torch.ops.aten.convolution_backward(gradient, source, weights, None, *geometry, mask)[:1]  # type: ignore[no-any-return]


def _convolution_backward_weights(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    source, gradient = inputs
    weights = source.new_empty(shapes[0])
    geometry = _geometry(source.ndim, numbers)
    mask = [False, True, False]
    return torch.ops.aten.convolution_backward(gradient, source, weights, None, *geometry, mask)[1:2]  # type: ignore[no-any-return]


def _sort(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    dim, is_descending = numbers
    values, places = torch.sort(inputs[0], dim=dim, descending=bool(is_descending), stable=True)
    kept = shapes[0][dim] if shapes[0] else 1
    return (values, places) if not values.ndim else (values.narrow(dim, 0, kept), places.narrow(dim, 0, kept))


SCAN_KINDS = ("sum", "prod", "max", "min", "logsumexp")


def _scan(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    dim, kind = numbers
    (source,) = inputs
    match SCAN_KINDS[kind]:
        case "sum":
            return (source.cumsum(dim, dtype=source.dtype),)
        case "prod":
            return (source.cumprod(dim, dtype=source.dtype),)
        case "logsumexp":
            return (source.logcumsumexp(dim),)
        case extreme:
            return tuple(source.cummax(dim) if extreme == "max" else source.cummin(dim))


def _search(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    is_right, has_order = numbers
    ordered, values, *order = inputs
    sorter = order[0].contiguous() if has_order else None
    found = torch.searchsorted(ordered.contiguous(), values.contiguous(), right=bool(is_right), sorter=sorter)
    return (found,)


_FINISHES: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
}
_ROUTINES: dict[str, Callable[[Tensors, Shapes, Sequence[int]], Tensors]] = {
    "convolution": _convolution,
    "convolution_backward_data": _convolution_backward_data,
    "convolution_backward_weights": _convolution_backward_weights,
    "matmul": _matmul,
    "scan": _scan,
    "search": _search,
    "sort": _sort,
}
