"""Computes the last of several data-dependent sizes that add up to a known one from the others.

Before: ``a, b = counts.tolist()``, asserted that ``a + b == n``; ``x.split([a, b])``
After:  the same with ``x.split([a, n - a])``, asserted that ``n - a >= 0``

That ``b`` is what ``a`` leaves of ``n`` is then visible in every size and subscript computed from it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import sympy
import torch
from torch import fx

from precast.graph.nodes import has_value, set_value, value_of
from precast.graph.program import Program
from precast.native.rules.sizes import unbacked_in

_ASSERT = torch.ops.aten._assert_scalar.default


def with_remaining_sizes(program: Program) -> Program:
    """The program with such sizes computed; the same object if it has none."""
    if not _sums(program.graph):
        return program
    graph = program.copy_graph()
    for maker, (equality, others, coefficient) in _sums(graph).items():
        _compute(graph, equality, maker, others, coefficient)
    return program.replace(graph=graph)


def _sums(graph: fx.Graph) -> dict[fx.Node, tuple[fx.Node, list[fx.Node], int]]:
    """For the node of each such size, the equality, the nodes of the other sizes in it, and the size's coefficient."""
    found: dict[fx.Node, tuple[fx.Node, list[fx.Node], int]] = {}
    makers: dict[sympy.Basic, fx.Node] = {}
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        value = value_of(node) if has_value(node) else None
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            makers.setdefault(value.node.expr, node)
        if node.target is not operator.eq or all(user.target is not _ASSERT for user in node.users):
            continue
        left, right = (_expression(side) for side in node.args)
        difference = sympy.expand(left - right)
        symbols = unbacked_in(difference)
        if len(symbols) < 2 or not set(symbols) <= makers.keys():
            continue
        *others, last = sorted(symbols, key=lambda symbol: order[makers[symbol]])
        coefficients = {difference.coeff(symbol) for symbol in symbols}
        rest = difference - sum(difference.coeff(symbol) * symbol for symbol in symbols)
        if coefficients in ({1}, {-1}) and not unbacked_in(rest):
            found.setdefault(makers[last], (node, [makers[each] for each in others], int(coefficients.pop())))
    return found


def _expression(side: object) -> sympy.Expr:
    value = value_of(side) if isinstance(side, fx.Node) else side
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.sympify(value)


def _compute(graph: fx.Graph, equality: fx.Node, maker: fx.Node, others: Sequence[fx.Node], coefficient: int) -> None:
    """Replace a size, after the equality, by what the others leave, which is not negative after any of them."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    check = next(user for user in equality.users if user.target is _ASSERT)
    with graph.inserting_before(check.next):
        excess = _called(graph, operator.sub, *equality.args)
        size = rest = _called(graph, operator.sub if coefficient == 1 else operator.add, maker, excess)
        for other in (None, *reversed(others[1:])):
            rest = rest if other is None else _called(graph, operator.add, rest, other)
            graph.call_function(_ASSERT, (_called(graph, operator.ge, rest, 0), check.args[1]))
    maker.replace_all_uses_with(size, delete_user_cb=lambda user: order.get(user, 0) > order[check])


def _called(graph: fx.Graph, function: object, *args: object) -> fx.Node:
    node = graph.call_function(function, args)  # type: ignore[arg-type]
    set_value(node, function(*(value_of(each) if isinstance(each, fx.Node) else each for each in args)))  # type: ignore[operator]
    return node
