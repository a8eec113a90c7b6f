"""What a program asks of its tensors beyond sizes and types is answered as in eager, whichever call comes first."""

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore::precast.GraphBreakWarning")


def plain():
    return torch.ones(4)


def leaf():
    return torch.ones(4, requires_grad=True)


def result():
    return leaf() * 1


def retained():
    tensor = result()
    tensor.retain_grad()
    return tensor


def hooked():
    tensor = leaf()
    tensor.register_hook(lambda gradient: gradient)
    return tensor


def tagged():
    tensor = plain()
    tensor.tag = 2
    return tensor


def inference():
    with torch.inference_mode():
        return torch.ones(4)


def view():
    return torch.ones(6)[2:]


def written():
    return plain().add_(0)


def twice():
    tensor = plain()
    return tensor, tensor


def two():
    return plain(), plain()


CASES = {
    "is_leaf": (lambda x: x * (1 if x.is_leaf else 2), [leaf, result]),
    "grad_fn": (lambda x: x * (1 if x.grad_fn is None else 2), [leaf, result]),
    "name of grad_fn": (lambda x: x * len(type(x.grad_fn).__name__), [leaf, result]),
    "storage_offset": (lambda x: x * (1 + x.storage_offset()), [plain, view]),
    "_base": (lambda x: x * (1 if x._base is None else 2), [plain, view]),
    "_is_view": (lambda x: x * (1 if x._is_view() else 2), [plain, view]),
    "is_inference": (lambda x: x * (1 if x.is_inference() else 2), [plain, inference]),
    "_version": (lambda x: x * (x._version + 1), [plain, written]),
    "retains_grad": (lambda x: x * (1 if x.retains_grad else 2), [result, retained]),
    "hooks": (lambda x: x * (1 if x._backward_hooks else 2), [leaf, hooked]),
    "attribute": (lambda x: x * getattr(x, "tag", 5), [plain, tagged]),
    "has an attribute": (lambda x: x * (1 if hasattr(x, "tag") else 2), [plain, tagged]),
    "parameter": (lambda x: x * (1 if isinstance(x, nn.Parameter) else 2), [leaf, lambda: nn.Parameter(plain())]),
    "identity": (lambda x, y: x * (1 if x is y else 2), [twice, two]),
    "members": (lambda x, y: x * len({x, y}), [twice, two]),
    "same memory": (lambda x, y: x * (1 if x.is_set_to(y) else 2), [two, lambda: (t := plain(), t.view(4))]),
    "copies": (lambda x: copy.deepcopy(x) * 2, [leaf, plain]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_answers_are_eagers(name, order):
    function, makers = CASES[name]
    compiled = precast.compile(function, backend="nop")
    for make in [*makers, makers[0]][::order]:
        given = make()
        arguments = given if isinstance(given, tuple) else (given,)
        torch.testing.assert_close(compiled(*arguments), function(*arguments))


def test_answers_that_a_graph_cannot_have_are_refused():
    compiled = aot_function(lambda x: x * (x.storage_offset() + 1), nop)
    assert compiled(plain()).sum() == 4
    with pytest.raises(CaptureError, match="asks for storage_offset"):
        compiled(view())


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return super().__torch_function__(torch.mul, types, (result, 2)) if func is torch.add else result


class Inheriting(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", [Doubling, Inheriting])
def test_subclasses_keep_their_functions_and_their_class(kind):
    def function(x):
        return torch.add(x, 1), x.view(-1)

    x = plain().as_subclass(kind)
    for ours, eager in zip(precast.compile(function, backend="interpret")(x), function(x), strict=True):
        assert type(ours) is type(eager) is kind
        assert torch.equal(ours.as_subclass(torch.Tensor), eager.as_subclass(torch.Tensor))
    with pytest.raises(CaptureError, match=f"a {kind.__name__}, a subclass"):
        aot_function(function, nop)(x)


class Negating(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.sin else result


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.sin.default else result


@pytest.mark.parametrize("mode", [Negating, Dispatching])
def test_modes_around_a_call_see_its_operations(mode):
    compiled = precast.compile(lambda x: torch.sin(x) + 1, backend="interpret")
    expected = [torch.sin(plain()) + 1, 1 - torch.sin(plain())]
    found = [compiled(plain())]
    with mode():
        found.append(compiled(plain()))
    torch.testing.assert_close([*found, compiled(plain())], [*expected, expected[0]])


@pytest.mark.parametrize("assign", ["set_", "data"])
def test_memory_that_two_tensors_come_to_share_is_shared_afterwards(assign):
    def function(x, y):
        if assign == "set_":
            x.set_(y)
        else:
            x.data = y
        return x.add_(1)

    x, y = torch.zeros(3), torch.arange(3.0)
    precast.compile(function, backend="interpret")(x, y)
    y.add_(10)
    assert torch.equal(x, y)
    with pytest.raises(CaptureError, match="the memory of another tensor"):
        aot_function(function, nop)(torch.zeros(3), torch.arange(3.0))
