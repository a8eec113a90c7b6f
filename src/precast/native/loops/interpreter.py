"""Runs loop programs on torch tensors, whole arrays at a time: slow and simple, the reference for every transform.

Each loop variable becomes one axis of a broadcast array; a load is a gather at computed offsets, an accumulator a
reduction over the axes of its loop.

Random bits are Philox 4x32-10 on whole arrays: the same bits as ``random_bits`` of the generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Computed, Index, Symbol, Variable, evaluate
from precast.native.loops.program import (
    Accumulate,
    Check,
    FallbackStep,
    Kernel,
    KernelGroup,
    LibraryCall,
    Loop,
    LoopProgram,
    Part,
    Repeat,
    Run,
    SizeSource,
    Statement,
    Step,
    Store,
    variables_of,
)
from precast.native.loops.routines import finish, run_routine
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    walk,
)

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def random_bits(seed: torch.Tensor, number: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """64 random bits for each element of the three arrays, which are broadcast together."""
    (a, b), (c, d), (first_key, second_key) = map(_words, (place, number, seed))
    for _ in range(_ROUNDS):
        # A product of two 32-bit words wraps in 64 signed bits, and its halves are still right.
        (low_left, high_left), (low_right, high_right) = _words(a * _MULTIPLIERS[0]), _words(c * _MULTIPLIERS[1])
        a, b, c, d = high_right ^ b ^ first_key, low_right, high_left ^ d ^ second_key, low_left
        first_key, second_key = (first_key + _KEY_STEPS[0]) & _WORD, (second_key + _KEY_STEPS[1]) & _WORD
    return a | (b << 32)


def _words(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high 32 bits."""
    return value & _WORD, (value >> 32) & _WORD


_COMBINATIONS = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}

Tensors = tuple[torch.Tensor, ...]
Fallback = Callable[[FallbackStep, Tensors], Tensors]


