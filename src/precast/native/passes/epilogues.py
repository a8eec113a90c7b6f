"""Epilogue fusion: matrix products and convolutions apply bias, scale, residual and activation themselves.

Before::

    call conv: conv = convolution(x, w)
    for …:  relu[i0, i1, i2, i3] = maximum((conv[…] - mean[i1]) * rsqrt(variance[i1]) + y[i0, i1, i2, i3], 0)

After::

    for i1 < 64:  conv_scale[i1] = rsqrt(variance[i1])
    for i1 < 64:  conv_shift[i1] = -mean[i1] * rsqrt(variance[i1])
    call conv: relu = convolution(x, w) then mul conv_scale, add conv_shift, add y, relu

The chain stops at the first operation that a routine does not support; the loop keeps the rest.

The chain is the path from a loaded value to the stored one, operation by operation.

Before: ``maximum((conv[i] - mean[i]) * scale[i], 0)``, seen from ``conv[i]``
After:  add ``-mean[i]``, mul ``scale[i]``, relu
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from precast.native.loops.buffers import Buffer, View, contiguous_strides
from precast.native.loops.index import Atom, Index, Variable, atom, coefficient_of, constant, product, substitute
from precast.native.loops.program import (
    Finish,
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Step,
    Store,
    read_by,
    reader_counts,
    rewrite_statement,
    with_steps,
)
from precast.native.loops.rewriting import substitute_scalar
from precast.native.loops.scalars import (
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    apply,
    as_scalar,
    operands_of,
    walk,
)
from precast.native.passes.inline import Definition, definition_of, strip_names
from precast.native.rules.activation import gelu_doubled_of, gelu_of, silu_of


def _hardswish_of(value: Scalar) -> Scalar:
    """As PyTorch decomposes it."""
    above = apply("maximum", value + 3.0, as_scalar(0, value.dtype))
    return value * apply("minimum", above, as_scalar(6, value.dtype)) / 6.0


ACTIVATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "gelu": lambda value: gelu_of(value, "none"),
    "gelu_doubled": gelu_doubled_of,
    "gelu_tanh": lambda value: gelu_of(value, "tanh"),
    "silu": silu_of,
    "hardswish": _hardswish_of,
}


ACTIVATION_DEPTH = 2
"""The maximal distance from an activation's argument to its value, in operations."""


@dataclass(frozen=True)
class Part:
    """One operation of `loops.program.FINISHES`, its second operand, and the value it returns."""

    operation: str
    operand: Scalar | None
    reached: Scalar


def path_from(start: Scalar, root: Scalar) -> list[Part]:
    """The operations from `start` towards `root`, as far as each is supported and has one reader.

    Intermediate rounding to the type of `start` is omitted: the result is rounded once, at the end.
    """
    readers: dict[int, list[Scalar]] = defaultdict(list)
    for value in walk(root):
        for operand in operands_of(value):
            readers[id(operand)].append(value)
    path: list[Part] = []
    value = start
    while value is not root:
        part = _next_part(value, readers, start.dtype)
        if part is None:
            break
        if part.operation:
            path.append(part)
        elif path:
            path[-1] = Part(path[-1].operation, path[-1].operand, part.reached)
        value = part.reached
    return path


def _next_part(value: Scalar, readers: dict[int, list[Scalar]], dtype: str) -> Part | None:
    """The next operation; one without a name is the identity."""
    match readers[id(value)]:
        case [Named() as reader]:
            return Part("", None, reader)
        case [Cast(_, to) as reader] if to in ("f32", dtype):
            return Part("", None, reader)
        case [Apply("maximum", (first, Constant(0))) as reader] if first is value:
            return _up_to_six(reader, readers) or Part("relu", None, reader)
        case [Apply("tanh" | "sigmoid" as operation) as reader]:
            return Part(operation, None, reader)
        case [Apply("add" | "mul" as operation, (first, second)) as reader]:
            return Part(operation, second if first is value else first, reader)
        case [Apply("sub", (first, second)) as reader] if first is value:
            return Part("add", -second, reader)
        case [Apply("div", (first, second)) as reader] if first is value:
            return Part("mul", as_scalar(1.0, second.dtype) / second, reader)
    return _activation(value, readers)


def _up_to_six(value: Scalar, readers: dict[int, list[Scalar]]) -> Part | None:
    match readers[id(value)]:
        case [Apply("minimum", (first, Constant(6))) as reader] if first is value:
            return Part("relu6", None, reader)
    return None


def _activation(value: Scalar, readers: dict[int, list[Scalar]]) -> Part | None:
    """An activation that reads its argument several times, recognized by its formula."""
    for reached in _followers(value, readers, depth=ACTIVATION_DEPTH):
        for operation, formula in ACTIVATIONS.items():
            if _is_same(reached, formula(value), value) and _is_only_way(value, reached, readers):
                return Part(operation, None, reached)
    return None


