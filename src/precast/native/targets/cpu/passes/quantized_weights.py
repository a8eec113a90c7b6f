"""Quantized weights: GEMMs and convolutions read codes of few bits as they are stored.

Before::

    for i0 < 768, i1 < 768:  weight[i0, i1] = (f32(codes[i0, i1]) - zero[i0]) * scale[i0]
    call mm: mm = matmul(x, weight: f32[768, 768] strides (1, 768))

After::

    call mm: mm = quantized_product(x, codes, scale, zero)

Where activations are quantized to 8 bits too, they are stored as such, and the GEMM is an integer one::

    for i0, i1:  x[i0, i1] = f32(i8(round(y[i0, i1] * 3.5)))       x_codes[i0, i1] = i8(round(y[i0, i1] * 3.5))
    call mm: mm = quantized_product(x, codes)                      call mm: mm = quantized_product(x_codes, codes)

4-bit codes are packed two to a byte, the first in the low half. Scales and zero points are per column of the product
(a row of codes), or per group of codes in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from precast.artifact.dtypes import DTYPES
from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index, Variable, atom, coefficient_of, constant, floor_divide, remainder
from precast.native.loops.program import Kernel, LibraryCall, Loop, LoopProgram, Step, Store, with_steps
from precast.native.loops.scalars import Apply, Cast, Constant, IndexValue, Load, Named, Scalar
from precast.native.passes.inline import Definition, definition_of

FLOATS = ("f32", "bf16", "f16")
CODES = ("i8", "u8")
LEAST_GROUP = 32
"""Group sizes must be multiples of the routine's block."""
MOST_ROWS, LEAST_DEPTH = 8, 64
"""More rows than this, with bfloat16 weights, need a processor with bfloat16 instructions."""
LONGEST_SUM = 1 << 16
"""The number of products of 8-bit integers whose sum fits 32 bits."""
PLAIN_CODES = tuple(map(constant, (8, 0, 0, 0)))
"""The routine's numbers for a GEMM with 8-bit codes without scales and zero points."""


def read_quantized_weights(program: LoopProgram) -> LoopProgram:
    """Pass codes to GEMMs instead of dequantized floats; loops that are no longer read are removed later."""
    short = (*CODES, "bf16")
    if not any(buffer.dtype in short for buffer in (*_read_in(program), *program.inputs)):
        return program
    definitions: dict[Buffer, Definition] = {}
    whole_numbers = _WholeNumbers({buffer.name for buffer in (*program.inputs, *program.outputs, *program.temporaries)})
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            definition = definition_of(step)
            if definition is not None and definition.buffer.dtype in FLOATS:
                definitions[definition.buffer] = definition
        elif isinstance(step, LibraryCall) and step.routine == "matmul":
            definition = definitions.get(step.inputs[1].buffer)
            step = (None if definition is None else _reading_codes(step, definition)) or step
            step = whole_numbers.in_product(_reading_bfloat(step), definitions)
        elif isinstance(step, LibraryCall) and step.routine == "convolution":
            step = whole_numbers.in_convolution(step, definitions)
        steps += [*whole_numbers.take_kernels(), step]
    return with_steps(program, steps)


def _read_in(program: LoopProgram) -> Iterator[Buffer]:
    for step in program.steps:
        if isinstance(step, Kernel):
            yield from step.read


def _reading_bfloat(call: LibraryCall) -> LibraryCall:
    """A GEMM of few rows with a linear layer's bfloat16 weight, which is bound by reading that weight."""
    left, right = call.inputs[:2]
    if call.routine != "matmul" or right.dtype != "bf16" or call.numbers or call.epilogue or len(right.shape) != 2:
        return call
    sizes = [size.constant for size in (left.shape[0], *right.shape)]
    rows, depth, columns = (size or 0 for size in sizes)
    step = right.strides[1].constant or 0
    if (
        not 0 < rows <= MOST_ROWS
        or depth < LEAST_DEPTH
        or not columns
        or right.strides[0] != constant(1)
        or step < depth
    ):
        return call
    codes = View(right.buffer, (right.shape[1], right.shape[0]), (right.strides[1], constant(1)), right.offset)
    numbers = tuple(map(constant, (16, 0, 0, 0)))
    return replace(call, routine="quantized_product", inputs=(left, codes), numbers=numbers)