def _by_any(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A division that does not fail: whole arrays are computed, including operands of loops with no iterations."""

    def divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a, b if b.is_floating_point() else torch.where(b == 0, 1, b))

    return divided


_SPECIAL: dict[str, Callable[..., torch.Tensor]] = {
    "div_floor": _by_any(partial(torch.div, rounding_mode="floor")),
    "div_trunc": _by_any(partial(torch.div, rounding_mode="trunc")),
    "fmod": _by_any(torch.fmod),
    "remainder": _by_any(torch.remainder),
    "is_inf": torch.isinf,
    "is_nan": torch.isnan,
    "random_bits": random_bits,
    "trigamma": partial(torch.polygamma, 1),
}
_REDUCERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda values: values.sum(-1, dtype=values.dtype),
    "prod": lambda values: values.prod(-1, dtype=values.dtype),
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "any": lambda values: values.any(-1),
    "all": lambda values: values.all(-1),
}


def interpret(program: LoopProgram, inputs: Sequence[torch.Tensor], fallback: Fallback | None = None) -> Tensors:
    """Run `program`; outputs have the strides of their buffers, and inputs with updates are modified in place."""
    run = _Run(sizes_of(program, inputs), fallback)
    for buffer, tensor in zip(program.inputs, inputs, strict=True):
        run.memory[buffer] = run.allocate(buffer)
        _distinct(run.window(buffer)).copy_(_distinct(tensor, like=run.window(buffer)))
    for step in program.steps:
        run.step(step)
    for buffer, tensor in zip(program.inputs, inputs, strict=True):
        if buffer in program.written_inputs:
            tensor.copy_(run.window(buffer))
    return tuple(run.window(buffer) for buffer in program.outputs)


def interpret_kernel(
    kernel: Kernel | KernelGroup,
    sizes: Mapping[str, int],
    addresses: Mapping[Buffer, int],
    memory: Callable[[str, int, int], torch.Tensor],
) -> None:
    """Run one kernel over memory at `addresses`; `memory` makes a tensor of a dtype, address and length."""
    run = _Run(sizes, None)
    for buffer, address in addresses.items():
        run.memory[buffer] = memory(buffer.dtype, run.length(buffer), address)
    run.step(kernel)


def sizes_of(program: LoopProgram, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The values of the program's sizes for these inputs."""
    return {source.symbol: _size(source, inputs[source.position]) for source in program.sizes}


def _distinct(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """The part of a tensor that has each element once, where broadcasting `like` repeats them."""
    for dimension, stride in enumerate((tensor if like is None else like).stride()):
        tensor = tensor.narrow(dimension, 0, min(tensor.shape[dimension], 1)) if stride == 0 else tensor
    return tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in memory order."""
    length = 1 + sum(max(size - 1, 0) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((length,), (1,)).clone()


def _beginning(kind: str, dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def _size(source: SizeSource, tensor: torch.Tensor) -> int:
    read = int(tensor) if source.dimension is None else tensor.shape[source.dimension]
    return (read - source.offset) // source.factor


class _Run:
    def __init__(self, sizes: Mapping[str, int], fallback: Fallback | None):
        self.sizes, self.fallback = sizes, fallback
        self.memory: dict[Buffer, torch.Tensor] = {}
        self.grid: dict[Variable, torch.Tensor] = {}
        self.results: dict[Accumulator, torch.Tensor] = {}

    def number(self, value: Index) -> int:
        return evaluate(value, lambda atom: self.sizes[atom.name])

    def positions(self, value: Index) -> torch.Tensor:
        def resolve(atom: Symbol | Variable | Computed) -> int:
            # Arrays follow the same arithmetic as integers; `evaluate` only adds, multiplies and divides.
            if isinstance(atom, Computed):
                return self.value(atom.value)  # type: ignore[return-value]
            return self.sizes[atom.name] if isinstance(atom, Symbol) else self.grid[atom]  # type: ignore[return-value]

        return torch.as_tensor(evaluate(value, resolve))

    def length(self, buffer: Buffer) -> int:
        """The number of elements from the first to the last."""
        extents = zip(buffer.shape, buffer.strides, strict=True)
        return 1 + sum(max(self.number(size) - 1, 0) * self.number(stride) for size, stride in extents)

    def allocate(self, buffer: Buffer) -> torch.Tensor:
        return torch.zeros(self.length(buffer), dtype=TORCH_DTYPES[buffer.dtype])

    def storage(self, buffer: Buffer) -> torch.Tensor:
        if buffer not in self.memory:
            self.memory[buffer] = self.allocate(buffer)
        return self.memory[buffer]

    def window(self, view: Buffer | View) -> torch.Tensor:
        buffer, offset = (view, 0) if isinstance(view, Buffer) else (view.buffer, self.number(view.offset))
        shape, strides = [self.number(size) for size in view.shape], [self.number(stride) for stride in view.strides]
        # With no elements, the offset of the first may be negative.
        return self.storage(buffer).as_strided(shape, strides, offset if 0 not in shape else 0)

    def read(self, view: View) -> torch.Tensor:
        """The elements of a view, including reversed ones, which torch cannot express as views."""
        backwards = [axis for axis, stride in enumerate(view.strides) if self.number(stride) < 0]
        if not backwards:
            return self.window(view)
        first, strides = view.offset, list(view.strides)
        for axis in backwards:
            first += (view.shape[axis] - 1) * strides[axis]
            strides[axis] *= -1
        return self.window(replace(view, offset=first, strides=tuple(strides))).flip(backwards)

    def step(self, step: Step) -> None:
        match step:
            case Kernel():
                self.enter_kernel(step)
            case KernelGroup():
                for member in step.members:
                    self.enter_kernel(member)
            case LibraryCall():
                numbers = [self.number(number) for number in step.numbers]
                inputs, outputs = list(map(self.read, step.inputs)), list(map(self.window, step.outputs))
                if not any(output.numel() for output in outputs):
                    return
                first, *others = inputs[: len(step.own_inputs)]
                own = [finish(first, step.prologue, inputs), *others]
                results = run_routine(step.routine, own, [each.shape for each in outputs], numbers)
                for output, result in zip(outputs, results, strict=True):
                    output.copy_(finish(result, step.epilogue, inputs))
            case Check():
                if self.window(step.failed).item():
                    shown = None if step.shown is None else self.window(step.shown).tolist()
                    message = step.message if shown is None else step.message.format(*shown)
                    raise (IndexError if step.error == "index" else RuntimeError)(message)
            case Run():
                number = 0 if step.choice is None else int(self.window(step.choice).item())
                self.run_part(step.parts[number], [self.storage(each) for each in step.inputs], step.outputs)
            case Repeat():
                self.repeat(step)
            case FallbackStep():
                assert self.fallback is not None, f"{step.name} falls back to {step.operator} without a callback"
                results = self.fallback(step, tuple(map(self.window, step.inputs)))
                for buffer, result in zip(step.outputs, results, strict=True):
                    self.window(buffer).copy_(result)

    def run_part(self, part: Part, inputs: Sequence[torch.Tensor], outputs: Sequence[Buffer]) -> None:
        """Run a part over the memory of its inputs, and copy its results to the outputs."""
        results = self.results_of(part, inputs)
        for buffer, result in zip(outputs, results, strict=True):
            self.window(buffer).copy_(result)

    def results_of(self, part: Part, inputs: Sequence[torch.Tensor]) -> Tensors:
        program = part.program
        inner = _Run(self.sizes, self.fallback)
        inner.memory = dict(zip(program.inputs, inputs, strict=True))
        own = {source.symbol: _size(source, inputs[source.position][0]) for source in program.sizes}
        for source in program.sizes:
            if source.bound is not None and not 0 <= own[source.symbol] <= self.number(source.bound):
                raise RuntimeError(f"the size {source.symbol} is {own[source.symbol]}, above {source.bound}")
        inner.sizes = {**self.sizes, **own}
        self.sizes = inner.sizes
        for step in program.steps:
            inner.step(step)
        self.sizes = inner.sizes
        return tuple(inner.window(buffer) for buffer in program.outputs)

    def repeat(self, step: Repeat) -> None:
        scanned, others = step.inputs[step.carried :][: step.scanned], step.inputs[step.carried + step.scanned :]
        carried = [self.storage(each).clone() for each in step.inputs[: step.carried]]
        number, further = 0, [self.storage(each) for each in others]
        while self._goes_on(step, number, [*carried, *further]):
            # Views count from the start of the memory: a row has memory of its own.
            rows = [self.storage(each)[number * self.number(each.strides[0]) :].clone() for each in scanned]
            results = self.results_of(step.body, [*carried, *rows, *further])
            for buffer, result in zip(step.outputs[step.carried :], results[step.carried :], strict=True):
                self.window(buffer)[number].copy_(result)
            carried = [_flat(result) for result in results[: step.carried]]
            number += 1
        for buffer, values in zip(step.outputs[: step.carried], carried, strict=True):
            self.storage(buffer)[: len(values)] = values

    def _goes_on(self, step: Repeat, number: int, inputs: Sequence[torch.Tensor]) -> bool:
        if step.count is not None:
            return number < self.number(step.count)
        (holds,) = self.results_of(step.parts[1], inputs)
        return bool(holds.item())

    def enter_kernel(self, kernel: Kernel) -> None:
        variables = tuple(dict.fromkeys(variables_of(kernel.body)))
        self.grid = {
            variable: torch.arange(self.number(variable.extent)).reshape(
                [-1 if other == axis else 1 for other in range(len(variables))]
            )
            for axis, variable in enumerate(variables)
        }
        self.run_body(kernel.body, {}, ())

    def run_body(
        self, body: tuple[Statement, ...], declared: dict[Accumulator, int], active: tuple[Variable, ...]
    ) -> None:
        for statement in body:
            match statement:
                case Loop(variables, inner, accumulators):
                    depth = len(active)
                    self.run_body(inner, declared | dict.fromkeys(accumulators, depth), active + variables)
                case Store():
                    self.store(statement, active)
                case Accumulate(accumulator, value):
                    reduced = active[declared[accumulator] :]
                    self.results[accumulator] = self.reduce(accumulator, self.values_in(value, active), reduced)

    def store(self, store: Store, active: tuple[Variable, ...]) -> None:
        if self.never_runs(active):
            return
        offsets = self.spread(self.positions(store.buffer.offset(store.indices)), active).flatten()
        values = self.values_in(store.value, active).flatten()
        if store.guard is not None:
            is_written = self.values_in(store.guard, active).flatten()
            offsets, values = offsets[is_written], values[is_written]
        target = self.storage(store.buffer)
        if store.combine is None:
            target[offsets] = values
        else:
            target.scatter_reduce_(0, offsets, values.to(target.dtype), _COMBINATIONS[store.combine])

    def spread(self, values: torch.Tensor, active: tuple[Variable, ...]) -> torch.Tensor:
        """Expand `values` to the full extent along the axes of `active`."""
        return values.broadcast_to(torch.broadcast_shapes(values.shape, *(self.grid[each].shape for each in active)))

    def never_runs(self, active: tuple[Variable, ...]) -> bool:
        return not all(self.grid[each].numel() for each in active)

    def values_in(self, scalar: Scalar, active: tuple[Variable, ...]) -> torch.Tensor:
        """The value in every iteration; without iterations nothing is loaded, not even loop-invariant values."""
        if self.never_runs(active):
            return self.spread(torch.empty((), dtype=TORCH_DTYPES[scalar.dtype]), active)
        return self.spread(self.value(scalar), active)

    def reduce(self, accumulator: Accumulator, values: torch.Tensor, over: tuple[Variable, ...]) -> torch.Tensor:
        axes = [list(self.grid).index(variable) for variable in over]
        kept = [axis for axis in range(values.ndim) if axis not in axes]
        count = math.prod(values.shape[axis] for axis in axes)
        rows = values.permute([*kept, *axes]).reshape([*(values.shape[axis] for axis in kept), count])
        if count == 0 and accumulator.kind in ("max", "min"):
            # Torch has no maximum of an empty tensor; generated code starts with this value.
            rows = rows.new_full((*rows.shape[:-1], 1), _beginning(accumulator.kind, rows.dtype))
        reduced = _REDUCERS[accumulator.kind](rows)
        return reduced.reshape([1 if axis in axes else values.shape[axis] for axis in range(values.ndim)])

    def value(self, root: Scalar) -> torch.Tensor:
        values: dict[int, torch.Tensor] = {}
        for scalar in walk(root):
            values[id(scalar)] = self.compute(scalar, values)
        return values[id(root)]

    def compute(self, scalar: Scalar, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
        match scalar:
            case Load(buffer, indices, guard):
                offsets = self.positions(buffer.offset(indices))
                if guard is None:
                    return self.storage(buffer)[offsets]
                is_read = values[id(guard)]
                offsets, is_read = torch.broadcast_tensors(offsets, is_read)
                loaded = self.storage(buffer)[torch.where(is_read, offsets, 0)]
                return torch.where(is_read, loaded, torch.zeros_like(loaded))
            case Constant(number, dtype):
                return torch.tensor(number, dtype=TORCH_DTYPES[dtype])
            case IndexValue(position, dtype):
                return self.positions(position).to(TORCH_DTYPES[dtype])
            case Apply(operation, arguments, _):
                function = _SPECIAL.get(operation) or getattr(torch, operation, None)
                function = function or getattr(torch.special, operation)
                result = function(*(values[id(argument)] for argument in arguments))
                assert isinstance(result, torch.Tensor)
                return result
            case Cast(inner, dtype):
                return values[id(inner)].to(TORCH_DTYPES[dtype])
            case Named(_, inner):
                return values[id(inner)]
            case Accumulated(accumulator):
                return self.results[accumulator]
