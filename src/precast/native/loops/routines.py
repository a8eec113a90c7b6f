"""What the routines of the support library compute, in terms of torch: the oracle for library calls."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from precast.native.loops.program import Finish

Tensors = Sequence[torch.Tensor]
Shapes = Sequence[Sequence[int]]


def run_routine(routine: str, inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    """The outputs of a library call; `shapes` are the outputs' shapes."""
    return _ROUTINES[routine](inputs, shapes, numbers)


def finish(result: torch.Tensor, epilogue: Sequence[Finish], inputs: Tensors) -> torch.Tensor:
    """Apply an epilogue to a routine's result, or a prologue to its first input; `inputs` are all of the call's."""
    for each in epilogue:
        operands = () if each.operand is None else (inputs[each.operand],)
        result = _FINISHES[each.operation](result, *operands)
    return result


def _matmul(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    left, right = inputs
    return (left @ right,)


def _geometry(rank: int, numbers: Sequence[int]) -> tuple[object, ...]:
    """The arguments of torch's convolution operators."""
    spatial = rank - 2
    stride, padding, dilation = (list(numbers[1 + n * spatial :][:spatial]) for n in range(3))
    return stride, padding, dilation, False, [0] * spatial, numbers[0]


def _padded(
    source: torch.Tensor, weights: Sequence[int], result: Sequence[int], numbers: Sequence[int]
) -> torch.Tensor:
    """A convolution's input with zero padding; the padding at the end follows from the result's size."""
    spatial, pads = source.ndim - 2, list[int]()
    for dim in reversed(range(spatial)):
        stride, before, dilation = (numbers[1 + part * spatial + dim] for part in range(3))
        reach = (result[2 + dim] - 1) * stride + (weights[2 + dim] - 1) * dilation + 1
        pads += [before, reach - before - source.shape[2 + dim]]
    return functional.pad(source, pads)


def _unpadded(rank: int, numbers: Sequence[int]) -> tuple[object, ...]:
    """The arguments of torch's convolution operators for an input that is already padded."""
    stride, _, *others = _geometry(rank, numbers)
    return stride, [0] * (rank - 2), *others


def _convolution(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    source, weights = (each.long() if each.dtype == torch.int8 else each for each in inputs)
    padded = _padded(source, weights.shape, shapes[0], numbers)
    return (torch.ops.aten.convolution(padded, weights, None, *_unpadded(source.ndim, numbers)),)


def _convolution_backward_data(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    gradient, weights = inputs
    source = gradient.new_empty(shapes[0])
    geometry = _geometry(source.ndim, numbers)
    mask = [True, False, False]
    return torch.ops.aten.convolution_backward(gradient, source, weights, None, *geometry, mask)[:1]  # type: ignore[no-any-return]


def _convolution_backward_weights(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    if not (inputs[0].numel() and inputs[1].numel()):
        # Torch refuses kernels that are larger than an empty image.
        return (inputs[0].new_zeros(shapes[0]),)
    source, gradient = inputs
    weights = source.new_empty(shapes[0])
    geometry, padded = _unpadded(source.ndim, numbers), _padded(source, shapes[0], gradient.shape, numbers)
    mask = [False, True, False]
    return torch.ops.aten.convolution_backward(gradient, padded, weights, None, *geometry, mask)[1:2]  # type: ignore[no-any-return]


def _sort(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    dim, is_descending = numbers
    values, places = torch.sort(inputs[0], dim=dim, descending=bool(is_descending), stable=True)
    kept = shapes[0][dim] if shapes[0] else 1
    return (values, places) if not values.ndim else (values.narrow(dim, 0, kept), places.narrow(dim, 0, kept))


def _scores(query: torch.Tensor, key: torch.Tensor, mask: Tensors, numbers: Sequence[int]) -> torch.Tensor:
    """The scores that attention takes the softmax of."""
    is_causal, _, scale_bits = numbers
    # Vectors without elements need no scale.
    scale = max(query.shape[-1], 1) ** -0.5 if scale_bits < 0 else _float_of(scale_bits)
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    for each in mask:
        scores = scores + each.float()
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) if is_causal else torch.tensor(False)
    return scores.masked_fill(hidden, -torch.inf)


def _float_of(bits: int) -> float:
    number: float = struct.unpack("f", struct.pack("I", bits))[0]
    return number


def _attention(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    query, key, value, *mask = inputs
    # Heads may share keys and values (grouped-query attention).
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = _scores(query, key, mask, numbers)
    sums = scores.logsumexp(-1)
    sees_nothing = sums == -torch.inf
    sums = sums.masked_fill(sees_nothing, 0)
    # Not from the saved row sums, which round large scores: weights would not add up to one. Without the first fill,
    # gradients of rows that see nothing are NaN.
    nothing = sees_nothing[..., None]
    weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    return (weights @ value.float()).to(query.dtype), sums


def _attention_backward(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    slope, query, key, value, _, _, *mask = inputs
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (query, key, value)]
        result, _ = _attention((*leaves, *mask), shapes, numbers)
        return torch.autograd.grad(result, leaves, slope)


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


def _grouped_product(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    left, right, ends = inputs
    (is_sum,) = numbers
    result, start = left.new_zeros(*shapes[0]), 0
    for group, end in enumerate(ends.tolist()):
        if is_sum:
            result[group] = left[start:end].T @ right[start:end]
        else:
            result[start:end] = left[start:end] @ right[group]
        start = end
    return (result,)


def _nonzero(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    found = inputs[0].reshape(-1).nonzero()[:, 0]
    return _with_room([found], shapes) + (torch.tensor(len(found)),)


def _unique(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    (source,) = inputs
    find = torch.unique if numbers[0] else torch.unique_consecutive
    values, places, counts = find(source, return_inverse=True, return_counts=True)
    return _with_room([values, places, counts], shapes) + (torch.tensor(len(values)),)


def _with_room(found: Tensors, shapes: Shapes) -> tuple[torch.Tensor, ...]:
    """The filled rows, followed by unused ones up to the output's size."""
    return tuple(
        torch.cat([row, row.new_zeros(shape[0] - len(row))]) for row, shape in zip(found, shapes, strict=False)
    )


def _quantized_product(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    bits, fixed_zero, has_scales, has_zeros = numbers
    left, codes, *facts = inputs
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(1)
    weights = codes.float() - fixed_zero

    def spread(fact: torch.Tensor) -> torch.Tensor:
        return fact.float().repeat_interleave(codes.shape[1] // fact.shape[1], 1)

    weights = weights - spread(facts[-1]) if has_zeros else weights
    weights = weights * spread(facts[0]) if has_scales else weights
    product = left.float() @ weights[:, : left.shape[1]].T
    return (product if left.dtype == torch.int8 else product.to(left.dtype),)


def _fft(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    kind, is_forward, normalization, *dims, _ = numbers
    if kind == 1:
        found = torch.view_as_real(torch.ops.aten._fft_r2c(inputs[0].contiguous(), dims, normalization, True))
        return (found,)
    source = torch.view_as_complex(inputs[0].contiguous())
    if kind == 2:
        return (torch.ops.aten._fft_c2r(source, dims, normalization, shapes[0][dims[-1]]),)
    return (torch.view_as_real(torch.ops.aten._fft_c2c(source, dims, normalization, bool(is_forward))),)


def _cholesky(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    return tuple(torch.linalg.cholesky_ex(inputs[0], upper=bool(numbers[0])))


def _lu_solve(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    is_left, is_transposed = map(bool, numbers)
    return (torch.linalg.lu_solve(*inputs, left=is_left, adjoint=is_transposed),)


def _exchanged_rows(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    rows = shapes[0][-1]
    factors = torch.zeros(*shapes[0], inputs[0].shape[-1])
    permutations, _, _ = torch.lu_unpack(factors, inputs[0].contiguous(), unpack_data=False)
    return (permutations.argmax(-2) if rows else torch.zeros(shapes[0], dtype=torch.int64),)


def _triangular_solve(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    is_upper, is_left, has_ones = map(bool, numbers)
    return (torch.linalg.solve_triangular(*inputs, upper=is_upper, left=is_left, unitriangular=has_ones),)


def _householder_product(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    reflections, factors = inputs
    columns = shapes[0][-1]
    room = functional.pad(reflections, [0, max(columns - reflections.shape[-1], 0)])
    return (torch.linalg.householder_product(room[..., :columns], factors),)


def _eigh(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    values, vectors = torch.linalg.eigh(inputs[0], UPLO="U" if numbers[0] else "L")
    info = torch.zeros(shapes[1], dtype=torch.int32)
    return (values, info, vectors) if numbers[1] else (values, info)


def _svd(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    info = torch.zeros(shapes[1], dtype=torch.int32)
    if not numbers[0]:
        return torch.linalg.svdvals(inputs[0]), info
    is_full = shapes[2][-2] == shapes[2][-1] and shapes[3][-2] == shapes[3][-1]
    left, values, right = torch.linalg.svd(inputs[0], full_matrices=is_full)
    return values, info, left, right


LEAST_SQUARES_DRIVERS = ("gelsy", "gels", "gelsd", "gelss")


def _least_squares(inputs: Tensors, shapes: Shapes, numbers: Sequence[int]) -> Tensors:
    driver, bits = numbers
    rcond = None if bits < 0 else struct.unpack("d", struct.pack("q", bits))[0]
    found = torch.linalg.lstsq(*inputs, rcond=rcond, driver=LEAST_SQUARES_DRIVERS[driver])
    solution = found.solution
    # The residual of the right-hand sides: only its norm is known, which goes into the first row.
    rest = solution.new_zeros(*solution.shape[:-2], shapes[0][-2] - solution.shape[-2], solution.shape[-1])
    if rest.shape[-2] and found.residuals.numel():
        rest[..., 0, :] = found.residuals.sqrt()
    rank = found.rank if found.rank.numel() else torch.zeros(shapes[1], dtype=torch.int64)
    values = found.singular_values if found.singular_values.numel() else solution.new_zeros(shapes[2])
    return torch.cat([solution, rest], -2), rank, values, torch.zeros(shapes[3], dtype=torch.int32)


_FINISHES: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "relu": torch.relu,
    "relu6": functional.relu6,
    "gelu": functional.gelu,
    "gelu_doubled": functional.gelu,
    "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": functional.hardswish,
}
_ROUTINES: dict[str, Callable[[Tensors, Shapes, Sequence[int]], Tensors]] = {
    "attention": _attention,
    "attention_backward": _attention_backward,
    "cholesky": _cholesky,
    "convolution": _convolution,
    "convolution_backward_data": _convolution_backward_data,
    "convolution_backward_weights": _convolution_backward_weights,
    "depthwise_convolution": _convolution,
    "eigh": _eigh,
    "exchanged_rows": _exchanged_rows,
    "fft": _fft,
    "geqrf": lambda inputs, shapes, numbers: torch.geqrf(inputs[0]),
    "grouped_product": _grouped_product,
    "householder_product": _householder_product,
    "least_squares": _least_squares,
    "lu_factor": lambda inputs, shapes, numbers: torch.linalg.lu_factor_ex(inputs[0]),
    "lu_solve": _lu_solve,
    "matmul": _matmul,
    "matrix_exp": lambda inputs, shapes, numbers: (torch.linalg.matrix_exp(inputs[0]),),
    "nonzero": _nonzero,
    "ormqr": lambda inputs, shapes, numbers: (torch.ormqr(inputs[0], inputs[1], inputs[2], *map(bool, numbers)),),
    "quantized_product": _quantized_product,
    "scan": _scan,
    "search": _search,
    "sort": _sort,
    "svd": _svd,
    "triangular_solve": _triangular_solve,
    "unique": _unique,
}
