"""Programs exported again: what they need of a call, the new program needs, too."""

import pytest
import torch

from precast.errors import CallMismatchError, SymbolicShapeError
from precast.export import Dim, export
from tests.export.models import Function

X = torch.randn(4, 3)


def not_five(x):
    torch._check(x.shape[0] != 5)
    return x * 2 if x.shape[0] <= 64 else x * 3


@pytest.fixture(scope="module")
def again():
    first = export(Function(not_five), (X,), dynamic_shapes=({0: Dim("n", min=2, max=64)},))
    return export(first.module(), (X,), dynamic_shapes=({0: Dim.AUTO},)).module()


def test_the_new_program_computes_the_same(again):
    torch.testing.assert_close(again(X[:3]), X[:3] * 2)


@pytest.mark.parametrize("rows", [5, 65])
def test_conditions_and_ranges_are_kept(again, rows):
    with pytest.raises(CallMismatchError):
        again(torch.ones(rows, 3))


def test_a_wider_range_is_refused():
    first = export(Function(not_five), (X,), dynamic_shapes=({0: Dim("n", min=2, max=64)},))
    with pytest.raises(SymbolicShapeError, match="max=64"):
        export(first.module(), (X,), dynamic_shapes=({0: Dim("m")},))


def test_a_multiple_stays_one():
    shapes = ({0: 2 * Dim("n", min=2, max=8)},)
    first = export(Function(lambda x: x.reshape(2, -1)), (X,), dynamic_shapes=shapes)
    module = export(first.module(), (X,), dynamic_shapes=({0: Dim.AUTO},)).module()
    assert module(torch.ones(6, 3)).shape == (2, 9)
    for rows in (5, 18):
        with pytest.raises(CallMismatchError):
            module(torch.ones(rows, 3))


def test_dtypes_are_checked_with_dynamic_sizes():
    module = export(Function(lambda x: x * 2), (X,), dynamic_shapes=({0: Dim.AUTO},)).module()
    with pytest.raises(CallMismatchError, match="float64"):
        export(module, (X.double(),), dynamic_shapes=({0: Dim.AUTO},))


def test_numbers_stay_inputs():
    first = export(Function(lambda x, n: x * n), (X, 3), dynamic_shapes=(None, Dim.DYNAMIC))
    module = export(first.module(), (X, 3), dynamic_shapes=(None, Dim.DYNAMIC)).module()
    torch.testing.assert_close(module(X, 7), X * 7)
