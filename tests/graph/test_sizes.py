"""Symbolic sizes: ranges, guards, and reading symbols off real shapes."""

import pytest
import sympy
from torch.utils._sympy.functions import Mod

from precast.graph.sizes import SizeGuard, SizeRange, SizeSymbol, SymbolicSizes, bind_sizes, evaluate, holds

s, t = sympy.symbols("s t", integer=True, positive=True)


def test_ranges_include_their_ends():
    assert 2 in SizeRange(2, 4)
    assert 4 in SizeRange(2, 4)
    assert 5 not in SizeRange(2, 4)
    assert 10**9 in SizeRange(2)
    assert 1 not in SizeRange(2)


def test_ranges_print_open_ends():
    assert [str(SizeRange(2, 4)), str(SizeRange(2))] == ["2..4", "2.."]


def test_expressions_are_evaluated():
    assert evaluate(2 * s + t, {s: 3, t: 1}) == 7
    assert evaluate(5, {}) == 5


def test_conditions_are_evaluated():
    assert holds(sympy.Eq(s, 2 * t), {s: 4, t: 2})
    assert not holds(s < t, {s: 4, t: 2})


def test_a_condition_that_divides_by_zero_does_not_hold():
    assert not holds(sympy.Eq(Mod(t, s - 2), 0), {s: 2, t: 4})


def test_settled_sizes_are_gone():
    symbols = tuple(SizeSymbol(symbol, str(symbol), "x.shape[0]", SizeRange()) for symbol in (s, t))
    guards = (SizeGuard(sympy.Eq(s, 4)), SizeGuard(s * t < 100), SizeGuard(4 * t < 100))
    settled = SymbolicSizes(symbols, guards).settled({"s": sympy.Integer(4)})
    assert [symbol.symbol for symbol in settled.symbols] == [t]
    assert [guard.condition for guard in settled.guards] == [4 * t < 100]


def test_further_guards_are_added_once():
    sizes = SymbolicSizes((SizeSymbol(s, "s", "x.shape[0]", SizeRange()),), (SizeGuard(s < 9),))
    grown = sizes.with_guards([SizeGuard(s < 9), SizeGuard(s > 2), SizeGuard(t > 2)])
    assert [guard.condition for guard in grown.guards] == [s < 9, s > 2]
    assert sizes.with_guards([]) is sizes


def test_bare_symbols_bind():
    assert bind_sizes([(s, 3), (t,)], [(5, 3), (7,)]) == ({s: 5, t: 7}, [])


def test_symbols_bind_through_expressions():
    assert bind_sizes([(2 * s + 1,)], [(9,)]) == ({s: 4}, [])


def test_a_bare_symbol_binds_before_an_expression_of_it():
    binding, mismatches = bind_sizes([(2 * s,), (s,)], [(9,), (4,)])
    assert binding == {s: 4}
    assert mismatches == [(0, 0, 8, 9)]


def test_expressions_of_several_symbols_bind_the_last_unknown():
    assert bind_sizes([(s, s + t)], [(3, 10)]) == ({s: 3, t: 7}, [])


def test_a_static_size_that_differs_is_a_mismatch():
    assert bind_sizes([(4,)], [(5,)]) == ({}, [(0, 0, 4, 5)])


def test_two_uses_of_a_symbol_must_agree():
    assert bind_sizes([(s, s)], [(2, 3)]) == ({s: 2}, [(0, 1, 2, 3)])


@pytest.mark.parametrize("expression", [2 * s, s + t])
def test_a_size_that_no_whole_number_explains_is_a_mismatch(expression):
    assert bind_sizes([(expression,)], [(5,)])[1] == [(0, 0, None, 5)]


def test_sizes_out_of_range_are_found():
    symbol = SizeSymbol(s, "batch", "args[0].shape[0]", SizeRange(2, 8))
    sizes = SymbolicSizes((symbol,))
    assert sizes.out_of_range({s: 9}) == [(symbol, 9)]
    assert sizes.out_of_range({s: 8}) == []


def test_guards_that_fail_are_found():
    guard = SizeGuard(sympy.Ne(s, 5), "model.py:3")
    sizes = SymbolicSizes(guards=(guard, SizeGuard(s < 100)))
    assert sizes.failing_guards({s: 5}) == [guard]
    assert sizes.failing_guards({s: 6}) == []


def test_sizes_are_solved_where_they_are_linear_and_nowhere_else():
    a, b = sympy.symbols("a b", integer=True, nonnegative=True)
    assert bind_sizes([(2 * a + 1,)], [(7,)]) == ({a: 3}, [])
    assert bind_sizes([(2 * a + 1,)], [(8,)])[1] == [(0, 0, None, 8)]
    for strange in (a**60 + a, a * b, sympy.Rational(1, 2) ** a, a / b):
        assert bind_sizes([(strange,)], [(7,)])[1] == [(0, 0, None, 7)]
