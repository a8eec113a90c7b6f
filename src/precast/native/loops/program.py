"""Loop nests, calls of library routines, and the program that runs them in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from precast.native.loops.buffers import Buffer, View
from precast.native.loops.index import Index, Variable
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Load,
    Scalar,
    computed_values,
    rewrite,
    rewrite_indices,
    walk,
)


class _Computing:
    """A statement that computes values."""

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """All loads, operands before users."""
        return tuple(value for value in walk(*self._values()) if isinstance(value, Load))

    @cached_property
    def accumulated(self) -> tuple[Accumulator, ...]:
        """The accumulators whose results it uses."""
        return tuple(value.accumulator for value in walk(*self._values()) if isinstance(value, Accumulated))

    def _values(self) -> tuple[Scalar, ...]:
        assert isinstance(self, Store | Accumulate), "these are the statements that compute"
        return statement_values(self)


@dataclass(frozen=True, eq=False)
class Store(_Computing):
    """Write one element; nothing where `guard` is false. With `combine` (sum, prod, max, min), reduce into the element.

    Iterations may write one element only through computed subscripts; they then take effect in iteration order.
    """

    buffer: Buffer
    indices: tuple[Index, ...]
    value: Scalar
    guard: Scalar | None = None
    combine: str | None = None

    @cached_property
    def is_plain(self) -> bool:
        """Whether each iteration unconditionally writes an element of its own."""
        return self.guard is None and self.combine is None and not any(index.computed for index in self.indices)

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self,)


@dataclass(frozen=True, eq=False)
class Accumulate(_Computing):
    """Combine one more value into an accumulator of an enclosing loop."""

    accumulator: Accumulator
    value: Scalar

    @property
    def stores(self) -> tuple[Store, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Loop:
    """Run `body` for all values of `variables`, in any order: iterations interact only through accumulators.

    `accumulators` start at their neutral value and hold their result after the loop.
    """

    variables: tuple[Variable, ...]
    body: tuple[Statement, ...]
    accumulators: tuple[Accumulator, ...] = ()

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """All loads inside, each once."""
        return tuple(dict.fromkeys(load for statement in self.body for load in statement.loads))

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """All stores inside."""
        return tuple(store for statement in self.body for store in statement.stores)


Statement = Store | Accumulate | Loop


@dataclass(frozen=True, eq=False)
class Kernel:
    """One loop nest. `origins` names the graph nodes it computes, as ``name: op``, for display."""

    name: str
    body: tuple[Statement, ...]
    origins: tuple[str, ...] = ()

    @cached_property
    def written(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(store.buffer for store in stores_of(self.body)))

    @cached_property
    def read(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(load.buffer for load in loads_of(self.body)))


@dataclass(frozen=True, eq=False)
class KernelGroup:
    """Horizontal fusion: kernels that do the same to different tensors, of any sizes, and run as one.

    Their patterns (`canonical.pattern_of`) are equal, and none accesses what another writes.
    """

    name: str
    members: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        writers = Counter(buffer for each in self.members for buffer in each.written)
        touching = Counter(buffer for each in self.members for buffer in {*each.read, *each.written})
        assert all(touching[buffer] == 1 for buffer in writers), f"members of {self.name} depend on each other"

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(origin for each in self.members for origin in each.origins))

    @cached_property
    def written(self) -> tuple[Buffer, ...]:
        return tuple(buffer for each in self.members for buffer in each.written)

    @cached_property
    def read(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(buffer for each in self.members for buffer in each.read))


FINISHES = {
    "add": 2, "mul": 2, "relu": 1, "relu6": 1, "gelu": 1, "gelu_doubled": 1, "gelu_tanh": 1, "silu": 1, "tanh": 1,
    "sigmoid": 1, "hardswish": 1,
}  # fmt: skip
"""Operations of prologues and epilogues → their number of operands."""


@dataclass(frozen=True)
class Finish:
    """An operation of `FINISHES` that a routine applies to each element of its result before writing it (epilogue).

    A binary operation takes its second operand from input number `operand`, which has the result's shape, with stride 0
    where it is broadcast. In a prologue, the same is applied to the routine's first input as it is read.
    """

    operation: str
    operand: int | None = None


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """A call of a routine of the support library, e.g. ``matmul``.

    Inputs read only by the `prologue` or the `epilogue` come after those of the routine.
    """

    name: str
    routine: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    origins: tuple[str, ...] = ()
    numbers: tuple[Index, ...] = ()
    epilogue: tuple[Finish, ...] = ()
    prologue: tuple[Finish, ...] = ()

    @property
    def own_inputs(self) -> tuple[View, ...]:
        """The routine's inputs, without those of the prologue and the epilogue."""
        others = sum(each.operand is not None for each in (*self.prologue, *self.epilogue))
        return self.inputs[: len(self.inputs) - others]


