"""``module()``: runs like the original, applies mutations, checks its calls."""

import copy

import pytest
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from precast.errors import FrozenModeError
from precast.export import Dim, export
from tests.export.models import Everything, Function, Scale

FLAG = {"flag": torch.tensor(True), "power": 3.0}
BATCH = {"x": {0: Dim("batch", min=2, max=9)}, "flag": None, "power": None}


def exported_and_eager():
    module = Everything()
    exported = export(module, (torch.ones(3, 4),), FLAG, dynamic_shapes=BATCH)
    return exported, copy.deepcopy(module)


def test_outputs_and_buffers_are_eagers():
    exported, eager = exported_and_eager()
    module = exported.module()
    for batch in (2, 5, 9):
        x = torch.randn(batch, 4)
        torch.manual_seed(0)
        expected = eager(x, **FLAG)
        torch.manual_seed(0)
        torch.testing.assert_close(module(x, **FLAG), expected, rtol=0, atol=0)
    torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))


def test_it_can_be_trained():
    exported, eager = exported_and_eager()
    module = exported.module()
    for each in (module, eager):
        torch.manual_seed(0)
        each(torch.ones(4, 4), **FLAG)["y"].sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_user_inputs_are_written():
    x = torch.zeros(3)
    export(Scale(in_place=True), (torch.ones(3),)).module()(x)
    assert x.tolist() == [1, 1, 1]


def test_an_output_that_is_a_written_input_is_that_input():
    x = torch.zeros(3)
    assert export(Function(lambda x: x.add_(1)), (torch.ones(3),)).module()(x) is x


def test_swapped_inputs():
    def swap(a, b):
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    a, b = torch.zeros(2), torch.ones(2)
    export(Function(swap), (torch.zeros(2), torch.ones(2))).module()(a, b)
    assert (a.tolist(), b.tolist()) == ([1, 1], [0, 0])


def test_an_update_read_from_another_updated_input():
    def shift(a, b):
        a.copy_(b)
        b.zero_()

    a, b = torch.zeros(2), torch.ones(2)
    export(Function(shift), (torch.zeros(2), torch.ones(2))).module()(a, b)
    assert (a.tolist(), b.tolist()) == ([1, 1], [0, 0])


def test_parameters_written_under_no_grad():
    class Decaying(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    module = export(Decaying(), (torch.ones(2),)).module()
    assert module(torch.ones(2)).tolist() == [0.5, 0.5]
    assert module.weight.tolist() == [0.5, 0.5]


def test_state_dict_holds_what_the_originals_did():
    exported, eager = exported_and_eager()
    assert set(exported.module().state_dict()) == set(eager.state_dict())
    assert set(copy.deepcopy(exported.module()).state_dict()) == set(eager.state_dict())


def test_a_copy_still_checks_its_calls():
    module = copy.deepcopy(export(Scale(), (torch.ones(3),)).module())
    assert module(torch.ones(3)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="shape"):
        module(torch.ones(4))


def test_keywords_in_any_order_and_positions_by_name():
    exported, _ = exported_and_eager()
    module = exported.module()
    module(power=3.0, flag=torch.tensor(True), x=torch.ones(3, 4))
    module(torch.ones(3, 4), torch.tensor(True), 3.0)


def test_keywords_that_are_no_python_names():
    class Keywords(torch.nn.Module):
        def forward(self, **inputs):
            return inputs["a-b"] + inputs["class"]

    module = export(Keywords(), (), {"a-b": torch.ones(2), "class": torch.ones(2)}).module()
    assert module(**{"class": torch.zeros(2), "a-b": torch.ones(2)}).tolist() == [1, 1]


def test_immutable_containers_count_as_their_plain_forms():
    module = export(Function(lambda pair: pair["a"][0] + 1), ({"a": [torch.ones(2)]},)).module()
    assert module(immutable_dict({"a": immutable_list([torch.zeros(2)])})).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: m(), "Missing the arguments 'x', 'flag', 'power'"),
        (lambda m: m(torch.ones(3, 4), torch.ones(1), **FLAG), "twice|positional"),
        (lambda m: m([torch.ones(3, 4)], **FLAG), r"expected .*\*.* got"),
        (lambda m: m(torch.ones(3, 4).double(), **FLAG), r"x is torch.float64"),
        (lambda m: m(torch.ones(4), **FLAG), r"x has 1 dimensions"),
        (lambda m: m(torch.ones(3, 5), **FLAG), r"x\.shape\[1\] is 5.*captured with 4"),
        (lambda m: m(torch.ones(10, 4), **FLAG), r"x\.shape\[0\] is 10, outside of batch in 2\.\.9"),
        (lambda m: m(torch.ones(3, 4), flag=torch.tensor(True), power=2.0), r"power is 2.0"),
        (lambda m: m(torch.ones(3, 4), flag=True, power=3.0), r"flag is True"),
    ],
)
def test_calls_that_do_not_fit(call, told):
    exported, _ = exported_and_eager()
    with pytest.raises(ValueError, match=told):
        call(exported.module())


def test_equal_dims_must_be_equal():
    batch = Dim("batch")
    module = export(
        Function(torch.add), (torch.ones(3), torch.ones(3)), dynamic_shapes={"args": ({0: batch}, {0: batch})}
    ).module()
    with pytest.raises(ValueError, match=r"args_1\.shape\[0\] is 5, but the other sizes make it 4"):
        module(torch.ones(4), torch.ones(5))


@pytest.mark.parametrize("method", ["train", "eval"])
def test_modes_cannot_be_switched(method):
    with pytest.raises(FrozenModeError, match=f"has no {method}"):
        getattr(export(Scale(), (torch.ones(3),)).module(), method)()


def test_exporting_again_gives_an_equal_program():
    exported, _ = exported_and_eager()
    again = export(exported.module(), (torch.ones(3, 4),), FLAG, dynamic_shapes=BATCH)
    assert str(again) == str(exported)


def test_exporting_again_keeps_fixed_sizes_fixed():
    module = export(Scale(), (torch.ones(3, 3),)).module()
    with pytest.raises((ValueError, RuntimeError)):
        export(module, (torch.ones(3, 3),), dynamic_shapes=({0: Dim("batch")},))


def test_hooks_of_state_dicts_are_left_alone():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model._register_state_dict_hook(lambda module, state, prefix, local: {f"renamed.{k}": v for k, v in state.items()})
    exported = export(model, (torch.ones(1, 2),))
    assert sorted(exported.state_dict) == ["0.bias", "0.weight"]
