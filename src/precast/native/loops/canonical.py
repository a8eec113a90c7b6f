"""A kernel's text without its names: equal texts mean equal code.

Before: ``for i0 < 8: gelu_3[i0] = f(add_7[i0])`` and ``for i0 < 8: gelu_4[i0] = f(add_9[i0])``
After, both: ``for i0 < 8: b1[i0] = f(b0[i0])``

A pattern leaves sizes out, too: callers pass the ends of the loops, and of tensors only their memory matters.

A kernel is also rebased: its tensors begin at the first element that it accesses, and the offsets are separate.

Before: ``for i0 < 32:  h[i0] = f(x[7, i0])``
After:  ``for i0 < 32:  h[i0] = f(x[0, i0])``, called with ``x + 7 * 32``

An unrolled loop then has one kernel, not one for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from precast.native.loops.buffers import Buffer, contiguous_buffer
from precast.native.loops.index import Atom, Index, Symbol, Variable, atom, atoms, constant, substitute, symbol
from precast.native.loops.printer import describe_buffer, print_kernel
from precast.native.loops.program import (
    Kernel,
    Loop,
    Statement,
    Store,
    loads_of,
    rewrite_statement,
    stores_of,
    values_of,
    variables_of,
)
from precast.native.loops.rewriting import Place, replace_places
from precast.native.loops.scalars import Accumulated, Accumulator, IndexValue, Load, Named, Scalar, walk

FLAT_LENGTH = "length"
"""The size of the buffers of patterns."""


def kernel_parameters(kernel: Kernel) -> tuple[tuple[Buffer, ...], tuple[str, ...]]:
    """Buffers in the order of first use, and the dynamic sizes that the kernel uses."""
    loaded = [load.buffer for load in loads_of(kernel.body)]
    buffers = tuple(dict.fromkeys([*loaded, *(store.buffer for store in stores_of(kernel.body))]))
    indices: list[Index] = [variable.extent for variable in variables_of(kernel.body)]
    indices += [load.buffer.offset(load.indices) for load in loads_of(kernel.body)]
    indices += [store.buffer.offset(store.indices) for store in stores_of(kernel.body)]
    indices += [value.index for value in walk(*values_of(kernel.body)) if isinstance(value, IndexValue)]
    names = dict.fromkeys(each.name for index in indices for each in sorted(atoms(index), key=lambda a: a.text)
                          if isinstance(each, Symbol))  # fmt: skip
    return buffers, tuple(names)


def canonical_key(kernel: Kernel) -> str:
    """Equal for two kernels exactly when one function implements both, given the parameters of `kernel_parameters`."""
    buffers, sizes = kernel_parameters(kernel)
    renaming = _Renaming({Symbol(name): symbol(f"n{number}") for number, name in enumerate(sizes)}, buffers)
    body = tuple(map(renaming.statement, kernel.body))
    parameters = [describe_buffer(renaming.buffers[buffer]) for buffer in buffers]
    return "\n".join([*parameters, *print_kernel(Kernel("kernel", body))])


@dataclass(frozen=True)
class Pattern:
    """A kernel over flat memory, whose loops end at symbolic sizes, and the original buffers and sizes.

    `buffers` and `sizes` are in the order of `kernel_parameters` of the pattern's kernel.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    sizes: tuple[Index, ...]


# Called for grouping kernels and again for generating them.
@lru_cache(maxsize=1024)
def pattern_of(kernel: Kernel) -> Pattern:
    """Abstract from the shapes of tensors and the ends of loops."""
    forgetting = _Forgetting(kernel)
    general = replace(kernel, body=tuple(map(forgetting.statement, kernel.body)))
    buffers, sizes = kernel_parameters(general)
    originals = {new: old for old, new in forgetting.memory.items()}
    values = tuple(forgetting.ends.get(name, symbol(name)) for name in sizes)
    return Pattern(general, tuple(originals[each] for each in buffers), values)


