"""Sizes in the user's words; one name never means two sizes."""

import pytest
import sympy

from precast.errors import InputValueError
from precast.graph.sizes import SizeRange, SizeSymbol, SymbolicSizes
from precast.onnx.translate import SizeNames

S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)


def sizes(first: str, second: str) -> SymbolicSizes:
    symbols = (SizeSymbol(S0, first, "x.shape[0]", SizeRange()), SizeSymbol(S1, second, "y.shape[0]", SizeRange()))
    return SymbolicSizes(symbols)


def test_expressions_are_over_the_users_names():
    shape = SizeNames(sizes("batch", "length"), {})._size(2 * S0 + S1)
    assert shape == "2*batch + length"


def test_labels_count_before_names():
    assert SizeNames(sizes("n", "n"), {S0: "rows"})._size(S0 * S1) == "n*rows"


def test_one_name_for_two_sizes():
    with pytest.raises(InputValueError, match=r"called 'n': x\.shape\[0\] and y\.shape\[0\]"):
        SizeNames(sizes("n", "n"), {})
