"""Substitution in loop IR: variables, buffers, accumulators; shared scalars remain shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from precast.native.loops.buffers import Buffer, View, whole
from precast.native.loops.index import Atom, Index, Variable, atom, substitute
from precast.native.loops.memoize import remembered
from precast.native.loops.program import (
    Check,
    FallbackStep,
    Kernel,
    KernelGroup,
    LibraryCall,
    Loop,
    Repeat,
    Run,
    Statement,
    Step,
    Store,
    read_by,
    rewrite_statement,
    variables_of,
    written_by,
)
from precast.native.loops.scalars import IndexValue, Load, Scalar, rewrite


def substitute_scalar(value: Scalar, bindings: Mapping[Atom, Index], memo: dict[int, Scalar] | None = None) -> Scalar:
    """Replace loop variables or sizes in every subscript below `value`."""
    return rewrite(value, substitution(bindings), {} if memo is None else memo)


def substitution(bindings: Mapping[Atom, Index]) -> Callable[[Scalar], Scalar]:
    """The function for `rewrite` that replaces loop variables or sizes."""
    known = frozenset(bindings.items())

    def change(each: Scalar) -> Scalar:
        if isinstance(each, Load):
            indices = _substituted_indices(each.indices, known)
            return each if indices == each.indices else Load(each.buffer, indices, each.guard)
        if isinstance(each, IndexValue):
            (index,) = _substituted_indices((each.index,), known)
            return each if index == each.index else IndexValue(index, each.dtype)
        return each

    return change


# Identical layers rename identical loops.
@remembered
def _substituted_indices(indices: tuple[Index, ...], bindings: frozenset[tuple[Atom, Index]]) -> tuple[Index, ...]:
    replacements = dict(bindings)
    return tuple(substitute(index, replacements) for index in indices)


def substitute_variables(body: tuple[Statement, ...], bindings: Mapping[Variable, Index]) -> tuple[Statement, ...]:
    """Replace variables of enclosing loops by expressions of others."""
    replacements: dict[Atom, Index] = dict(bindings.items())
    return _substituted(body, replacements, {})


def rename_variables(body: tuple[Statement, ...], names: Mapping[Variable, Variable]) -> tuple[Statement, ...]:
    """Replace loop variables by others, in declarations and uses."""
    return _substituted(body, {old: atom(new) for old, new in names.items()}, names)


def _substituted(
    body: tuple[Statement, ...], bindings: Mapping[Atom, Index], names: Mapping[Variable, Variable]
) -> tuple[Statement, ...]:
    change, memo, known = substitution(bindings), dict[int, Scalar](), frozenset(bindings.items())

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            variables = tuple(names.get(variable, variable) for variable in statement.variables)
            return replace(statement, variables=variables, body=tuple(map(visit, statement.body)))
        statement = rewrite_statement(statement, change, memo)
        if isinstance(statement, Store):
            return replace(statement, indices=_substituted_indices(statement.indices, known))
        return statement

    return tuple(map(visit, body))


Place = tuple[Buffer, tuple[Index, ...]]
"""An element: its buffer and its subscripts."""


def replace_places(body: tuple[Statement, ...], change: Callable[[Place], Place]) -> tuple[Statement, ...]:
    """Change which elements are read and written."""
    memo = dict[int, Scalar]()

    def change_load(each: Scalar) -> Scalar:
        if not isinstance(each, Load):
            return each
        buffer, indices = change((each.buffer, each.indices))
        is_same = buffer is each.buffer and indices is each.indices
        return each if is_same else replace(each, buffer=buffer, indices=indices)

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, body=tuple(map(visit, statement.body)))
        statement = rewrite_statement(statement, change_load, memo)
        if isinstance(statement, Store):
            buffer, indices = change((statement.buffer, statement.indices))
            return replace(statement, buffer=buffer, indices=indices)
        return statement

    return tuple(map(visit, body))


def replace_buffers(body: tuple[Statement, ...], names: Mapping[Buffer, Buffer]) -> tuple[Statement, ...]:
    """Replace buffers by others of the same sizes."""
    return replace_places(body, lambda place: (names.get(place[0], place[0]), place[1]))


def with_buffers(step: Step, names: Mapping[Buffer, Buffer]) -> Step:
    """The step with other buffers of the same sizes; a buffer that is accessed as a whole may have any layout."""
    if names.keys().isdisjoint((*read_by(step), *written_by(step))):
        return step
    match step:
        case Kernel():
            return _with_other_buffers(step, names)
        case KernelGroup():
            return replace(step, members=tuple(_with_other_buffers(each, names) for each in step.members))
        case LibraryCall():
            inputs, outputs = ([_with_buffer(view, names) for view in each] for each in (step.inputs, step.outputs))
            return replace(step, inputs=tuple(inputs), outputs=tuple(outputs))
        case FallbackStep():
            return replace(step, inputs=_renamed(step.inputs, names), outputs=_renamed(step.outputs, names))
        case Run() | Repeat():
            assert step.scratch is None, "memory is planned last"
            renamed = replace(step, inputs=_renamed(step.inputs, names), outputs=_renamed(step.outputs, names))
            if isinstance(renamed, Repeat):
                return replace(renamed, spares=_renamed(renamed.spares, names))
            return (
                renamed
                if renamed.choice is None
                else replace(renamed, choice=names.get(renamed.choice, renamed.choice))
            )
        case Check():
            shown = None if step.shown is None else names.get(step.shown, step.shown)
            return replace(step, failed=names.get(step.failed, step.failed), shown=shown)


def _renamed(buffers: tuple[Buffer, ...], names: Mapping[Buffer, Buffer]) -> tuple[Buffer, ...]:
    return tuple(names.get(each, each) for each in buffers)


def _with_other_buffers(kernel: Kernel, names: Mapping[Buffer, Buffer]) -> Kernel:
    return replace(kernel, body=replace_buffers(kernel.body, names))


def _with_buffer(view: View, names: Mapping[Buffer, Buffer]) -> View:
    if view.buffer not in names:
        return view
    new = names[view.buffer]
    if view == whole(view.buffer):
        return whole(new)
    assert new.strides == view.buffer.strides, "a view of a part is a view of how it is laid out in memory"
    return replace(view, buffer=new)


def number_variables(kernel: Kernel, prefix: str = "i") -> Kernel:
    """Rename the loop variables to i0, i1, … in textual order."""
    old = dict.fromkeys(variables_of(kernel.body))
    if [each.name for each in old] == [f"{prefix}{number}" for number in range(len(old))]:
        return kernel
    names = {each: Variable(f"{prefix}{number}", each.extent) for number, each in enumerate(old)}
    return replace(kernel, body=rename_variables(kernel.body, names))