def _is_only_way(value: Scalar, reached: Scalar, readers: dict[int, list[Scalar]]) -> bool:
    """Whether only `reached` depends on `value` and on everything between the two."""
    inside, between = {id(each) for each in walk(reached)}, {id(value)}
    for each in walk(reached):
        if any(id(operand) in between for operand in operands_of(each)):
            between.add(id(each))
    return all(id(reader) in inside for each in between - {id(reached)} for reader in readers[each])


def _followers(value: Scalar, readers: dict[int, list[Scalar]], *, depth: int) -> Iterator[Scalar]:
    """The transitive readers of a value, up to a number of operations away."""
    for reader in readers[id(value)]:
        if isinstance(reader, Apply):
            yield reader
        remaining = depth - isinstance(reader, Apply)
        if remaining and isinstance(reader, Apply | Named):
            yield from _followers(reader, readers, depth=remaining)


def _is_same(first: Scalar, second: Scalar, argument: Scalar) -> bool:
    """Whether two formulas of `argument` are structurally equal."""
    first, second = _bare(first, argument), _bare(second, argument)
    match first, second:
        case _ if first is argument or second is argument:
            return first is second
        case Apply(operation, mine, _), Apply(other, others, _):
            return operation == other and all(map(_is_same, mine, others, (argument,) * len(mine)))
        case Constant(value), Constant(other):
            return value == other
    return False


def _bare(value: Scalar, argument: Scalar) -> Scalar:
    while isinstance(value, Named) and value is not argument:
        value = value.value
    return value


CHANNELS = {"matmul": -1, "convolution": 1, "depthwise_convolution": 1, "quantized_product": -1}
"""Routines that take epilogues → the dimension of their results that biases and scales are indexed by."""
TYPES = ("f32", "bf16", "f16")


def absorb_epilogues(program: LoopProgram) -> LoopProgram:
    """Move the elementwise operations of loops over a call's result into the call; a loop left empty is removed."""
    if not any(isinstance(step, LibraryCall) and step.routine in CHANNELS for step in program.steps):
        return program
    readers = reader_counts(program)
    names = {buffer.name for buffer in (*program.inputs, *program.outputs, *program.temporaries)}
    steps: list[Step] = []
    calls: dict[Buffer, LibraryCall] = {}
    for step in program.steps:
        rest = step
        for buffer in [each for each in step.read if each in calls] if isinstance(step, Kernel) else ():
            absorbed = _absorb(calls[buffer], rest, names) if isinstance(rest, Kernel) and buffer in calls else None
            if absorbed is not None:
                steps.remove(calls.pop(buffer))
                *before, rest = absorbed
                steps += before
                for taken in (each for made in before for each in read_by(made)):
                    # Its result has another reader now, which comes before the rest of the loop.
                    calls.pop(taken, None)
        if isinstance(rest, LibraryCall) and rest.routine in CHANNELS and _may_grow(rest, readers):
            calls[rest.outputs[0].buffer] = rest
        steps.append(rest)
    return with_steps(program, steps)


def _may_grow(call: LibraryCall, readers: Counter[Buffer]) -> bool:
    (result,) = call.outputs
    return result.dtype in TYPES and readers[result.buffer] == 1 and _is_whole(result)


def _is_whole(view: View) -> bool:
    """Whether a view is its whole buffer; for a single element, any stride will do."""
    if view.shape != view.buffer.shape or view.offset != constant(0):
        return False
    dims = zip(view.shape, view.strides, view.buffer.strides, strict=True)
    return all(mine == other for size, mine, other in dims if size != constant(1))


def _absorb(call: LibraryCall, kernel: Kernel, names: set[str]) -> list[Step] | None:
    """The steps that replace the call and a loop that reads its result; None if they stay as they are."""
    kernel = _reading_once(kernel, call.outputs[0].buffer)
    match = Match.of(call, kernel)
    if match is None:
        return None
    parts = match.absorbable(path_from(match.load, match.definition.value))
    if not parts:
        return None
    reached, value = parts[-1].reached, match.definition.value
    target = match.view_of(match.definition.buffer, match.definition.offset)
    if target is not None and target.dtype != call.outputs[0].dtype:
        # The routine writes the type that it computes in.
        target = None
    if target is not None and (reached is value or (isinstance(value, Cast) and value.value is reached)):
        return match.grown(parts, target, kernel.origins, names)
    # An intermediate result has the type of the final one: it was rounded to it anyway.
    while parts and (reached := _before_widening(parts[-1].reached, match.load.dtype)).dtype != match.load.dtype:
        parts.pop()
    if not parts:
        return None
    return [*match.grown(parts, call.outputs[0], (), names), _starting_at(kernel, reached, match.load)]