class _Forgetting:
    def __init__(self, kernel: Kernel):
        variables = dict.fromkeys(variables_of(kernel.body))
        self.ends = {f"end{number}": each.extent for number, each in enumerate(variables)}
        self.variables = {
            each: Variable(each.name, symbol(end)) for each, end in zip(variables, self.ends, strict=True)
        }
        self.memory = {each: _memory_of(each) for each in (*kernel.read, *kernel.written)}
        self.bindings: dict[Atom, Index] = {old: atom(new) for old, new in self.variables.items()}
        self.memo: dict[int, Scalar] = {}

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            variables = tuple(self.variables[each] for each in statement.variables)
            return replace(statement, variables=variables, body=tuple(map(self.statement, statement.body)))
        statement = rewrite_statement(statement, self.change, self.memo)
        if isinstance(statement, Store):
            indices = self.place(statement.buffer, statement.indices)
            return replace(statement, buffer=self.memory[statement.buffer], indices=indices)
        return statement

    def change(self, value: Scalar) -> Scalar:
        match value:
            case Load(buffer, indices, guard):
                return Load(self.memory[buffer], self.place(buffer, indices), guard)
            case IndexValue(index, dtype):
                return IndexValue(substitute(index, self.bindings), dtype)
        return value

    def place(self, buffer: Buffer, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        offset = substitute(buffer.offset(indices), self.bindings)
        return (offset,) if self.memory[buffer].shape else ()


def _memory_of(buffer: Buffer) -> Buffer:
    """A flat buffer of arbitrary length: subscripts are offsets."""
    return contiguous_buffer(buffer.name, buffer.dtype, () if buffer.is_one_number else (symbol(FLAT_LENGTH),))


class _Renaming:
    def __init__(self, sizes: dict[Atom, Index], buffers: tuple[Buffer, ...]):
        self.sizes: dict[Atom, Index] = sizes
        self.buffers = {buffer: self.buffer(buffer, f"b{number}") for number, buffer in enumerate(buffers)}
        self.accumulators: dict[Accumulator, Accumulator] = {}
        self.memo: dict[int, Scalar] = {}

    def buffer(self, buffer: Buffer, name: str) -> Buffer:
        return Buffer(name, buffer.dtype, self.indices(buffer.shape), self.indices(buffer.strides))

    def index(self, index: Index) -> Index:
        return substitute(index, self.sizes)

    def indices(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(map(self.index, indices))

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            for each in statement.accumulators:
                self.accumulators[each] = replace(each, name=f"a{len(self.accumulators)}")
            extents = tuple(Variable(each.name, self.index(each.extent)) for each in statement.variables)
            accumulators = tuple(self.accumulators[each] for each in statement.accumulators)
            return Loop(extents, tuple(map(self.statement, statement.body)), accumulators)
        renamed = rewrite_statement(statement, self.change, self.memo)
        if isinstance(renamed, Store):
            return replace(renamed, buffer=self.buffers[renamed.buffer], indices=self.indices(renamed.indices))
        return replace(renamed, accumulator=self.accumulators[renamed.accumulator])

    def change(self, value: Scalar) -> Scalar:
        match value:
            case Load(buffer, indices, guard):
                return Load(self.buffers[buffer], self.indices(indices), guard)
            case IndexValue(index, dtype):
                return IndexValue(self.index(index), dtype)
            case Named(_, inner):
                return inner
            case Accumulated(accumulator):
                return Accumulated(self.accumulators[accumulator])
        return value


def from_start(kernel: Kernel) -> tuple[Kernel, dict[Buffer, Index]]:
    """The kernel over rebased tensors, and by how many elements each is offset from the original."""
    starts = {buffer: start for buffer, start in _lowest_subscripts(kernel).items() if any(start)}
    if not starts:
        return kernel, {}
    body = replace_places(kernel.body, lambda place: _moved(place, starts))
    offsets = {buffer: buffer.offset(tuple(map(constant, start))) for buffer, start in starts.items()}
    return replace(kernel, body=body), offsets


def _lowest_subscripts(kernel: Kernel) -> dict[Buffer, tuple[int, ...]]:
    """The smallest constant subscript of each dimension over all accesses of a buffer."""
    lowest: dict[Buffer, tuple[int, ...]] = {}
    accesses: tuple[Load | Store, ...] = (*loads_of(kernel.body), *stores_of(kernel.body))
    for access in accesses:
        added = tuple(max(0, _added(index)) for index in access.indices)
        known = lowest.get(access.buffer)
        lowest[access.buffer] = added if known is None else tuple(map(min, known, added))
    return lowest


def _added(index: Index) -> int:
    return next((number for monomial, number in index.terms if not monomial), 0)


def _moved(place: Place, starts: Mapping[Buffer, tuple[int, ...]]) -> Place:
    buffer, indices = place
    start = starts.get(buffer)
    return place if start is None else (buffer, tuple(index - by for index, by in zip(indices, start, strict=True)))
