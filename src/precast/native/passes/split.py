"""Loop splitting: avoid divisions that views would cause in every iteration.

Before: ``for i0 < 768:  y[i0] = x[i0 // 64, i0 % 64]``, where `x` has a different layout
After:  ``for i0 < 12, i1 < 64:  y[i0*64 + i1] = x[i0, i1]``

Loop fission: each piece of a concatenated result gets a loop of its own.

Before: ``for i0 < 32, i1 < 1024:  y[i0, i1] = where(i0 < 1, a[i1], where(1 <= i0 < 2, b[i1], …))``
After:  ``for i1 < 1024:  y[0, i1] = a[i1]``, ``for i1 < 1024:  y[1, i1] = b[i1]``, …

A loop over the whole result would compute every piece for every element, and select one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from precast.native.loops.index import Index, Quotient, Remainder, Variable, atom, atoms, coefficient_of, constant
from precast.native.loops.program import Kernel, Loop, LoopProgram, Statement, Store, stores_of, with_steps
from precast.native.loops.scalars import Apply, Scalar
from precast.native.passes.collapse import divides, places_of, split_variable
from precast.native.passes.inline import strip_names
from precast.native.passes.loop_ranges import loops_within, ranges_of, where_holds

SHORTEST = 8
"""Inner loops of fewer iterations than this are no better than a division."""


def split_loops(program: LoopProgram) -> LoopProgram:
    """Split loops so that every division by a divisor of a loop's range becomes a loop of its own."""
    return with_steps(program, [_split(step) if isinstance(step, Kernel) else step for step in program.steps])


def _split(kernel: Kernel) -> Kernel:
    body = tuple(map(_visit, kernel.body))
    same = all(before is after for before, after in zip(kernel.body, body, strict=True))
    return kernel if same else replace(kernel, body=body)


def _visit(statement: Statement) -> Statement:
    if not isinstance(statement, Loop) or not all(store.is_plain for store in stores_of((statement,))):
        return statement
    body = tuple(map(_visit, statement.body))
    if any(before is not after for before, after in zip(statement.body, body, strict=True)):
        statement = replace(statement, body=body)
    while found := _divided(statement):
        statement = split_variable(statement, *found)
    return statement


def _divided(loop: Loop) -> tuple[Variable, Index] | None:
    """A variable that is divided somewhere below, and the divisor."""
    for place in dict.fromkeys(places_of(loop.body)):
        # Sorted, not in hash order: the same program has the same code in every process.
        for part in sorted(atoms(place), key=lambda each: each.text):
            if isinstance(part, Quotient | Remainder):
                for variable in loop.variables:
                    if part.numerator == atom(variable) and _pays(variable, part.denominator):
                        return variable, part.denominator
    return None


def _pays(variable: Variable, denominator: Index) -> bool:
    number = denominator.constant
    return (number is None or number >= SHORTEST) and divides(denominator, variable.extent)


FEWEST = 8
"""With fewer pieces, each element selects its own: one loop may be cheaper than several."""
SHORTEST_PIECE = 16
"""Contiguous loops that are shorter than this are not worth it."""


@dataclass(frozen=True)
class _Piece:
    """What is computed where a variable is in a range, as `condition` says."""

    variable: Variable
    first: int
    end: int
    condition: Scalar
    value: Scalar


def part_loops(program: LoopProgram) -> LoopProgram:
    """Split every loop that does nothing except concatenate many pieces."""
    return with_steps(program, [_parted(step) if isinstance(step, Kernel) else step for step in program.steps])


def _parted(kernel: Kernel) -> Kernel:
    body = _parts_of(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _parts_of(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    parts = [_parts(statement) for statement in body]
    is_same = all(part == (statement,) for part, statement in zip(parts, body, strict=True))
    return body if is_same else tuple(chain.from_iterable(parts))


def _parts(statement: Statement) -> tuple[Statement, ...]:
    match statement:
        case Loop(variables, (Store() as store,), ()) if store.is_plain:
            pieces = _pieces(store.value, variables)
            if len(pieces) >= FEWEST and _fill(pieces) and _are_long(pieces, store):
                return tuple(chain.from_iterable(_loops(piece, store, variables) for piece in pieces))
        case Loop(_, body, _) if (parts := _parts_of(body)) is not body:
            return (replace(statement, body=parts),)
    return (statement,)


def _pieces(value: Scalar, variables: Sequence[Variable]) -> list[_Piece]:
    """The pieces, as far as conditions on single variables distinguish them."""
    pieces: list[_Piece] = []
    value = strip_names(value)
    while isinstance(value, Apply) and value.operation == "where":
        condition, chosen, otherwise = value.arguments
        ranges, left = ranges_of(condition, variables)
        if left or len(ranges) != 1:
            break
        ((variable, (first, end)),) = ranges.items()
        pieces.append(_Piece(variable, first, end, condition, chosen))
        value = strip_names(otherwise)
    return pieces


def _fill(pieces: Sequence[_Piece]) -> bool:
    """Whether pieces cover one variable from its start to its end without gaps."""
    first, last = pieces[0], pieces[-1]
    is_side_by_side = all(before.end == after.first for before, after in pairwise(pieces))
    is_whole = first.first == 0 and constant(last.end) == last.variable.extent
    return is_side_by_side and is_whole and len({each.variable for each in pieces}) == 1


def _are_long(pieces: Sequence[_Piece], store: Store) -> bool:
    is_along = coefficient_of(store.buffer.offset(store.indices), pieces[0].variable) == constant(1)
    return not is_along or min(each.end - each.first for each in pieces) >= SHORTEST_PIECE


def _loops(piece: _Piece, store: Store, variables: Sequence[Variable]) -> tuple[Statement, ...]:
    body = (replace(store, value=where_holds(piece.value, piece.condition)),)
    return loops_within(body, variables, {piece.variable: (piece.first, piece.end)})
