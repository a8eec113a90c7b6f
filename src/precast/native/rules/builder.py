"""The interface that lowering rules use: each call adds a step and returns the buffer that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from precast.artifact.dtypes import DTYPES
from precast.graph.tensor_spec import TORCH_DTYPES, dtype_name
from precast.native.loops.buffers import Buffer, contiguous_strides, whole
from precast.native.loops.index import Index, Variable, as_index, atom, constant
from precast.native.loops.program import Accumulate, FallbackStep, Kernel, LibraryCall, Loop, Statement, Step, Store
from precast.native.loops.scalars import Accumulated, Accumulator, Constant, IndexValue, Load, Scalar, cast

if TYPE_CHECKING:
    from precast.native.targets import Target

Indices = tuple[Index, ...]
Operand = Buffer | Index | float
Formula = Callable[..., Scalar]


@dataclass(frozen=True)
class Result:
    """The traced result of an operator; without strides, row-major."""

    dtype: str
    shape: Indices
    strides: Indices | None = None


def math_dtype(dtype: str) -> str:
    """The type to compute in: 16-bit floats are computed in single precision, as in eager."""
    return "f32" if dtype in ("f16", "bf16") else dtype


class Builder:
    """Collects the steps of one program, node by node."""

    def __init__(
        self, target: Target | None = None, names: set[str] | None = None, known_sizes: set[str] | None = None
    ) -> None:
        self.target = target
        self.steps: list[Step] = []
        self.names: set[str] = set() if names is None else names
        self.made: set[Buffer] = set()
        self.results: tuple[Result, ...] = ()
        self.node_name, self.origin = "", ""
        self.at: str | None = None
        # For an operator with a data-dependent number: the number's symbol, and its upper bound.
        self.number: Index | None = None
        self.bound: Index | None = None
        # Size symbols that occur in inputs and earlier nodes, and those that this node introduces.
        self.known_sizes: set[str] = set() if known_sizes is None else known_sizes
        self.new_sizes: list[str] = []

    @property
    def result(self) -> Result:
        (result,) = self.results
        return result

    @property
    def follows_cpu(self) -> bool:
        """Whether eager's kernels for CPUs are the ones to agree with, where those for GPUs compute otherwise."""
        return self.target is None or self.target.device == "cpu"

    def meet_sizes(self, symbols: Iterable[str]) -> None:
        """Record the size symbols that occur in the node's value."""
        self.new_sizes = [each for each in dict.fromkeys(symbols) if each not in self.known_sizes]
        self.known_sizes.update(self.new_sizes)

    def has_routine(self, name: str) -> bool:
        """Whether the target has a library routine."""
        return self.target is None or name in self.target.routines

    def takes(self, operator: str, steps: Sequence[Step]) -> bool:
        """Whether the target can run these steps, which an operator was lowered to."""
        return self.target is None or self.target.takes(operator, steps)

    @contextmanager
    def part(self, suffix: str) -> Iterator[None]:
        """While active, buffers are named after a part of the node."""
        whole_name = self.node_name
        self.node_name = f"{whole_name}_{suffix}"
        yield
        self.node_name = whole_name

    def buffer(self, dtype: str, shape: Indices, strides: Indices | None = None) -> Buffer:
        """A new buffer, named after the node; without `strides`, row-major."""
        name, number = self.node_name, 0
        while name in self.names:
            number += 1
            name = f"{self.node_name}_{number}"
        self.names.add(name)
        made = Buffer(name, dtype, shape, contiguous_strides(shape) if strides is None else strides)
        self.made.add(made)
        return made

    def result_buffer(self, result: Result | None = None) -> Buffer:
        """The buffer for the node's result, in eager's layout if that is dense."""
        result = result or self.result
        strides = result.strides if result.strides and is_dense(result.shape, result.strides) else None
        return self.buffer(result.dtype, result.shape, strides)

    def define(self, formula: Callable[[Indices], Scalar], result: Result | None = None) -> Buffer:
        """``buffer[indices] = formula(indices)`` for all indices."""
        result = result or self.result
        indices = loop_indices(result.shape)
        target = self.result_buffer(result)
        self.add_nest(target, loop_variables(indices), (Store(target, indices, cast(formula(indices), result.dtype)),))
        return target

    def pointwise(
        self,
        formula: Formula,
        *operands: Operand,
        compute: str = "",
        result: Result | None = None,
        rounds_operands: bool = False,
    ) -> Buffer:
        """Apply `formula` to broadcast elements, cast to the type `compute` (by default, the result's).

        16-bit types are computed in float32; with `rounds_operands`, operands of other types are rounded to them first.
        """
        result = result or self.result
        stored = compute or result.dtype
        dtype = math_dtype(stored)
        is_rounded = rounds_operands and stored in ("bf16", "f16")

        def read(operand: Operand, at: Indices) -> Scalar:
            return cast(_rounded(operand, at, stored), dtype) if is_rounded else element(operand, at, dtype)

        return self.define(lambda at: formula(*(read(each, at) for each in operands)), result)

    def view(self, source: Buffer, index_map: Callable[[Indices], Sequence[Index | int]]) -> Buffer:
        """``result[indices] = source[index_map(indices)]``: a copy that is eliminated when readers inline it."""
        return self.define(lambda at: Load(source, tuple(map(as_index, index_map(at)))))

    def reduce(
        self,
        kind: str,
        source: Buffer,
        dims: Sequence[int],
        *,
        prepare: Callable[[Scalar, Indices], Scalar] = lambda value, at: value,
        finish: Callable[[Scalar], Scalar] = lambda total: total,
        result: Result | None = None,
        accumulate: str = "",
    ) -> Buffer:
        """Combine ``prepare(source[at], at)`` over `dims`; store ``finish(total)``.

        The result may keep the reduced dims (as 1) or not; `accumulate` is the accumulator's type.
        """

        def formula(at: Indices) -> Scalar:
            return prepare(cast(Load(source, at), math_dtype(source.dtype)), at)

        return self.combine(kind, source.shape, dims, formula, finish=finish, result=result, accumulate=accumulate)

    def combine(
        self,
        kind: str,
        shape: Indices,
        dims: Sequence[int],
        formula: Callable[[Indices], Scalar],
        *,
        finish: Callable[[Scalar], Scalar] = lambda total: total,
        result: Result | None = None,
        accumulate: str = "",
    ) -> Buffer:
        """Combine ``formula(at)``, for all subscripts below `shape`, over `dims`; store ``finish(total)``."""
        result = result or self.result
        at = loop_indices(shape, prefix="r", kept="i", reduced=dims)
        kept = tuple(position for dim, position in enumerate(at) if dim not in dims)
        target = self.result_buffer(result)
        value = formula(at)
        total = Accumulator(f"{target.name}_{kind}", kind, accumulate or value.dtype)
        reducing = loop_variables(tuple(position for dim, position in enumerate(at) if dim in dims))
        loop = Loop(reducing, (Accumulate(total, cast(value, total.dtype)),), (total,))
        indices = at_result(kept, len(result.shape), dims)
        final = finish(Accumulated(total))
        self.add_nest(target, loop_variables(kept), (loop, Store(target, indices, cast(final, result.dtype))))
        return target

    def scatter(
        self,
        initial: Callable[[Indices], Scalar],
        passes: Sequence[tuple[Indices, Callable[[Buffer, Indices], Sequence[Store]]]],
        result: Result | None = None,
    ) -> Buffer:
        """``buffer[indices] = initial(indices)``, then, in sequence, loops that write at computed subscripts.

        A pass consists of the shape it iterates over and the store of each iteration.
        """
        result = result or self.result
        target = self.result_buffer(result)
        indices = loop_indices(result.shape)
        body = [_nest(loop_variables(indices), (Store(target, indices, initial(indices)),))]
        for shape, stores in passes:
            at = loop_indices(shape, kept="s")
            body.append(_nest(loop_variables(at), tuple(stores(target, at))))
        self.steps.append(Kernel(target.name, tuple(each for part in body for each in part), (self.origin,)))
        return target

    def call(
        self,
        routine: str,
        inputs: Sequence[Buffer],
        numbers: Sequence[Index | int] = (),
        results: Sequence[Result] | None = None,
    ) -> tuple[Buffer, ...]:
        """Call a routine of the support library, unless its result is empty."""
        wanted = self.results if results is None else results
        if all(constant(0) in each.shape for each in wanted):
            # Torch's empty results may have unexpected shapes: that of a convolution without channels is its input's.
            return tuple(map(self._nothing, wanted))
        targets = tuple(map(self.result_buffer, wanted))
        views, outputs = tuple(map(whole, inputs)), tuple(map(whole, targets))
        name, counts = targets[0].name, tuple(map(as_index, numbers))
        self.steps.append(LibraryCall(name, routine, views, outputs, (self.origin,), counts))
        return targets

    def _nothing(self, result: Result) -> Buffer:
        return self.define(lambda at: Constant(0, result.dtype), result)

    def multiply(
        self, routine: str, inputs: Sequence[Buffer], numbers: Sequence[Index | int] = (), result: Result | None = None
    ) -> Buffer:
        """Call a GEMM-like routine; in single precision for float16, unless the target supports that."""
        result = result or self.result
        types = {each.dtype for each in inputs}
        # For an empty result, eager accepts any operands.
        is_nothing = constant(0) in result.shape
        assert len(types) == 1 or is_nothing, (
            f"{self.origin}: {routine} multiplies {sorted(types)}: tracing must refuse that"
        )
        multiplies_half = self.target is not None and self.target.multiplies_half
        if result.dtype != "f16" or is_nothing or multiplies_half:
            (product,) = self.call(routine, inputs, numbers, [result])
            return product
        with self.part("wide"):
            wide = [self._widened(each) for each in inputs]
            (product,) = self.call(routine, wide, numbers, [Result("f32", result.shape, result.strides)])
        return self.define(lambda at: Load(product, at), result)

    def _widened(self, source: Buffer) -> Buffer:
        return self.define(lambda at: Load(source, at), Result("f32", source.shape, source.strides))

    def matmul(self, left: Buffer, right: Buffer, result: Result | None = None) -> Buffer:
        """``left @ right`` of matrices, or of batches of matrices with equal batch sizes."""
        return self.multiply("matmul", [left, right], result=result)

    def add_nest(self, target: Buffer, variables: tuple[Variable, ...], body: tuple[Statement, ...]) -> None:
        self.steps.append(Kernel(target.name, _nest(variables, body), (self.origin,)))

    def fallback(self, step: FallbackStep) -> None:
        self.steps.append(step)


