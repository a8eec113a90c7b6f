"""Subscripts that the loop computes: they simplify like variables, and what is behind them is rewritten with them."""

import pytest

from precast.native.loops.buffers import contiguous_buffer
from precast.native.loops.index import (
    Atom,
    Index,
    Variable,
    atom,
    coefficient_of,
    constant,
    floor_divide,
    remainder,
    text_with,
)
from precast.native.loops.program import Store, statement_values
from precast.native.loops.rewriting import substitute_scalar
from precast.native.loops.scalars import Constant, Load, computed, walk

ROW = Variable("i", constant(4))
places, table = contiguous_buffer("places", "i64", (4,)), contiguous_buffer("table", "f32", (10, 3))
PLACE = Load(places, (atom(ROW),))
where = computed("where", PLACE, 10)


def test_a_computed_subscript_is_known_to_lie_below_its_extent():
    assert str(floor_divide(where * 3 + 2, 3)) == "where"
    assert str(remainder(where, 10)) == "where"


def test_an_offset_is_not_linear_in_what_a_computed_subscript_depends_on():
    assert coefficient_of(where * 3, ROW) is None
    assert coefficient_of(where * 3 + atom(ROW), Variable("j", constant(2))) == constant(0)


def test_substituting_a_variable_reaches_the_value_behind_a_subscript():
    bindings: dict[Atom, Index] = {ROW: constant(2)}
    changed = substitute_scalar(Load(table, (where, constant(0))), bindings)
    assert [str(each.indices[0]) for each in walk(changed) if isinstance(each, Load) and each.buffer is places] == ["2"]


def test_its_text_can_be_named():
    (atom_,) = where.computed
    assert text_with(where * 3 + 1, {atom_: "p"}) == "p*3 + 1"


def test_two_subscripts_of_one_value_are_the_same_and_of_two_are_not():
    assert where == computed("where", PLACE, 10)
    assert where != computed("where", Load(places, (atom(ROW),)), 10)


def test_a_store_at_a_computed_place_depends_on_the_place():
    store = Store(table, (where, constant(0)), Constant(1.0, "f32"), combine="sum")
    assert not store.is_plain
    assert PLACE in statement_values(store)


def test_only_64_bit_numbers_are_subscripts():
    with pytest.raises(AssertionError, match="subscripts are i64, not f32"):
        computed("where", Constant(1.0, "f32"), 10)