def _reading_once(kernel: Kernel, buffer: Buffer) -> Kernel:
    """The loop with its loads of `buffer` shared as one value, if they all load the same element."""
    known: dict[tuple[Index, ...], Load] = {}

    def change(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.buffer == buffer and value.guard is None:
            return known.setdefault(value.indices, value)
        return value

    match kernel.body:
        case (Loop(_, (Store() as store,)) as nest,):
            read = rewrite_statement(store, change, {})
            return kernel if read is store else replace(kernel, body=(replace(nest, body=(read,)),))
    return kernel


def _starting_at(kernel: Kernel, reached: Scalar, load: Load) -> Kernel:
    """The loop with `reached` loaded from memory instead of computed."""
    (nest,) = kernel.body
    (store,) = nest.body if isinstance(nest, Loop) else (nest,)
    assert isinstance(store, Store)
    # `reached` itself is replaced, so that everything below it is dropped.
    memo: dict[int, Scalar] = {id(reached): load}
    store = rewrite_statement(store, lambda value: value, memo)
    return replace(kernel, body=(replace(nest, body=(store,)) if isinstance(nest, Loop) else store,))


@dataclass(frozen=True)
class Axis:
    """A dimension of a call's result in terms of a loop: its variables, innermost first, and the step of each."""

    parts: tuple[tuple[Variable, Index], ...]

    def stride_of(self, offset: Index) -> Index | None:
        """The stride of this dimension in a buffer that is read at `offset`; None if it is not constant."""
        stride = constant(0)
        for number, (variable, step) in enumerate(self.parts):
            moved = coefficient_of(offset, variable)
            if moved is None or (number and moved != stride * step):
                return None
            stride = moved if number == 0 else stride
        return stride


def axes_of(load: Load, variables: Sequence[Variable]) -> tuple[Axis, ...] | None:
    """How a loop over `variables` traverses the dimensions of what it loads, if it reads every element once.

    None for a part of the elements, e.g. a crop: the call would still write, and read operands for, all of them.
    """
    left, axes = set(variables), list[Axis]()
    for index, size in zip(load.indices, load.buffer.shape, strict=True):
        mine = [(each, step) for each in variables if (step := coefficient_of(index, each)) not in (None, constant(0))]
        ordered, expected = list[tuple[Variable, Index]](), constant(1)
        while mine:
            found = next((pair for pair in mine if pair[1] == expected), None)
            if found is None or found[0] not in left:
                return None
            mine.remove(found)
            left.remove(found[0])
            ordered.append((found[0], expected))
            expected = expected * found[0].extent
        rebuilt = constant(0)
        for variable, step in ordered:
            rebuilt = rebuilt + atom(variable) * step
        if rebuilt != index or expected != size:
            return None
        axes.append(Axis(tuple(ordered)))
    return None if left else tuple(axes)


@dataclass(frozen=True)
class Match:
    """A call, and the definition that reads its result once, at `load`."""

    call: LibraryCall
    definition: Definition
    load: Load
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, call: LibraryCall, kernel: Kernel) -> Match | None:
        definition, result = definition_of(kernel), call.outputs[0].buffer
        if definition is None:
            return None
        loads = [each for each in walk(definition.value) if isinstance(each, Load) and each.buffer == result]
        if len(loads) != 1 or loads[0].guard is not None:
            return None
        axes = axes_of(loads[0], [each for each in definition.variables if each is not None])
        return None if axes is None else cls(call, definition, loads[0], axes)

    @property
    def channel_axis(self) -> Axis:
        return self.axes[CHANNELS[self.call.routine]]

    def view_of(self, buffer: Buffer, offset: Index) -> View | None:
        """`buffer` viewed in the shape of the call's result, as the loop traverses it from `offset`."""
        strides = [axis.stride_of(offset) for axis in self.axes]
        known = tuple(stride for stride in strides if stride is not None)
        if len(known) != len(strides) or offset.computed:
            return None
        bindings: dict[Atom, Index] = {variable: constant(0) for axis in self.axes for variable, _ in axis.parts}
        return View(buffer, self.load.buffer.shape, known, substitute(offset, bindings))

    def absorbable(self, path: list[Part]) -> list[Part]:
        """The prefix of the path whose operands the routine can take."""
        for number, part in enumerate(path):
            if not self.is_taken(part.operand):
                return path[:number]
        return path

    def is_taken(self, operand: Scalar | None) -> bool:
        return operand is None or self.is_of_channel(operand) or self.residual(operand) is not None

    def is_of_channel(self, value: Scalar) -> bool:
        """Whether a value depends only on the channel."""
        if len(self.channel_axis.parts) > 1 or value.dtype != "f32":
            return False
        others = [each for axis in self.axes if axis is not self.channel_axis for each, _ in axis.parts]
        offsets = [each.buffer.offset(each.indices) for each in walk(value) if isinstance(each, Load)]
        offsets += [each.index for each in walk(value) if isinstance(each, IndexValue)]
        return not any(
            offset.computed or any(coefficient_of(offset, each) != constant(0) for each in others) for offset in offsets
        )

    def residual(self, value: Scalar) -> View | None:
        """An operand with the layout of the result."""
        load = _loaded(value)
        if load is None or load.dtype != self.load.dtype:
            return None
        view, result = self.view_of(load.buffer, load.buffer.offset(load.indices)), self.load.buffer
        if view is None:
            return None
        pairs = zip(view.strides, result.strides, self.axes, strict=True)
        return view if all(mine == other for mine, other, axis in pairs if axis.parts) else None

    def grown(self, parts: list[Part], target: View, origins: tuple[str, ...], names: set[str]) -> list[Step]:
        """The call with this epilogue, after the small loops that compute scales and shifts."""
        writer = EpilogueWriter(self, names)
        for part in parts:
            writer.add(part)
        writer.flush()
        call = replace(
            self.call,
            inputs=(*self.call.inputs, *writer.operands),
            outputs=(target,),
            origins=tuple(dict.fromkeys((*self.call.origins, *origins))),
            epilogue=(*self.call.epilogue, *writer.finishes),
        )
        return [*writer.kernels, call]