class _WholeNumbers:
    """Makes loops that store 8-bit integers in place of the floats that they were converted to."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.kernels: list[Kernel] = []
        self.made: dict[Buffer, Buffer] = {}

    def take_kernels(self) -> list[Kernel]:
        taken, self.kernels = self.kernels, []
        return taken

    def in_product(self, call: LibraryCall, definitions: Mapping[Buffer, Definition]) -> LibraryCall:
        """The GEMM with integer rows, if they are quantized."""
        if call.routine != "quantized_product" or call.numbers != PLAIN_CODES or call.inputs[1].dtype != "i8":
            return call
        depth = call.inputs[0].shape[1].constant
        if depth is None or depth > LONGEST_SUM:
            return call
        left = _codes_as_they_are(call.inputs[0], definitions) or self._stored(call.inputs[0], definitions)
        return call if left is None else replace(call, inputs=(left, *call.inputs[1:]))

    def in_convolution(self, call: LibraryCall, definitions: Mapping[Buffer, Definition]) -> LibraryCall:
        """The integer convolution, if both operands are quantized."""
        filters = _codes_as_they_are(call.inputs[1], definitions)
        sizes = [size.constant for size in call.inputs[1].shape[1:]]
        is_short = all(size is not None for size in sizes) and math.prod(size or 1 for size in sizes) <= LONGEST_SUM
        if filters is None or not is_short:
            return call
        images = _codes_as_they_are(call.inputs[0], definitions) or self._stored(call.inputs[0], definitions)
        if images is None:
            return call
        return replace(call, inputs=(images, filters, *call.inputs[2:]))

    def _stored(self, view: View, definitions: Mapping[Buffer, Definition]) -> View | None:
        """A view of floats as stored integers; None if its values are not integers."""
        definition = definitions.get(view.buffer)
        value = None if definition is None else _bare(definition.value)
        if definition is None or not isinstance(value, Cast) or value.value.dtype != "i8":
            return None
        if view.buffer not in self.made:
            made = replace(view.buffer, name=self._name(f"{view.buffer.name}_codes"), dtype="i8")
            variables = tuple(each for each in definition.variables if each is not None)
            indices = tuple(constant(0) if each is None else atom(each) for each in definition.variables)
            store = Store(made, indices, value.value)
            body = (Loop(variables, (store,)),) if variables else (store,)
            self.kernels.append(Kernel(made.name, body, definition.origins))
            self.made[view.buffer] = made
        return replace(view, buffer=self.made[view.buffer])

    def _name(self, wish: str) -> str:
        name, number = wish, 0
        while name in self.names:
            number += 1
            name = f"{wish}_{number}"
        self.names.add(name)
        return name


def _codes_as_they_are(view: View, definitions: Mapping[Buffer, Definition]) -> View | None:
    """The stored codes that a view holds as floats, if both have the same layout."""
    definition = definitions.get(view.buffer)
    value = None if definition is None else _bare(definition.value)
    load = _named(value.value) if isinstance(value, Cast) else None
    if definition is None or not isinstance(load, Load) or load.dtype != "i8" or load.guard is not None:
        return None
    is_alike = load.buffer.offset(load.indices) == definition.offset
    return replace(view, buffer=load.buffer) if is_alike else None


def _reading_codes(call: LibraryCall, definition: Definition) -> LibraryCall | None:
    """The call with codes, if the definition of its right operand is a dequantization; otherwise None."""
    place = _Place.of(call, definition)
    weights = None if place is None else _weights(definition.value)
    if place is None or weights is None:
        return None
    codes = place.codes(weights.codes)
    if codes is None:
        return None
    view, bits = codes
    group = next((found for each in weights.facts if (found := place.group_of(each, view, bits))), place.depth)
    facts = [place.fact(each, view, bits, group) for each in weights.facts]
    views = [each for each in facts if each is not None]
    if len(views) != len(facts):
        return None
    numbers = (bits, weights.fixed_zero, weights.scale is not None, weights.zero is not None)
    return LibraryCall(
        call.name, "quantized_product", (call.inputs[0], view, *views), call.outputs, call.origins,
        tuple(constant(int(each)) for each in numbers),
    )  # fmt: skip


@dataclass(frozen=True)
class _Weights:
    """``(codes - zero) * scale`` as scalars; a uniform zero point is a number."""

    codes: Scalar
    scale: Load | None
    zero: Load | None
    fixed_zero: int

    @property
    def facts(self) -> list[Load]:
        return [each for each in (self.scale, self.zero) if each is not None]


def _weights(value: Scalar) -> _Weights | None:
    scale = None
    match _bare(value):
        case Apply("mul", (first, second)):
            pairs = [(first, _bare(second)), (second, _bare(first))]
            found = next(
                ((rest, load) for rest, load in pairs if isinstance(load, Load) and load.dtype in FLOATS), None
            )
            if found is None:
                return None
            value, scale = found
    match _bare(value):
        case Apply("sub", (first, second)):
            value, point = first, _bare(second)
            if isinstance(point, Cast):
                point = _named(point.value)
        case _:
            point = Constant(0, "f32")
    codes = _bare(value)
    if not isinstance(codes, Cast) or codes.value.dtype not in CODES:
        return None
    match point:
        case Constant(number, _) if float(number).is_integer():
            return _Weights(_named(codes.value), scale, None, int(number))
        case Load(guard=None) if point.dtype in (*FLOATS, *CODES):
            return _Weights(_named(codes.value), scale, point, 0)
    return None


@dataclass(frozen=True)
class _Place:
    """A column of a product, as a variable, and the position along its depth, in the variables of the filling loop."""

    column: Variable
    along: Index
    depth: int

    @classmethod
    def of(cls, call: LibraryCall, definition: Definition) -> _Place | None:
        left, right = call.inputs
        (result,) = call.outputs
        sizes = [size.constant for size in right.shape]
        if len(sizes) != 2 or call.numbers or call.epilogue or left.dtype not in FLOATS or result.dtype not in FLOATS:
            return None
        depth, columns = sizes
        if not depth or not columns or right.strides[0] != constant(1) or right.offset != constant(0):
            return None
        for variable in definition.variables:
            if variable is None or coefficient_of(definition.offset, variable) != right.strides[1]:
                continue
            along = definition.offset - atom(variable) * right.strides[1]
            if variable.extent == constant(columns) and not _depends(along, variable):
                return cls(variable, along, depth)
        return None

    def codes(self, value: Scalar) -> tuple[View, int] | None:
        """The view of the codes, and the number of bits of each."""
        match value:
            case Load(guard=None):
                load, bits, expected = value, 8, self.along
            case Apply("bitwise_and", (first, Constant(15))):
                match _named(first):
                    case Apply("bitwise_right_shift", (shifted, amount)):
                        source = _named(shifted)
                        if not isinstance(source, Load) or source.guard is not None or source.dtype != "u8":
                            return None
                        if _number(amount) != remainder(self.along, 2) * 4:
                            return None
                        load, bits, expected = source, 4, floor_divide(self.along, 2)
                    case _:
                        return None
            case _:
                return None
        found = self._start(load, expected)
        if found is None or not found[1].constant:
            return None
        start, step = found
        view = View(load.buffer, (self.column.extent, step), (step, constant(1)), start)
        is_long_enough = step.constant is not None and step.constant * 8 // bits >= self.depth
        return (view, bits) if is_long_enough and load.buffer.is_contiguous and start == constant(0) else None

    def group_of(self, load: Load, codes: View, bits: int) -> int | None:
        """The number of codes that share an element of scales or zero points; None if all codes of a column do."""
        offset = load.buffer.offset(load.indices)
        groups = coefficient_of(offset, self.column)
        stored = codes.shape[1].constant
        if groups is None or not groups.constant or stored is None or not _depends_on_any(offset, self.along):
            return None
        numbers = stored * 8 // bits
        return None if numbers % groups.constant else numbers // groups.constant

    def fact(self, load: Load, codes: View, bits: int, group: int) -> View | None:
        """The view of scales or zero points by column and group."""
        whole = self._start(load, constant(0))
        stored = codes.shape[1].constant
        assert stored is not None
        groups = 1 if group == self.depth else stored * 8 // bits // group
        if whole is not None:
            start, step = whole
            return View(load.buffer, (self.column.extent, constant(groups)), (step, constant(0)), start)
        found = self._start(load, floor_divide(self.along, group))
        if found is None or group % LEAST_GROUP:
            return None
        start, step = found
        return View(load.buffer, (self.column.extent, constant(groups)), (step, constant(1)), start)

    def _start(self, load: Load, expected: Index) -> tuple[Index, Index] | None:
        """The first element and the stride from column to column, if the rest of the offset is as expected."""
        offset = load.buffer.offset(load.indices)
        step = coefficient_of(offset, self.column)
        if load.guard is not None or offset.computed or step is None:
            return None
        start = offset - atom(self.column) * step - expected
        return (start, step) if start.constant is not None else None


def _depends(index: Index, variable: Variable) -> bool:
    return coefficient_of(index, variable) != constant(0)


def _depends_on_any(index: Index, along: Index) -> bool:
    variables = {factor for monomial, _ in along.terms for factor in monomial if isinstance(factor, Variable)}
    return any(_depends(index, each) for each in variables)


def _named(value: Scalar) -> Scalar:
    while isinstance(value, Named):
        value = value.value
    return value


def _bare(value: Scalar) -> Scalar:
    """The value without names and roundings: weights are used at full precision."""
    while isinstance(value, Named) or (
        isinstance(value, Cast) and value.dtype in FLOATS and value.value.dtype in FLOATS
    ):
        value = value.value
    return value


def _number(value: Scalar) -> Index | None:
    """An integer that depends on subscripts alone."""
    match _named(value):
        case Constant(int() as number, _):
            return constant(number)
        case IndexValue(index, _):
            return index
        case Cast(inner, dtype) if not DTYPES[dtype].is_floating:
            return _number(inner)
        case Apply("add" | "mul" as operation, (first, second)):
            numbers = _number(first), _number(second)
            if numbers[0] is None or numbers[1] is None:
                return None
            return numbers[0] + numbers[1] if operation == "add" else numbers[0] * numbers[1]
    return None
