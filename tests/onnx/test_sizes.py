"""Sizes in the user's words; one name never means two sizes."""

import warnings
from typing import Any

import pytest
import sympy
import torch

from precast.errors import InputValueError
from precast.graph.sizes import SizeRange, SizeSymbol, SymbolicSizes
from precast.onnx import export
from precast.onnx.translate import SizeNames
from precast.trace.capture import Dim

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


AUTO, DYNAMIC = torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC


@pytest.mark.parametrize("sizes", [AUTO, DYNAMIC, "rows", Dim("rows", min=1)], ids=str)
def test_a_size_of_one_that_is_broadcast_is_one(sizes: Any):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if sizes is not AUTO else "error")
        program = export(
            lambda x, y: x + y, (torch.randn(1, 4), torch.randn(3, 4)), dynamic_shapes=({0: sizes}, {0: AUTO})
        )
    assert [value.shape[0] == 1 for value in program.model.graph.inputs] == [True, False]
    call = torch.randn(1, 4), torch.randn(5, 4)
    torch.testing.assert_close(program.call_as_model(*call), call[0] + call[1])


def test_sizes_that_depend_on_each_other_are_checked_at_others():
    def run(x, past, mask):
        return x.sum() + torch.cat([past, x]) * mask

    program = export(
        run, (torch.randn(2), torch.randn(5), torch.ones(7)), dynamic_shapes=({0: "new"}, {0: "past"}, {0: "all"})
    )
    assert "new=" in str(program.verification)


class Recent:
    def __init__(self, keys, values):
        self.keys, self.values, self.name = keys, values, "recent"


@pytest.mark.parametrize(
    "described",
    [
        {"dynamic_shapes": (None, [{0: "past"}, {0: "past"}])},
        {"dynamic_shapes": (None, {"keys": {0: "past"}, "values": {0: "past"}})},
        {"dynamic_axes": {"k": {0: "past"}, "v": {0: "past"}}, "input_names": ["x", "k", "v"]},
    ],
    ids=["a list", "attributes", "axes"],
)
def test_sizes_of_objects(described: dict[str, Any]):
    def run(x, recent):
        return torch.cat([recent.keys, x]), torch.cat([recent.values, x * 2])

    program = export(run, (torch.randn(1, 2), Recent(torch.randn(3, 2), torch.randn(3, 2))), **described)
    assert [str(value.shape[0]) for value in program.model.graph.inputs] == ["1", "past", "past"]
    call = torch.randn(1, 2), Recent(torch.randn(6, 2), torch.randn(6, 2))
    torch.testing.assert_close(program.call_as_model(*call), run(*call))


def test_a_list_for_an_object_has_an_entry_for_each_tensor():
    with pytest.raises(InputValueError, match="has 1 entries for 2 tensors"):
        export(lambda recent: recent.keys, (Recent(torch.ones(3), torch.ones(3)),), dynamic_shapes=([{0: "past"}],))


@pytest.mark.parametrize("sizes", [AUTO, "rows"])
@pytest.mark.filterwarnings("ignore")
def test_a_size_of_one_that_is_taken_for_a_number_is_the_examples(sizes: Any):
    """Not the number that it is traced as, with which the program would refuse its own example."""
    program = export(lambda x: x * int(x.shape[0]), (torch.ones(1, 4),), dynamic_shapes=({0: sizes},))
    assert list(program.model.graph.inputs[0].shape) == [1, 4]
    torch.testing.assert_close(program.call_as_model(torch.ones(1, 4)), torch.ones(1, 4))