def _before_widening(value: Scalar, dtype: str) -> Scalar:
    while value.dtype != dtype and isinstance(value, Named | Cast):
        value = value.value
    return value


def _loaded(value: Scalar) -> Load | None:
    """The load that a value is, up to widening: routines widen 16-bit floats themselves."""
    value = strip_names(value)
    if isinstance(value, Cast) and value.dtype == "f32" and value.value.dtype in TYPES:
        value = strip_names(value.value)
    return value if isinstance(value, Load) and value.guard is None else None


class EpilogueWriter:
    """Collects the operations of an epilogue; per-channel ones are combined into one scale and one shift."""

    def __init__(self, match: Match, names: set[str]):
        self.match, self.names = match, names
        self.finishes: list[Finish] = []
        self.operands: list[View] = []
        self.kernels: list[Kernel] = []
        self.scale: Scalar | None = None
        self.shift: Scalar | None = None

    def add(self, part: Part) -> None:
        if part.operand is None:
            self.flush()
            self.finishes.append(Finish(part.operation))
        elif self.match.is_of_channel(part.operand):
            self.add_of_channel(part.operation, part.operand)
        else:
            self.flush()
            view = self.match.residual(part.operand)
            assert view is not None
            self.finish(part.operation, view)

    def add_of_channel(self, operation: str, operand: Scalar) -> None:
        if operation == "add":
            self.shift = operand if self.shift is None else self.shift + operand
        else:
            self.scale = operand if self.scale is None else self.scale * operand
            self.shift = None if self.shift is None else self.shift * operand

    def flush(self) -> None:
        if self.scale is not None:
            self.finish("mul", self.operand("scale", self.scale))
        if self.shift is not None:
            self.finish("add", self.operand("shift", self.shift))
        self.scale = self.shift = None

    def finish(self, operation: str, view: View) -> None:
        self.finishes.append(Finish(operation, len(self.match.call.inputs) + len(self.operands)))
        self.operands.append(view)

    def operand(self, kind: str, value: Scalar) -> View:
        """A per-channel value as an operand: a view of what it loads, or of a buffer that a small loop fills."""
        load = _loaded(value)
        if load is not None:
            view = self.match.view_of(load.buffer, load.buffer.offset(load.indices))
            if view is not None and view.strides[CHANNELS[self.match.call.routine]] == constant(1):
                return view
        return self.computed(kind, value)

    def computed(self, kind: str, value: Scalar) -> View:
        name, number = f"{self.match.call.name}_{kind}", 0
        while name in self.names:
            number += 1
            name = f"{self.match.call.name}_{kind}_{number}"
        self.names.add(name)
        variables = tuple(variable for variable, _ in self.match.channel_axis.parts)
        # With stride 0, the other variables do not matter.
        value = substitute_scalar(
            value, {each: constant(0) for each in self.match.definition.variables if each and each not in variables}
        )
        shape = (product(variable.extent for variable in variables),)
        buffer = Buffer(name, value.dtype, shape, contiguous_strides(shape))
        indices = tuple(map(atom, variables)) or (constant(0),)
        store = Store(buffer, indices, value)
        self.kernels.append(
            Kernel(name, (Loop(variables, (store,)),) if variables else (store,), self.match.call.origins)
        )
        view = self.match.view_of(buffer, buffer.offset(indices))
        assert view is not None
        return view
