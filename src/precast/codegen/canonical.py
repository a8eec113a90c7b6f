"""A kernel's text without its names: equal texts mean equal code.

Before: ``for i0 < 8: gelu_3[i0] = f(add_7[i0])`` and ``for i0 < 8: gelu_4[i0] = f(add_9[i0])``
After, both: ``for i0 < 8: b1[i0] = f(b0[i0])``
"""

from __future__ import annotations

from dataclasses import replace

from precast.codegen.kernels import kernel_parameters
from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Atom, Index, Symbol, Variable, substitute, symbol
from precast.ir.loops.printer import describe_buffer, print_kernel
from precast.ir.loops.program import Kernel, Loop, Statement, Store, rewrite_statement
from precast.ir.loops.scalars import Accumulated, Accumulator, IndexValue, Load, Named, Scalar


def canonical_key(kernel: Kernel) -> str:
    """Equal for two kernels exactly when one function serves both, given the parameters of `kernel_parameters`."""
    buffers, sizes = kernel_parameters(kernel)
    renaming = _Renaming({Symbol(name): symbol(f"n{number}") for number, name in enumerate(sizes)}, buffers)
    body = tuple(map(renaming.statement, kernel.body))
    parameters = [describe_buffer(renaming.buffers[buffer]) for buffer in buffers]
    return "\n".join([*parameters, *print_kernel(Kernel("kernel", body))])


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
