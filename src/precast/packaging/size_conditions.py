"""What a program assumes about sizes, as conditions that native code checks by itself.

Callers in C have no Python layer that would check them. Conditions that cannot be told in whole numbers without
dividing by a size are left to callers who have one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sympy

from precast.codegen.describe import Condition
from precast.errors import LoweringError
from precast.ir.loops.index import Index, Quotient, Remainder, Symbol, atoms
from precast.ir.sizes import SymbolicSizes
from precast.lower.sizes import expression_to_index

_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.StrictLessThan: "<", sympy.LessThan: "<=", sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}  # fmt: skip


def size_conditions(sizes: SymbolicSizes, known: Collection[str]) -> Iterator[Condition]:
    """The guards over sizes that the entry knows."""
    names = {symbol.symbol: symbol.name for symbol in sizes.symbols}
    for guard in sizes.guards:
        relation = _RELATIONS.get(type(guard.condition))
        if relation is None or not {symbol.name for symbol in guard.condition.free_symbols} <= set(known):
            continue
        try:
            left, right = (expression_to_index(side) for side in guard.condition.args)
        except LoweringError:
            continue
        if not any(map(_divides_by_a_size, (left, right))):
            text = str(guard.condition.xreplace({each: sympy.Symbol(names[each]) for each in names}))
            yield Condition(left, relation, right, text)


def _divides_by_a_size(index: Index) -> bool:
    divisions = [each for each in atoms(index) if isinstance(each, Quotient | Remainder)]
    return any(isinstance(part, Symbol) for each in divisions for part in atoms(each.denominator))
