"""Write of an input that is updated in part only what changes.

Before: ``for i0 < 12, i1 < 1024, i2 < 768:  cache[i0, i1, i2] = where(i1 == 5, k[i0, i2], cache[i0, i1, i2])``
After:  ``for i0 < 12, i2 < 768:  cache[i0, 5, i2] = k[i0, i2]``

Conditions on one loop variable say how far its loop goes; others decide whether an element is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from precast.ir.loops.index import Index, Variable, atom, coefficient_of, constant
from precast.ir.loops.program import InputUpdate, Kernel, Loop, Statement, Store
from precast.ir.loops.rewriting import substitute_variables
from precast.ir.loops.scalars import Apply, Constant, IndexValue, Load, Scalar, rewrite
from precast.lower.conditions import all_of
from precast.lower.inline import strip_names

_Ranges = dict[Variable, tuple[int, int]]
"""From where and up to where variables go."""


def changes_alone(kernel: Kernel, update: InputUpdate) -> Kernel:
    """The kernel that writes the result, without writing what is as it was: that is for the memory of the input."""
    match kernel.body:
        case (Loop(variables, (Store(guard=None, combine=None) as store,), ()),):
            value = strip_names(store.value)
        case _:
            return kernel
    if not isinstance(value, Apply) or value.operation != "where" or not _is_old(value.arguments[2], store, update):
        return kernel
    condition, new, _ = value.arguments
    ranges, left = _ranges(condition, variables)
    if not left:
        new = rewrite(new, lambda each: _unguarded(each, condition), {})
    guard = all_of(*left) if left else None
    body = _within((replace(store, value=new, guard=guard),), variables, ranges)
    return replace(kernel, body=body)


def _is_old(value: Scalar, store: Store, update: InputUpdate) -> bool:
    """Whether this is the input's element in the place of the result's that is stored."""
    load = strip_names(value)
    is_element = isinstance(load, Load) and (load.indices, load.guard) == (store.indices, None)
    return is_element and isinstance(load, Load) and (load.buffer, store.buffer) == (update.input, update.result)


def _unguarded(value: Scalar, condition: Scalar) -> Scalar:
    """A load that needs the condition, where that holds."""
    is_guarded = isinstance(value, Load) and value.guard is condition
    return Load(value.buffer, value.indices) if is_guarded and isinstance(value, Load) else value


def _within(body: tuple[Statement, ...], variables: Sequence[Variable], ranges: _Ranges) -> tuple[Statement, ...]:
    """Loops around `body` over these variables, which go no further than said."""
    bindings: dict[Variable, Index] = {}
    remaining: list[Variable] = []
    for variable in variables:
        first, end = ranges.get(variable, (0, None))
        if end is not None and end - first == 1:
            bindings[variable] = constant(first)
            continue
        remaining.append(variable if end is None else Variable(variable.name, constant(end - first)))
        if end is not None:
            bindings[variable] = atom(remaining[-1]) + first
    body = substitute_variables(body, bindings)
    return (Loop(tuple(remaining), body),) if remaining else body


def _ranges(condition: Scalar, variables: Sequence[Variable]) -> tuple[_Ranges, list[Scalar]]:
    """How far loops need to go, and the conditions that are not told by that."""
    ranges: _Ranges = {}
    left: list[Scalar] = []
    for each in _conjuncts(condition):
        found = _bound(each, variables)
        if found is None:
            left += [] if _is_certain(each) else [each]
            continue
        variable, (first, end) = found
        known = ranges.get(variable, (0, variable.extent.constant))
        ends = [bound for bound in (known[1], end) if bound is not None]
        if not ends:
            left.append(each)
        else:
            ranges[variable] = (max(known[0], first), min(ends))
    empty = any(first >= end for first, end in ranges.values())
    return ({}, list(_conjuncts(condition))) if empty else (ranges, left)


def _conjuncts(condition: Scalar) -> Iterator[Scalar]:
    condition = strip_names(condition)
    if isinstance(condition, Apply) and condition.operation == "logical_and":
        for each in condition.arguments:
            yield from _conjuncts(each)
    else:
        yield condition


def _is_certain(condition: Scalar) -> bool:
    if isinstance(condition, Constant):
        return bool(condition.value)
    match condition:
        case Apply("eq", (IndexValue(left), IndexValue(right))):
            return left == right
    return False


def _bound(condition: Scalar, variables: Sequence[Variable]) -> tuple[Variable, tuple[int, int | None]] | None:
    """The variable that a condition is about, from where it holds and up to where."""
    match condition:
        case Apply(("eq" | "ge" | "lt") as relation, (IndexValue(left), IndexValue(right))):
            difference = left - right
        case _:
            return None
    for variable in variables:
        rest = (difference - atom(variable)).constant
        if coefficient_of(difference, variable) == constant(1) and rest is not None:
            return variable, {"eq": (-rest, 1 - rest), "ge": (-rest, None), "lt": (0, -rest)}[relation]
    return None
