"""Side effects happen once a call, in the program's order, and leave no trace in what the caller sees."""

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from precast.autograd import aot_function, min_cut_rematerialization_partition
from precast.compilers import nop

notes = []
library = torch.library.Library("precast_effects", "FRAGMENT")
library.define("note(Tensor x, str what) -> ()")
library.impl("note", lambda x, what: notes.append(what), "CompositeExplicitAutograd")
torch.library.register_fake("precast_effects::note", lambda x, what: None, lib=library)
note = torch.ops.precast_effects.note.default


def program(x):
    y = x.sin()
    note(y, "first")
    z = y * 2
    note(z, "second")
    note(x, "third")
    return z


@pytest.fixture(params=["registered", "plain"], autouse=True)
def registered(request):
    notes.clear()
    if request.param == "registered":
        handle = _register_effectful_op(note, _EffectType.ORDERED)
        yield
        handle.destroy()
    else:
        yield


@pytest.mark.parametrize("needs_grad", [True, False])
def test_effects_happen_in_order_at_every_call(needs_grad):
    compiled = aot_function(program, nop)
    x = torch.ones(3, requires_grad=needs_grad)
    for _ in range(2):
        notes.clear()
        result = compiled(x)
        assert notes == ["first", "second", "third"]
    assert torch.equal(result, x.sin() * 2)


def test_compiling_itself_has_no_effect():
    aot_function(program, nop, inference_compiler=lambda graph, _: lambda *inputs: [inputs[0]])(torch.ones(3))
    assert notes == []


def test_the_backward_does_not_repeat_effects():
    compiled = aot_function(program, nop, partition_fn=min_cut_rematerialization_partition)
    x = torch.ones(3, requires_grad=True)
    output = compiled(x)
    notes.clear()
    output.sum().backward()
    assert notes == []
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
