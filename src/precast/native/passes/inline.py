"""Producer-consumer fusion: substitute producers into the loops that read them.

Before::

    for i0 < 8, i1 < 6:  add[i0, i1] = mm[i0, i1] + b[i1]
    for i0 < 8, i1 < 6:  gelu[i0, i1] = f(add[i0, i1])
    t[i0, i1] = x[i1, i0];  mm_1 = matmul(t, gelu)

After::

    for i0 < 8, i1 < 6:  add = mm[i0, i1] + b[i1];  gelu[i0, i1] = f(add)
    mm_1 = matmul(x with strides swapped, gelu)

Views are always inlined. A computation is inlined if it has one reader that reads each element at most once, or if it
is cheap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

from precast.native.loops.buffers import Buffer, View, whole
from precast.native.loops.index import (
    Atom,
    Index,
    Variable,
    atom,
    coefficient_of,
    constant,
    is_non_negative,
    product,
    substitute,
)
from precast.native.loops.program import (
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Statement,
    Step,
    Store,
    loads_of,
    reader_counts,
    rewrite_statement,
    with_steps,
)
from precast.native.loops.rewriting import substitute_scalar
from precast.native.loops.scalars import (
    LIGHT,
    Apply,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    computed_values,
    rewrite,
    walk,
)

CHEAP_OPERATIONS = 2
"""A computation of up to this many operations is recomputed rather than stored."""


@dataclass(frozen=True)
class Definition:
    """``buffer[variables] = value``: a kernel of one store that writes every element exactly once."""

    buffer: Buffer
    variables: tuple[Variable | None, ...]
    value: Scalar
    origins: tuple[str, ...]

    @property
    def offset(self) -> Index:
        """The offset in memory of the element that an iteration writes."""
        return self.buffer.offset(tuple(constant(0) if each is None else atom(each) for each in self.variables))

    def at(self, indices: tuple[Index, ...]) -> Scalar:
        bindings: dict[Atom, Index] = {
            variable: index for variable, index in zip(self.variables, indices, strict=True) if variable is not None
        }
        return substitute_scalar(self.value, bindings)

    @cached_property
    def is_view(self) -> bool:
        value = strip_names(self.value)
        return isinstance(value, Load | Constant | IndexValue) and not _is_computed(value)

    @cached_property
    def is_cheap(self) -> bool:
        parts = list(walk(self.value))
        operations = [part.operation for part in parts if isinstance(part, Apply)]
        loads = sum(isinstance(part, Load) for part in parts)
        is_light = len(operations) <= CHEAP_OPERATIONS and LIGHT.issuperset(operations)
        return is_light and loads <= 1 and not any(map(_is_computed, parts))


def inline_producers(program: LoopProgram, *, reversed_views: bool = True) -> LoopProgram:
    """Substitute definitions into their readers; definitions no longer read are left to `remove_dead`.

    Without `reversed_views`, library calls read no views with negative strides.
    """
    readers = reader_counts(program)
    definitions: dict[Buffer, Definition] = {}
    # Calls read views by strides, without a copy; so the bases of these views stay in memory.
    views: dict[Buffer, Definition] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            view = _view_definition(step, views)
            if view is not None:
                views[view.buffer] = view
            step = _inline_into_kernel(step, definitions, readers)
            definition = definition_of(step)
            if definition is not None:
                definitions[definition.buffer] = definition
        elif isinstance(step, LibraryCall):
            inputs = tuple(_read_by_call(step, view, views, definitions, reversed_views) for view in step.inputs)
            step = step if inputs == step.inputs else replace(step, inputs=inputs)
        steps.append(step)
    return with_steps(program, steps)


def definition_of(kernel: Kernel) -> Definition | None:
    """The definition that a kernel is, if it is one."""
    match kernel.body:
        case (Store(buffer, indices, value) as store,):
            loop_variables: tuple[Variable, ...] = ()
        case (Loop(loop_variables, (Store(buffer, indices, value) as store,), ()),):
            pass
        case _:
            return None
    variables = tuple(_only_variable(index) for index in indices)
    walked = [each for each in variables if each is not None]
    if not store.is_plain or len(walked) != len(loop_variables) or set(walked) != set(loop_variables):
        return None
    if not all(map(_is_walked, indices, buffer.shape)):
        return None
    return Definition(buffer, variables, value, kernel.origins)


def _is_walked(index: Index, size: Index) -> bool:
    """Whether a subscript takes every value below `size`: a part of a dimension does not define the rest."""
    variable = _only_variable(index)
    return (index, size) == (constant(0), constant(1)) if variable is None else variable.extent == size


def _is_computed(value: Scalar) -> bool:
    """Whether this has a computed subscript, which costs more than a load."""
    match value:
        case Load(_, indices, _):
            return bool(computed_values(indices))
        case IndexValue(index, _):
            return bool(index.computed)
    return False


def strip_names(value: Scalar) -> Scalar:
    while isinstance(value, Named):
        value = value.value
    return value


def _only_variable(index: Index) -> Variable | None:
    match index.terms:
        case (((Variable() as variable,), 1),):
            return variable
    return None


def _inline_into_kernel(kernel: Kernel, definitions: dict[Buffer, Definition], readers: Counter[Buffer]) -> Kernel:
    places = defaultdict[Buffer, set[tuple[Index, ...]]](set)
    for load in loads_of(kernel.body):
        if load.buffer in definitions:
            places[load.buffer].add(load.indices)
    if not places:
        return kernel
    origins = list(kernel.origins)
    memo: dict[int, Scalar] = {}
    taken: dict[tuple[Buffer, tuple[Index, ...]], Scalar] = {}

    def visit(body: tuple[Statement, ...], active: tuple[Variable, ...]) -> tuple[Statement, ...]:
        def change(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.buffer not in definitions:
                return value
            definition = definitions[value.buffer]
            if not _pays(definition, readers[value.buffer], len(places[value.buffer]), active):
                return value
            key = value.buffer, value.indices
            if value.guard is not None or key not in taken:
                origins[:0] = [origin for origin in definition.origins if origin not in origins]
                taken[key] = _named(definition, value)
            return taken[key]

        statements: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                inner = visit(statement.body, active + statement.variables)
                statements.append(replace(statement, body=inner))
            else:
                statements.append(rewrite_statement(statement, change, memo))
        return tuple(statements)

    return replace(kernel, body=visit(kernel.body, ()), origins=tuple(origins))


def _named(definition: Definition, load: Load) -> Scalar:
    value = definition.at(load.indices)
    if load.guard is not None:
        value = _guarded(value, load.guard)
    return value if definition.is_view else Named(definition.buffer.name, value)


def _guarded(value: Scalar, guard: Scalar) -> Scalar:
    """Guard all loads below `value` by `guard`; where it is false, the value is 0."""

    def change(each: Scalar) -> Scalar:
        if not isinstance(each, Load):
            return each
        both = guard if each.guard is None else Apply("logical_and", (each.guard, guard), "bool")
        return replace(each, guard=both)

    guarded = rewrite(value, change, {})
    if isinstance(strip_names(guarded), Load):
        return guarded
    return Apply("where", (guard, guarded, Constant(0, value.dtype)), value.dtype)


def _pays(definition: Definition, readers: int, places: int, active: tuple[Variable, ...]) -> bool:
    """Whether to recompute what `readers` kernels read, this one at `places` different subscripts."""
    if definition.is_view or definition.is_cheap:
        return True
    if readers != 1 or places != 1:
        return False
    iterations, elements = product(variable.extent for variable in active), product(definition.buffer.shape)
    if iterations.constant is None or elements.constant is None:
        return iterations == elements
    # If only a part is read, the rest need not be computed.
    return iterations.constant <= elements.constant


def _view_definition(kernel: Kernel, views: dict[Buffer, Definition]) -> Definition | None:
    """The definition of a kernel that only copies, as a view of what another kernel computes."""
    definition = definition_of(kernel)
    load = None if definition is None else strip_names(definition.value)
    if definition is None or not isinstance(load, Load) or load.guard is not None:
        return None
    source = views.get(load.buffer)
    return definition if source is None else replace(definition, value=source.at(load.indices))


def _read_by_call(
    call: LibraryCall,
    view: View,
    views: dict[Buffer, Definition],
    definitions: dict[Buffer, Definition],
    reversed_views: bool,
) -> View:
    source = _inline_into_view(_inline_into_view(view, views), definitions)
    if not reversed_views and not all(map(is_non_negative, source.strides)):
        return view
    # No library multiplies by a matrix with broadcast rows or columns, e.g. the gradient of a sum.
    return view if call.routine == "matmul" and _repeats(source) else source


def _repeats(matrices: View) -> bool:
    steps = zip(matrices.shape[-2:], matrices.strides[-2:], strict=True)
    return any(stride == constant(0) and size.constant != 1 for size, stride in steps)


def _inline_into_view(view: View, definitions: dict[Buffer, Definition]) -> View:
    """Read the base directly, if `view` reads a buffer that is a strided view of it."""
    definition = definitions.get(view.buffer)
    if definition is None or view != whole(view.buffer):
        return view
    load = strip_names(definition.value)
    if not isinstance(load, Load) or load.guard is not None:
        return view
    offset = load.buffer.offset(load.indices)
    if offset.computed:
        return view
    strides: list[Index] = []
    for variable in definition.variables:
        stride = constant(0) if variable is None else coefficient_of(offset, variable)
        if stride is None:
            return view
        strides.append(stride)
    start = substitute(offset, {variable: constant(0) for variable in definition.variables if variable is not None})
    return View(load.buffer, view.shape, tuple(strides), start)