@dataclass(frozen=True, eq=False)
class Check:
    """Fail if the bool `failed` is true, with `error` (index or value) and `message`.

    `shown` are integers that replace ``{0}``, ``{1}``, … in the message.
    """

    name: str
    failed: Buffer
    error: str
    message: str
    origins: tuple[str, ...] = ()
    shown: Buffer | None = None


@dataclass(frozen=True)
class Slot:
    """A placeholder, among a fallback's arguments, for its n-th input."""

    position: int


Argument = Slot | Index | None | bool | int | float | str | tuple["Argument", ...]


@dataclass(frozen=True, eq=False)
class FallbackStep:
    """An eager fallback: the program's owner is called back with the inputs and writes the outputs."""

    name: str
    operator: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    arguments: tuple[Argument, ...]
    keyword_arguments: tuple[tuple[str, Argument], ...] = ()
    origins: tuple[str, ...] = ()
    at: str | None = None
    sees_layouts: bool = False
    """Whether its numbers may depend on the layouts of its inputs, which then must be eager's."""


@dataclass(frozen=True, eq=False)
class Part:
    """A program that a step of another runs. It knows the sizes of the enclosing programs, and those it reads itself.

    `plan` says where its temporaries are in the step's scratch memory; None until memory is planned.
    """

    program: LoopProgram
    plan: Plan | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """Run one of the `parts`: the second if the bool `choice` is true, otherwise the first, or the only one.

    Each part takes the inputs and writes the outputs. `scratch` has room for the temporaries of every part.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    choice: Buffer | None = None
    scratch: Buffer | None = None
    origins: tuple[str, ...] = ()
    at: str | None = None


@dataclass(frozen=True, eq=False)
class Repeat:
    """Run the body `count` times, or while the condition holds: ``parts`` are the body and, if any, the condition.

    The body takes the `carried` values, then a row of each of the `scanned` tensors, then all other inputs; it writes
    the next carried values, which are the first outputs, and a row of each other output. The condition takes the
    carried values and all other inputs, and writes one bool. The next values are double-buffered in the `spares`.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    carried: int
    scanned: int = 0
    count: Index | None = None
    spares: tuple[Buffer, ...] = ()
    scratch: Buffer | None = None
    origins: tuple[str, ...] = ()

    @property
    def body(self) -> Part:
        return self.parts[0]

    def row_of(self, buffer: Buffer, name: str) -> Buffer:
        """The view that one iteration has of a tensor that is read or written row by row."""
        return Buffer(name, buffer.dtype, buffer.shape[1:], buffer.strides[1:])


Step = Kernel | KernelGroup | LibraryCall | FallbackStep | Check | Run | Repeat
Fallible = Check | FallbackStep | Run | Repeat
"""Steps that may raise an error."""


@dataclass(frozen=True)
class SizeSource:
    """Where a dynamic size is read at the call: a dimension of input number `position`, or, with None, its value.

    The number read there is `factor` times the size, plus `offset`. `example` is the traced value of the size.
    A data-dependent size, which a part reads, is at most `bound`: buffers have room for that.
    """

    symbol: str
    position: int
    dimension: int | None
    factor: int = 1
    offset: int = 0
    example: int | None = field(default=None, compare=False, repr=False)
    bound: Index | None = None


@dataclass(frozen=True)
class InputUpdate:
    """A result that is the new value of an input, and may be written there; `after` names steps that may fail.

    These are the steps that the user's program runs before it changes the input.
    """

    result: Buffer
    input: Buffer
    after: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """Steps in order. Every buffer except inputs is written before it is read; outputs are never inputs.

    `results` is what the graph returns; its buffers are the outputs, its other members need no computation. `updates`
    says which results may be written into inputs; one that is written there is no longer a result.
    """

    name: str
    inputs: tuple[Buffer, ...]
    results: tuple[Buffer | Index | None, ...]
    sizes: tuple[SizeSource, ...]
    steps: tuple[Step, ...]
    updates: tuple[InputUpdate, ...] = ()

    @cached_property
    def written_inputs(self) -> frozenset[Buffer]:
        """The inputs that hold new values after the program has run."""
        return frozenset(self.inputs).intersection(buffer for step in self.steps for buffer in written_by(step))

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(result for result in self.results if isinstance(result, Buffer))

    @property
    def routines(self) -> frozenset[str]:
        """The names of routines that are called."""
        return frozenset(step.routine for step in all_steps(self) if isinstance(step, LibraryCall))

    @property
    def fallbacks(self) -> tuple[FallbackStep, ...]:
        """The steps that call back into torch, in order."""
        return tuple(step for step in all_steps(self) if isinstance(step, FallbackStep))

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """The buffers in the arena, in the order of first use."""
        known = {*self.inputs, *self.outputs}
        found = dict.fromkeys(buffer for step in self.steps for buffer in (*written_by(step), *read_by(step)))
        return tuple(buffer for buffer in found if buffer not in known)


