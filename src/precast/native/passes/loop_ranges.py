"""Restricts loop ranges to where conditions on subscripts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precast.native.loops.index import Index, Variable, atom, coefficient_of, constant
from precast.native.loops.program import Loop, Statement
from precast.native.loops.rewriting import substitute_variables
from precast.native.loops.scalars import Apply, Constant, IndexValue, Load, Scalar, conjuncts, rewrite

Ranges = dict[Variable, tuple[int, int]]
"""Start and end of each variable."""


def loops_within(body: tuple[Statement, ...], variables: Sequence[Variable], ranges: Ranges) -> tuple[Statement, ...]:
    """Loops around `body` over these variables, restricted to these ranges."""
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


def ranges_of(condition: Scalar, variables: Sequence[Variable]) -> tuple[Ranges, list[Scalar]]:
    """The ranges that a condition implies, and the remaining conditions."""
    ranges: Ranges = {}
    left: list[Scalar] = []
    for each in conjuncts(condition):
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
    return ({}, list(conjuncts(condition))) if empty else (ranges, left)


def where_holds(value: Scalar, condition: Scalar) -> Scalar:
    """The value where the condition is known to hold: guards that it implies are dropped."""

    def unguarded(each: Scalar) -> Scalar:
        return replace(each, guard=None) if isinstance(each, Load) and each.guard is condition else each

    return rewrite(value, unguarded, {})


def _is_certain(condition: Scalar) -> bool:
    if isinstance(condition, Constant):
        return bool(condition.value)
    match condition:
        case Apply("eq", (IndexValue(left), IndexValue(right))):
            return left == right
    return False


def _bound(condition: Scalar, variables: Sequence[Variable]) -> tuple[Variable, tuple[int, int | None]] | None:
    """The variable that a condition restricts, with the start and end of its range."""
    match condition:
        case Apply(("eq" | "ge" | "lt") as relation, (IndexValue(left), IndexValue(right))):
            difference = left - right
        case _:
            return None
    for variable in variables:
        start = _start(difference, variable, variables)
        # An inequality may ignore variables that vary within one step of this one, an equality may not.
        if start is not None and (relation != "eq" or (difference - atom(variable)).constant is not None):
            return variable, {"eq": (start, start + 1), "ge": (start, None), "lt": (0, start)}[relation]
    return None


def _start(difference: Index, variable: Variable, variables: Sequence[Variable]) -> int | None:
    """The least value of a variable from which the difference is non-negative for all others, if there is one."""
    coefficient = coefficient_of(difference, variable)
    step = coefficient.constant if coefficient is not None else None
    if step is None or step <= 0:
        return None
    rest = difference - atom(variable) * step
    if rest.constant is None:
        within = [each for each in variables if each != variable and each.extent == constant(step)]
        rest = next((rest - atom(each) for each in within if (rest - atom(each)).constant is not None), rest)
    return -rest.constant // step if rest.constant is not None and rest.constant % step == 0 else None