def element(operand: Operand, at: Indices, dtype: str) -> Scalar:
    """One element of an operand at `at`, broadcast from the right, as `dtype`."""
    if isinstance(operand, Index):
        return IndexValue(operand, dtype)
    if not isinstance(operand, Buffer):
        return Constant(operand, dtype)
    return cast(Load(operand, broadcast_indices(operand.shape, at)), dtype)


def _rounded(operand: Operand, at: Indices, dtype: str) -> Scalar:
    """One element of an operand, rounded to a 16-bit type even where nothing stores it."""
    if isinstance(operand, int | float):
        return Constant(torch.tensor(operand, dtype=TORCH_DTYPES[dtype]).item(), dtype)
    value = element(operand, at, operand.dtype if isinstance(operand, Buffer) else "f32")
    return cast(value, dtype, is_asked=True)


def broadcast_indices(shape: Indices, at: Indices) -> Indices:
    """The subscripts of an operand of `shape` where its broadcast result has subscripts `at`."""
    trailing = at[len(at) - len(shape) :]
    return tuple(constant(0) if size.constant == 1 else each for size, each in zip(shape, trailing, strict=True))


def loop_indices(shape: Indices, *, prefix: str = "i", kept: str = "i", reduced: Sequence[int] = ()) -> Indices:
    """One fresh loop variable for each dimension; dimensions of size 1 need none."""
    names = [f"{prefix if dim in reduced else kept}{dim}" for dim in range(len(shape))]
    return tuple(
        constant(0) if size.constant == 1 else atom(Variable(name, size))
        for name, size in zip(names, shape, strict=True)
    )