@dataclass(frozen=True)
class Plan:
    """Where temporaries are in the arena: offsets in bytes, and its size; expressions of the program's sizes."""

    offsets: dict[Buffer, Index]
    arena_size: Index


def with_steps(program: LoopProgram, steps: Sequence[Step]) -> LoopProgram:
    """The program with other steps; the same object if they are the same."""
    same = len(steps) == len(program.steps) and all(a is b for a, b in zip(steps, program.steps, strict=True))
    return program if same else replace(program, steps=tuple(steps))


def parts_of(step: Step) -> tuple[Part, ...]:
    """The nested programs of a step."""
    return step.parts if isinstance(step, Run | Repeat) else ()


def all_steps(program: LoopProgram) -> Iterator[Step]:
    """All steps at any depth, in textual order: a step before the steps of its parts."""
    for step in program.steps:
        yield step
        for part in parts_of(step):
            yield from all_steps(part.program)


def found_sizes(program: LoopProgram) -> tuple[SizeSource, ...]:
    """The data-dependent sizes known to everything that follows, since parts that always run read them."""
    parts = [step.parts[0] for step in program.steps if isinstance(step, Run) and step.choice is None]
    return tuple(source for part in parts for source in (*part.program.sizes, *found_sizes(part.program)))


def statements_of(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements at any depth, a loop before its body."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements_of(statement.body)


def values_of(body: tuple[Statement, ...]) -> tuple[Scalar, ...]:
    """All stored and accumulated values, and their subscripts and guards, in order."""
    return tuple(value for statement in statements_of(body) if not isinstance(statement, Loop)
                 for value in statement_values(statement))  # fmt: skip


def statement_values(statement: Store | Accumulate) -> tuple[Scalar, ...]:
    """Computed subscripts, the guard, and, last, the value."""
    if isinstance(statement, Accumulate):
        return (statement.value,)
    guard = () if statement.guard is None else (statement.guard,)
    return (*computed_values(statement.indices), *guard, statement.value)


def rewrite_statement(
    statement: Store | Accumulate, change: Callable[[Scalar], Scalar], memo: dict[int, Scalar]
) -> Store | Accumulate:
    """Rebuild every scalar of a statement, as `scalars.rewrite` does; the same object if nothing changed."""
    old = statement_values(statement)
    new = [rewrite(value, change, memo) for value in old]
    if all(before is after for before, after in zip(old, new, strict=True)):
        return statement
    if isinstance(statement, Accumulate):
        return replace(statement, value=new[-1])
    guard = None if statement.guard is None else new[-2]
    indices = rewrite_indices(statement.indices, change, memo)
    return replace(statement, indices=indices, guard=guard, value=new[-1])


def loads_of(body: tuple[Statement, ...]) -> Iterator[Load]:
    """All loads, each once, in the order of `walk`."""
    return iter(dict.fromkeys(load for statement in body for load in statement.loads))


def accumulated_in(body: tuple[Statement, ...]) -> set[Accumulator]:
    """The accumulators whose results are used."""
    computing = (statement for statement in statements_of(body) if not isinstance(statement, Loop))
    return {each for statement in computing for each in statement.accumulated}


def declared_in(body: tuple[Statement, ...]) -> set[Accumulator]:
    """The accumulators of all loops."""
    return {each for loop in statements_of(body) if isinstance(loop, Loop) for each in loop.accumulators}


def stores_of(body: tuple[Statement, ...]) -> tuple[Store, ...]:
    return tuple(store for statement in body for store in statement.stores)


def variables_of(body: tuple[Statement, ...]) -> tuple[Variable, ...]:
    loops = (statement for statement in statements_of(body) if isinstance(statement, Loop))
    return tuple(variable for loop in loops for variable in loop.variables)


def written_by(step: Step) -> tuple[Buffer, ...]:
    match step:
        case Kernel() | KernelGroup():
            return step.written
        case LibraryCall():
            return tuple(view.buffer for view in step.outputs)
        case FallbackStep():
            return step.outputs
        case Run() | Repeat():
            spares = step.spares if isinstance(step, Repeat) else ()
            return (*step.outputs, *spares, *(() if step.scratch is None else (step.scratch,)))
        case Check():
            return ()


def read_by(step: Step) -> tuple[Buffer, ...]:
    match step:
        case Kernel() | KernelGroup():
            return step.read
        case LibraryCall():
            return tuple(view.buffer for view in step.inputs)
        case FallbackStep() | Repeat():
            return step.inputs
        case Run():
            return step.inputs if step.choice is None else (*step.inputs, step.choice)
        case Check():
            return (step.failed,) if step.shown is None else (step.failed, step.shown)


def reader_counts(program: LoopProgram) -> Counter[Buffer]:
    """How many steps read each buffer; being a result counts as one more."""
    readers = Counter(buffer for step in program.steps for buffer in read_by(step))
    readers.update(program.outputs)
    return readers
