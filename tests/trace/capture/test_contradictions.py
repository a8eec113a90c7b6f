"""Programs that need more than their user said about sizes."""

import pytest
import torch

from precast.errors import SymbolicShapeError
from precast.graph.interpreter import interpret
from precast.trace.capture import Dim, capture

x, y = torch.ones(4, 6), torch.ones(4, 6)
batch, length = Dim("batch"), Dim("length", max=64)


def failure_of(function, args, dynamic_shapes) -> SymbolicShapeError:
    with pytest.raises(SymbolicShapeError) as failure:
        capture(function, args, dynamic_shapes=dynamic_shapes)
    return failure.value


def corrected(failure: SymbolicShapeError):
    """What the error says to paste, run as Python."""
    scope = {"Dim": Dim}
    exec(failure.fix.split("\n", 1)[1], scope)
    return scope["dynamic_shapes"]


def test_a_size_that_must_be_constant():
    def function(a):
        return a.reshape(4, 3, 2) + 1

    failure = failure_of(function, (x,), {"a": {0: batch}})
    assert "batch must be the constant 4" in failure.what
    assert "a.reshape(4, 3, 2)" in failure.at
    assert failure.fix.endswith("batch = 4\ndynamic_shapes = {'a': {0: batch}}")
    capture(function, (x,), dynamic_shapes=corrected(failure))


def test_two_sizes_that_must_be_equal():
    def function(a, b):
        return a + b

    failure = failure_of(function, (x, y), {"a": {0: batch}, "b": {0: length}})
    assert "must be" in failure.what
    assert "return a + b" in failure.at
    program = capture(function, (x, y), dynamic_shapes=corrected(failure))
    assert interpret(program, torch.ones(9, 6), torch.ones(9, 6)).shape == (9, 6)


def test_a_narrower_range():
    def function(a):
        if a.shape[0] > 8:
            raise AssertionError("too many rows")
        return a + 1

    failure = failure_of(function, (x,), {"a": {0: batch}})
    assert "batch must be in 0..8, not 0.." in failure.what
    assert "if a.shape[0] > 8:" in failure.at
    assert "batch = Dim('batch', max=8)" in failure.fix
    capture(function, (x,), dynamic_shapes=corrected(failure))


def test_a_larger_minimum():
    def function(a):
        torch._check(a.shape[1] >= 5)
        return a[:, 4] * 2

    failure = failure_of(function, (x,), {"a": {1: length}})
    assert "length must be in 5..64, not 0..64" in failure.what
    capture(function, (x,), dynamic_shapes=corrected(failure))


def test_a_multiple():
    def function(a):
        return a.view(a.shape[0], -1, 3) if a.shape[1] % 3 == 0 else a

    failure = failure_of(function, (x,), {"a": {1: length}})
    assert "length must be a multiple of 3" in failure.what
    assert "3*_length" in failure.fix
    capture(function, (x,), dynamic_shapes=corrected(failure))


def test_every_third_size():
    def function(a, b):
        return a + b[1:] if b.shape[0] % 3 == 0 and 5 <= a.shape[0] <= 36 else a

    rows, more = Dim("rows"), Dim("more")
    failure = failure_of(function, (torch.ones(11), torch.ones(12)), {"a": {0: rows}, "b": {0: more}})
    assert "_rows = Dim('_rows', min=2, max=12)\nrows = 3*_rows - 1\nmore = 3*_rows\n" in failure.fix
    capture(function, (torch.ones(11), torch.ones(12)), dynamic_shapes=corrected(failure))


def test_a_relation_that_no_dim_can_say_is_left_to_the_calls():
    def function(a):
        return a + 1 if a.shape[0] <= a.shape[1] else a

    program = capture(function, (x,), dynamic_shapes={"a": {0: batch, 1: Dim("width")}})
    assert interpret(program, torch.ones(5, 5)).shape == (5, 5)
    with pytest.raises(ValueError, match="does not hold for batch = 5, width = 4"):
        interpret(program, torch.ones(5, 4))


def test_what_follows_from_a_relation_is_a_narrower_range():
    def function(a):
        return a + 1 if a.shape[0] < a.shape[1] else a

    failure = failure_of(function, (x,), {"a": {0: batch, 1: length}})
    assert "batch must be in 0..63, not 0.." in failure.what
    assert "length must be in 3..64, not 0..64" in failure.what


def test_every_contradiction_is_listed():
    def function(a, b):
        first = a.reshape(4, 6)
        if b.shape[1] > 10:
            first = first + 1
        return first.sum() + b.sum()

    failure = failure_of(function, (x, y), {"a": {0: batch}, "b": {1: length}})
    assert "batch must be the constant 4" in failure.what
    assert "length must be in 0..10, not 0..64" in failure.what
    assert "a.reshape(4, 6)" in failure.at
    assert "if b.shape[1] > 10:" in failure.at
    capture(function, (x, y), dynamic_shapes=corrected(failure))


def test_what_holds_is_kept_in_the_suggestion():
    def function(pair, *, mask):
        return pair["left"].reshape(4, 6) + pair["right"][1].sum() + mask.sum()

    with pytest.raises(SymbolicShapeError) as failure:
        capture(
            function,
            ({"left": x, "right": (3, y)},),
            {"mask": torch.ones(6)},
            dynamic_shapes={
                "pair": {"left": {0: batch}, "right": (None, {0: Dim.AUTO})},
                "mask": {0: 2 * length},
            },
        )
    assert "{'pair': {'left': {0: batch}, 'right': [None, {0: Dim.AUTO}]}, 'mask': {0: 2*length}}" in failure.value.fix
    assert "length = Dim('length', max=64)" in failure.value.fix


def test_a_dynamic_hint_insists():
    failure = failure_of(lambda a: a.reshape(4, 6), (x,), {"a": {0: Dim.DYNAMIC}})
    assert "a.shape[0] must be the constant 4" in failure.what
    capture(lambda a: a.reshape(4, 6), (x,), dynamic_shapes=corrected(failure))


def test_automatic_dimensions_never_contradict():
    capture(lambda a: a.reshape(4, 6), (x,), dynamic_shapes={"a": {0: Dim.AUTO, 1: Dim.AUTO}})


def test_a_declared_dim_may_be_tied_to_an_automatic_one():
    program = capture(lambda a, b: a + b, (x, y), dynamic_shapes={"a": {0: batch}, "b": {0: Dim.AUTO}})
    assert interpret(program, torch.ones(7, 6), torch.ones(7, 6)).shape == (7, 6)


def test_guards_that_hold_for_the_whole_range_do_not_contradict():
    def function(a):
        return a * 2 if a.shape[1] <= 64 else a

    capture(function, (x,), dynamic_shapes={"a": {1: length}})


def test_a_dim_of_one_size_is_no_contradiction():
    four = Dim("four", min=4, max=4)
    capture(lambda a: a.reshape(4, 3, 2), (x,), dynamic_shapes={"a": {0: four}})


def test_coincidences_are_left_to_the_calls():
    def function(a):
        return a * 2 if a.shape[0] == 7 else a + 1

    program = capture(function, (x,), dynamic_shapes={"a": {0: batch}})
    assert interpret(program, torch.ones(5, 6)).shape == (5, 6)
    with pytest.raises(ValueError, match="does not hold for batch = 7"):
        interpret(program, torch.ones(7, 6))