def at_result(kept: Indices, rank: int, dims: Sequence[int]) -> Indices:
    """Subscripts of a reduction's result from those of the remaining dimensions."""
    if rank == len(kept):
        return kept
    remaining = iter(kept)
    return tuple(constant(0) if dim in dims else next(remaining) for dim in range(rank))


def is_dense(shape: Indices, strides: Indices) -> bool:
    """Whether elements fill memory without gaps or overlap, in some order of dimensions."""
    if any(size.constant == 0 for size in shape):
        return strides == contiguous_strides(shape)
    expected = constant(1)
    left = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size.constant != 1]
    while left:
        found = next((pair for pair in left if pair[1] == expected), None)
        if found is None:
            return False
        left.remove(found)
        expected = expected * found[0]
    return True


def promoted_dtype(operands: Sequence[Operand]) -> str:
    """The type in which PyTorch compares these operands."""
    first, second = (_stand_in(operand) for operand in (*operands, *operands)[:2])
    return dtype_name(torch.result_type(first, second))


def _stand_in(operand: Operand) -> torch.Tensor:
    """A stand-in of the operand's type and kind (tensor, zero-dim tensor, number) for type promotion."""
    if isinstance(operand, Buffer):
        return torch.empty((0,) * min(len(operand.shape), 1), dtype=TORCH_DTYPES[operand.dtype], device="meta")
    # A wrapped number has lower priority than tensors of its category; only `result_type` itself can create one.
    return 0 if isinstance(operand, Index) else operand  # type: ignore[return-value]


def is_floating(dtype: str) -> bool:
    return DTYPES[dtype].is_floating


def _nest(variables: tuple[Variable, ...], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return (Loop(variables, body),) if variables else body


def loop_variables(indices: Indices) -> tuple[Variable, ...]:
    found: list[Variable] = []
    for index in indices:
        match index.terms:
            case (((Variable() as variable,), 1),):
                found.append(variable)
    return tuple(found)
