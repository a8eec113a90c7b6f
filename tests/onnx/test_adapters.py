"""The steps between the user's calls and the model's inputs and outputs, one by one."""

import inspect

import pytest
import torch
from torch import nn

from precast.errors import InputTypeError, InputValueError
from precast.onnx import export
from precast.onnx.adapters import (
    bind,
    drop_constants,
    flatten,
    keep_tensors,
    lift_state,
    merge_keywords,
    order,
    put_back_constants,
)


def forward(x, y=None, *rest, scale=1.0, **options):
    return x


SIGNATURE = inspect.signature(forward)


def test_bind_fills_in_defaults():
    assert bind(SIGNATURE, (1,), {}) == {"x": 1, "y": None, "rest": (), "scale": 1.0, "options": {}}


def test_bind_tells_what_does_not_fit():
    with pytest.raises(InputTypeError, match="missing a required argument: 'x'"):
        bind(SIGNATURE, (), {})


def test_merge_keywords_numbers_rest_and_unpacks_options():
    merged = merge_keywords(SIGNATURE, bind(SIGNATURE, (1, 2, 3, 4), {"bias": 5}))
    assert merged == {"x": 1, "y": 2, "rest[0]": 3, "rest[1]": 4, "scale": 1.0, "bias": 5}


def test_flatten_names_leaves_by_their_path():
    assert flatten({"x": {"a": 1, "b": [2, 3]}, "y": None}) == {"x['a']": 1, "x['b'][0]": 2, "x['b'][1]": 3, "y": None}


def test_drop_constants_keeps_tensors():
    x = torch.ones(1)
    assert drop_constants({"x": x, "flag": True}, {"flag": True}) == {"x": x}


@pytest.mark.parametrize("flag", [False, 1, torch.ones(1)])
def test_drop_constants_refuses_another_constant(flag):
    with pytest.raises(InputValueError, match=r"flag is .* exported with True"):
        drop_constants({"flag": flag}, {"flag": True})


def test_drop_constants_refuses_a_number_for_a_tensor():
    with pytest.raises(InputValueError, match="exported with a tensor there"):
        drop_constants({"x": 3}, {})


def test_order_is_the_models():
    assert order({"a": 1, "b": 2}, ["b", "a"]) == [2, 1]


def test_order_names_what_is_missing_and_what_is_too_much():
    with pytest.raises(InputValueError, match="missing b; not expected c"):
        order({"a": 1, "c": 2}, ["a", "b"])


def test_weights_come_behind_inputs():
    assert lift_state([1, 2], {"w": 3}) == [1, 2, 3]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, flag=True, *, extra=None):
        return x["a"] * self.weight - (0 if extra is None else extra) + x["b"]


@pytest.fixture(scope="module")
def program():
    return export(Pair(), ({"a": torch.ones(2), "b": torch.zeros(2)},), kwargs={"extra": torch.ones(2)})


def test_calls_may_spell_arguments_as_the_signature_allows(program):
    x, extra = {"b": torch.zeros(2), "a": torch.full((2,), 5.0)}, torch.ones(2)
    for result in (
        program.call_as_model(x, True, extra=extra),
        program.call_as_model(extra=extra, x=x),
        program.call_as_model(x, flag=True, extra=extra),
    ):
        assert result.tolist() == [4, 4]


def test_adapted_inputs_are_in_the_order_of_the_graph(program):
    a, b, extra = torch.full((2,), 1.0), torch.full((2,), 2.0), torch.full((2,), 3.0)
    inputs = program.adapt_torch_inputs({"b": b, "a": a}, extra=extra)
    assert [tensor[0].item() for tensor in inputs] == [1, 2, 3]
    assert [value.name for value in program.model.graph.inputs] == ["x_a", "x_b", "extra"]


def test_state_can_be_lifted_behind_the_inputs(program):
    inputs = program.adapt_torch_inputs(
        {"a": torch.ones(2), "b": torch.ones(2)}, extra=torch.ones(2), include_state=True
    )
    assert len(inputs) == 4
    assert isinstance(inputs[3], nn.Parameter)


def test_wrong_sizes_are_refused(program):
    with pytest.raises(InputValueError, match=r"extra\.shape"):
        program.call_as_model({"a": torch.ones(2), "b": torch.ones(2)}, extra=torch.ones(3))


def test_outputs_lose_and_regain_their_constants():
    program = export(lambda x: [x + 1, None, 3], (torch.ones(1),))
    constants = program.output_adapter.constants
    assert put_back_constants(["computed"], constants) == ["computed", None, 3]
    assert keep_tensors(["computed", None, 3], constants) == ["computed"]
    assert program.adapt_torch_outputs([torch.zeros(1), None, 3]) == [torch.zeros(1)]
