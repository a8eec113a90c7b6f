"""Subscripts simplify as people would, and never change their value."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.artifact import expressions as of_files
from precast.native.loops.expressions import index_from_json, index_to_json
from precast.native.loops.index import (
    Symbol,
    Variable,
    atom,
    coefficient_of,
    constant,
    evaluate,
    floor_divide,
    is_between,
    maximum,
    minimum,
    remainder,
    substitute,
    symbol,
)

I8, J6 = Variable("i", constant(8)), Variable("j", constant(6))
i, j, s, r = atom(I8), atom(J6), symbol("s"), symbol("r")
KS = Variable("k", s)
k = atom(KS)


@pytest.mark.parametrize(
    ("simplified", "text"),
    [
        (i * 6 + j, "i*6 + j"),
        (i + i - i * 2, "0"),
        (floor_divide(i * 6 + j, 6), "i"),
        (remainder(i * 6 + j, 6), "j"),
        (floor_divide(i * s + k, s), "i"),
        (remainder(i * s + k, s), "k"),
        (floor_divide(i, 3) * 3 + remainder(i, 3), "i"),
        (floor_divide(k, s), "0"),
        (floor_divide(floor_divide(i, 2), 2), "(i // 4)"),
        (remainder(i * 2, 4), "(i % 2)*2"),
        (floor_divide(i * s, s), "i"),
        (floor_divide(i * 6 + j, 12), "(i // 2)"),
        (remainder(i * 6 + j, 12), "(i % 2)*6 + j"),
        (floor_divide(i * 6 + j, 12) * 12 + remainder(i, 2) * 6 + j, "i*6 + j"),
        (floor_divide(i * s + k, s * 2), "(i // 2)"),
        (floor_divide(i * 6 + j, 4), "(i*6 + j // 4)"),
        (substitute(floor_divide(i, 3), {I8: constant(7)}), "2"),
        (floor_divide(7, 2), "3"),
        (i * 0 + 5, "5"),
        (maximum(s + 1, 0), "s + 1"),
        (minimum(s, s + 2), "s"),
        (maximum(s - 3, 0), "max(0, s - 3)"),
        (substitute(minimum(s, 4), {Symbol("s"): constant(9)}), "4"),
    ],
)
def test_simplifies(simplified, text):
    assert str(simplified) == text


def test_equal_expressions_are_equal_whatever_order_they_were_built_in():
    assert i * 6 + j == j + i * 3 + i * 3
    assert hash(i * 6 + j) == hash(j + i * 6)


def test_a_bound_is_only_claimed_when_it_holds_for_all_sizes():
    assert is_between(k, s)
    assert not is_between(k + 1, s)
    assert not is_between(k - 1, s)


def test_stride_is_known_only_where_the_expression_is_linear():
    assert coefficient_of(i * 6 + j, I8) == constant(6)
    assert coefficient_of(k * s, KS) == s
    assert coefficient_of(floor_divide(i, 3), I8) is None
    assert coefficient_of(i * i, I8) is None


expressions = st.recursive(
    st.sampled_from([i, j, k, s, constant(1), constant(3)]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
        st.tuples(inner, st.integers(1, 7)).map(lambda pair: floor_divide(*pair)),
        st.tuples(inner, st.integers(1, 7)).map(lambda pair: remainder(*pair)),
        inner.map(lambda value: floor_divide(value, s)),
        st.tuples(inner, inner).map(lambda pair: maximum(*pair)),
        st.tuples(inner, inner).map(lambda pair: minimum(pair[0] - 2, pair[1])),
        inner.map(lambda value: remainder(value, s)),
    ),
    max_leaves=8,
)


@given(expressions, st.integers(1, 6), st.integers(1, 9), st.data())
def test_dividing_and_joining_gives_back_the_number(value, divisor, size, data):
    values = {"i": data.draw(st.integers(0, 7)), "j": data.draw(st.integers(0, 5)), "s": size,
              "k": data.draw(st.integers(0, size - 1))}  # fmt: skip

    def number(index):
        return evaluate(index, lambda each: values[each.name])

    assert number(floor_divide(value, divisor)) == number(value) // divisor
    assert number(remainder(value, divisor)) == number(value) % divisor
    assert number(remainder(value, s)) == number(value) % size
    assert number(floor_divide(value, divisor) * divisor + remainder(value, divisor)) == number(value)
    assert number(substitute(value, {I8: constant(values["i"])})) == number(value)


@pytest.mark.parametrize(
    "index",
    [
        constant(0), constant(-3), s, s * 2 + 1, s * r * r - 4, floor_divide(s + 1, 2) * 3,
        remainder(s, r) + maximum(s, r + 1), minimum(floor_divide(s, r), s * s - 9),
    ],
    ids=str,
)  # fmt: skip
def test_an_index_over_sizes_is_an_expression_of_files(index):
    content = json.loads(json.dumps(index_to_json(index)))
    assert index_from_json(content) == index
    of_files.check_expression(content, {"s", "r"})
    sizes = {"s": 7, "r": 3}
    assert of_files.evaluate(content, sizes) == evaluate(index, lambda atom: sizes[atom.text])
