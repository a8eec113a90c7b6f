"""Library calls match what their routines expect: types, shapes, and views that are inside their buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from precast.native.loops.buffers import View
from precast.native.loops.index import (
    Atom,
    Index,
    Symbol,
    atoms,
    constant,
    floor_divide,
    product,
    remainder,
    substitute,
)
from precast.native.loops.program import FINISHES, LibraryCall
from precast.native.loops.verifier.enumeration import Grid, Sizes, sample_sizes
from precast.native.loops.verifier.proofs import Facts, is_proved

Views = Sequence[View]
Shape = tuple[Index, ...]


def misfits(call: LibraryCall, examples: Sizes) -> Iterator[str]:
    """The reasons why a routine cannot be called this way."""
    for view in (*call.inputs, *call.outputs):
        if _leaves(view, examples):
            place = f"{_text(view.shape)} by {_text(view.strides)} from {view.offset}"
            yield f"a view of {view.buffer.name} leaves it: {place}"
    rule = _RULES.get(call.routine)
    if rule is None:
        yield f"there is no routine {call.routine}"
        return
    inputs, outputs = (
        [replace(view, shape=_traced(view.shape, examples)) for view in views]
        for views in (call.own_inputs, call.outputs)
    )
    if not rule(inputs, outputs, _traced(call.numbers, examples)):
        given, written = (", ".join(map(_described, views)) for views in (call.own_inputs, call.outputs))
        yield f"{call.routine} does not take {given} and write {written}"
    yield from _misfitting_finishes(call, examples)


def _misfitting_finishes(call: LibraryCall, examples: Sizes) -> Iterator[str]:
    for finishes, whole in ((call.prologue, call.inputs[0]), (call.epilogue, call.outputs[0])):
        for each in finishes:
            if (each.operand is None) != (FINISHES[each.operation] == 1):
                yield f"{each.operation} has the wrong number of operands"
            elif each.operand is not None and not _is_alike(call.inputs[each.operand], whole, examples):
                yield f"{each.operation} takes {_described(call.inputs[each.operand])} for {_described(whole)}"


def _is_alike(first: View, second: View, examples: Sizes) -> bool:
    return _traced(first.shape, examples) == _traced(second.shape, examples)


def _traced(numbers: Shape, examples: Sizes) -> Shape:
    """Sizes at their traced values: some that are written differently are equal."""
    values: dict[Atom, Index] = {Symbol(name): constant(size) for name, size in examples.items()}
    return tuple(substitute(number, values) for number in numbers) if values else numbers


def is_proved_inside(view: View, facts: Facts = ()) -> bool:
    """Whether it was proved that a view stays inside its buffer, given that `facts` hold."""
    first, last, end, own = _reach(view)
    return is_proved(first, (*own, *facts)) and is_proved(end - last, (*own, *facts))


def _reach(view: View) -> tuple[Index, Index, Index, Facts]:
    """The first and the last element of a view, the last of its buffer, and what holds if the view is not empty."""
    pairs = list(zip(view.shape, view.strides, strict=True))
    facts = tuple(size - 1 for size in view.shape if size.constant is None)
    last, first = view.offset, view.offset
    for size, stride in pairs:
        reach = (size - 1) * stride
        last, first = (last + reach, first) if is_proved(stride, facts) else (last, first + reach)
    end = sum(((size - 1) * stride for size, stride in zip(view.buffer.shape, view.buffer.strides, strict=True)),
              start=constant(0))  # fmt: skip
    return first, last, end, facts


def _leaves(view: View, examples: Sizes) -> bool:
    """Whether a view reaches outside its buffer, for every choice of dynamic sizes."""
    if any(size == constant(0) for size in view.shape) or is_proved_inside(view):
        return False
    first, last, end, _ = _reach(view)
    parts = (*view.shape, *view.strides, view.offset, *view.buffer.shape, *view.buffer.strides)
    symbols = sorted({each.name for part in parts for each in atoms(part) if isinstance(each, Symbol)})
    grids = (Grid((), sizes) for sizes in sample_sizes(symbols, examples))
    outside = [grid.number(first) < 0 or grid.number(last) > grid.number(end) for grid in grids
               if grid.number(product(view.shape)) > 0]  # fmt: skip
    # Where a data-dependent size takes all of a dimension, another has nothing of it in every choice.
    return bool(outside) and all(outside)


def _matmul(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    left, right, (result,) = *inputs, outputs
    shape = (*left.shape[:-1], right.shape[-1])
    return (
        left.shape[:-2] == right.shape[:-2]
        and left.shape[-1] == right.shape[-2]
        and shape == result.shape
        and len({left.dtype, right.dtype, result.dtype}) == 1
    )


def _quantized(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    left, codes, *facts = inputs
    (result,) = outputs
    bits, _, has_scales, has_zeros = numbers
    stored = codes.shape[1] * (1 if bits == constant(16) else floor_divide(8, bits))
    return (
        (*left.shape[:1], *codes.shape[:1]) == result.shape
        and left.dtype in (result.dtype, "i8")
        and codes.dtype in (("bf16",) if bits == constant(16) else ("i8", "u8"))
        and is_proved(stored - left.shape[1], ())
        and len(facts) == sum(each.constant or 0 for each in (has_scales, has_zeros))
        and all(each.shape[0] == codes.shape[0] and each.shape[1] == facts[0].shape[1] for each in facts)
        and all(remainder(stored, each.shape[1]) == constant(0) for each in facts)
    )


def _convolved(images: View, filters: View, result: View, numbers: Shape) -> bool:
    spatial = len(images.shape) - 2
    return (
        len(numbers) == 1 + 3 * spatial
        and len(images.shape) == len(filters.shape) == len(result.shape)
        and images.shape[0] == result.shape[0]
        and images.shape[1] == filters.shape[1] * numbers[0]
        and filters.shape[0] == result.shape[1]
        and images.dtype == filters.dtype
        and (images.dtype == result.dtype or (images.dtype, result.dtype) == ("i8", "f32"))
    )


def _attention(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    query, key, value, *mask = inputs
    result, sums = outputs
    return _attends(query, key, value, mask, numbers) and (result.shape, sums.shape) == (query.shape, query.shape[:-1])


def _attends(query: View, key: View, value: View, mask: Views, numbers: Shape) -> bool:
    scores = (*query.shape[:-1], key.shape[-2])
    return (
        query.shape[0] == key.shape[0]
        and remainder(query.shape[1], key.shape[1]) == constant(0)
        and key.shape[:2] == value.shape[:2]
        and key.shape[-2] == value.shape[-2]
        and len({query.dtype, key.dtype, value.dtype}) == 1
        and [each.shape for each in mask] == [scores] * bool(numbers[1].constant)
    )


def _attention_backward(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    slope, query, key, value, result, sums, *mask = inputs
    return (
        _attends(query, key, value, mask, numbers)
        and slope.shape == result.shape == query.shape
        and sums.shape == query.shape[:-1]
        and [each.shape for each in outputs] == [query.shape, key.shape, value.shape]
    )


def _alike(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    (source, *_), (first, *others) = inputs, outputs
    return first.dtype == source.dtype and first.shape == source.shape and all(
        each.dtype == "i64" and each.shape == first.shape for each in others
    )  # fmt: skip


def _sorted(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    (source,), (values, places) = inputs, outputs
    dim = numbers[0].constant
    others = [size for number, size in enumerate(source.shape) if number != dim]
    return (
        (values.dtype, places.dtype) == (source.dtype, "i64")
        and values.shape == places.shape
        and [size for number, size in enumerate(values.shape) if number != dim] == others
    )


def _found(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    ordered, values, *order = inputs
    (places,) = outputs
    return (
        ordered.dtype == values.dtype
        and (places.shape, places.dtype) == (values.shape, "i64")
        and [each.dtype for each in order] == ["i64"] * bool(numbers[1].constant)
    )


def _grouped(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    left, right, ends = inputs
    (result,) = outputs
    groups = ends.shape
    if numbers[0].constant:
        fits = left.shape[0] == right.shape[0] and result.shape == (*groups, left.shape[1], right.shape[1])
    else:
        fits = right.shape[:2] == (*groups, left.shape[1]) and result.shape == (left.shape[0], right.shape[2])
    return fits and ends.dtype in ("i32", "i64") and len({left.dtype, right.dtype, result.dtype}) == 1


def _counted(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    """Rows with room for every element, integers in the last few, and how much of the rows is filled."""
    (source,), (*rows, count) = inputs, outputs
    total = (product(source.shape),)
    are_rows = all(row.shape == total and row.strides == (constant(1),) for row in rows)
    return are_rows and all(row.dtype == "i64" for row in rows[-2:]) and (count.shape, count.dtype) == ((), "i64")


def _transformed(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    """Complex numbers are pairs along a last dimension; sizes differ only along the last transformed dimension."""
    (source,), (result,) = inputs, outputs
    kind, _, _, *dims, _ = (each.constant for each in numbers)
    rank = len(source.shape) - (kind != 1)
    if rank != len(result.shape) - (kind != 2) or not dims or kind not in (0, 1, 2):
        return False
    pairs = [each.shape[-1] for each, is_pair in ((source, kind != 1), (result, kind != 2)) if is_pair]
    others = [dim for dim in range(rank) if kind == 0 or dim != dims[-1]]
    return (
        source.dtype == result.dtype
        and source.dtype in ("f32", "f64")
        and all(each == constant(2) for each in pairs)
        and all(dim is not None and 0 <= dim < rank for dim in dims)
        and all(source.shape[dim] == result.shape[dim] for dim in others)
    )


def _factored(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    """A matrix and its factorization of the same size, possibly a row along the diagonal, and an error flag."""
    (source,), (result, *others) = inputs, outputs
    return (source.shape, source.dtype) == (result.shape, result.dtype) and all(
        each.shape[: len(source.shape) - 2] == source.shape[:-2] for each in others
    )


def _solved(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    """Square matrices on one side of the unknown; batches are broadcast."""
    (matrix, *_, sides), (result,) = inputs, outputs
    is_left = numbers[0 if len(inputs) == 3 else 1].constant
    return (
        len({matrix.dtype, sides.dtype, result.dtype}) == 1
        and matrix.shape[-2] == matrix.shape[-1] == result.shape[-2 if is_left else -1]
        and sides.shape[-2:] == result.shape[-2:]
        and all(len(each.shape) <= len(result.shape) for each in inputs)
    )


def _reflected(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    (reflections, factors, *other), (result,) = inputs, outputs
    return (
        len({reflections.dtype, factors.dtype, result.dtype}) == 1
        and factors.shape[:-1] == reflections.shape[:-2] == result.shape[:-2]
        and all(each.shape == result.shape for each in other)
        and (bool(other) or result.shape[-2] == reflections.shape[-2])
    )


def _spectrum(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    (source,), (values, info, *vectors) = inputs, outputs
    return (
        len({source.dtype, values.dtype, *(each.dtype for each in vectors)}) == 1
        and all(each.shape[:-2] == source.shape[:-2] for each in vectors)
        and values.shape[:-1] == info.shape == source.shape[:-2]
        and len(vectors) in (0, 1 if len(numbers) == 2 else 2)
    )


def _least_squares(inputs: Views, outputs: Views, numbers: Shape) -> bool:
    (equations, sides), (solution, rank, values, info) = inputs, outputs
    return (
        len({equations.dtype, sides.dtype, solution.dtype, values.dtype}) == 1
        and equations.shape[-2] == sides.shape[-2]
        and sides.shape[-1] == solution.shape[-1]
        and (rank.dtype, info.dtype) == ("i64", "i32")
        and solution.shape[:-2] == info.shape == values.shape[:-1] == rank.shape
    )


_RULES: dict[str, Callable[[Views, Views, Shape], bool]] = {
    "attention": _attention,
    "attention_backward": _attention_backward,
    "cholesky": _factored,
    "convolution": lambda inputs, outputs, numbers: _convolved(inputs[0], inputs[1], outputs[0], numbers),
    "convolution_backward_data": lambda inputs, outputs, numbers: _convolved(outputs[0], inputs[1], inputs[0], numbers),
    "convolution_backward_weights": lambda inputs, outputs, numbers: _convolved(
        inputs[0], outputs[0], inputs[1], numbers
    ),
    "depthwise_convolution": lambda inputs, outputs, numbers: _convolved(inputs[0], inputs[1], outputs[0], numbers),
    "eigh": _spectrum,
    "exchanged_rows": lambda inputs, outputs, numbers: (
        (inputs[0].dtype, outputs[0].dtype) == ("i32", "i64") and inputs[0].shape[:-1] == outputs[0].shape[:-1]
    ),
    "fft": _transformed,
    "geqrf": _factored,
    "grouped_product": _grouped,
    "householder_product": _reflected,
    "least_squares": _least_squares,
    "lu_factor": _factored,
    "lu_solve": _solved,
    "matmul": _matmul,
    "matrix_exp": _factored,
    "nonzero": _counted,
    "ormqr": _reflected,
    "quantized_product": _quantized,
    "scan": _alike,
    "search": _found,
    "sort": _sorted,
    "svd": _spectrum,
    "triangular_solve": _solved,
    "unique": lambda inputs, outputs, numbers: (
        _counted(inputs, outputs, numbers) and outputs[0].dtype == inputs[0].dtype and len(inputs[0].shape) == 1
    ),
}


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one"


def _described(view: View) -> str:
    return f"{view.buffer.name}: {view.dtype} {_text(view.shape)}"
