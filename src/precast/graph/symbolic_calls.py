"""Calls of a program with symbolic sizes, as when it is traced again: what must hold, as conditions on these sizes.

Before: a program over ``x: f32[2*s0]`` with ``s0 in 2..64`` and the guard ``s0 != 5``, called with ``x: f32[t]``
After:  the conditions ``t == 2*(t//2)``, ``2 <= t//2``, ``t//2 <= 64`` and ``t//2 != 5``
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv

from precast.graph.sizes import SymbolicSizes
from precast.graph.tensor_spec import Size

Pair = tuple[str, Size, "int | torch.SymInt"]
"""The place of a size, the size in the program, and the size that came."""


def restrictions(sizes: SymbolicSizes, pairs: Sequence[Pair]) -> Iterator[tuple["bool | torch.SymBool", str]]:
    """What must hold, with a sentence for each that says that it does not. One size at least is symbolic."""
    env: ShapeEnv = next(came.node.shape_env for _, _, came in pairs if isinstance(came, torch.SymInt))
    binding = _bound(pairs)
    for place, size, came in pairs:
        wanted = sympy.Integer(size) if isinstance(size, int) else size.xreplace(binding)
        text = f"{place} is {came}, but the program has {sizes.in_words(size)}."
        yield _condition(env, sympy.Eq(_expression(came), wanted)), text
    for symbol in sizes.symbols:
        if (bound := binding.get(symbol.symbol)) is None:
            continue
        text = f"{symbol.seen_at} is {bound}, outside of {symbol.name} in {symbol.range}."
        yield _condition(env, sympy.Ge(bound, symbol.range.lower)), text
        if symbol.range.upper is not None:
            yield _condition(env, sympy.Le(bound, symbol.range.upper)), text
    for guard in sizes.guards:
        if guard.condition.free_symbols <= binding.keys():
            text = f"{sizes.in_words(guard.condition)} does not hold."
            yield _condition(env, guard.condition.xreplace(binding)), text


def _expression(size: "int | torch.SymInt") -> sympy.Basic:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _bound(pairs: Sequence[Pair]) -> Mapping[sympy.Basic, sympy.Basic]:
    """The symbols of the program in terms of the sizes that came; bare ones first, then linear expressions of one."""
    binding: dict[sympy.Basic, sympy.Basic] = {}
    for _, size, came in pairs:
        if isinstance(size, sympy.Symbol):
            binding.setdefault(size, _expression(came))
    for _, size, came in pairs:
        unbound = [] if isinstance(size, int) else [each for each in size.free_symbols if each not in binding]
        if len(unbound) == 1:
            remaining: Any = size.xreplace(binding)  # type: ignore[union-attr]
            start, following = (remaining.xreplace({unbound[0]: sympy.Integer(each)}) for each in (0, 1))
            binding[unbound[0]] = FloorDiv(_expression(came) - start, following - start)
    return binding


def _condition(env: ShapeEnv, condition: sympy.Basic) -> "bool | torch.SymBool":
    if condition in (sympy.true, sympy.false):
        return condition is sympy.true
    made: torch.SymBool = env.create_symboolnode(condition)
    return made
