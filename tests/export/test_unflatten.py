"""The module hierarchy, kept call signatures, and graphs from before autograd."""

import copy
import io
import warnings

import pytest
import torch

from precast.errors import FrozenModeError, InputTypeError, InputValueError
from precast.export import (
    ConstantArgument,
    Dim,
    TensorArgument,
    capture_pre_autograd_graph,
    export,
    load,
    pre_autograd,
    save,
    unflatten,
)


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x, *, factor=1):
        self.count.add_(1)
        return {"y": self.linear(x) * factor + self.count}


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)])

    def forward(self, x):
        y = self.inner(x, factor=2)["y"]
        for layer in self.layers:
            y = layer(y)
        return self.inner(y)["y"]


def exported(**options):
    return export(Outer(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("batch")},), **options)


def test_the_hierarchy_is_back():
    module = unflatten(exported())
    assert isinstance(module.get_submodule("layers.0"), torch.fx.GraphModule)
    assert isinstance(module.get_submodule("inner.linear"), torch.fx.GraphModule)
    assert set(module.state_dict()) == set(Outer().state_dict())


def test_it_computes_the_same_and_writes_its_buffers():
    program = exported()
    module, eager = unflatten(program), Outer()
    eager.load_state_dict(copy.deepcopy(program.state_dict))
    x = torch.randn(5, 4)
    torch.manual_seed(0)
    expected = eager(x)
    torch.manual_seed(0)
    torch.testing.assert_close(module(x), expected)
    assert torch.equal(module.inner.count, eager.inner.count)


def test_it_checks_its_calls():
    with pytest.raises(ValueError, match=r"shape\[1\] is 5"):
        unflatten(exported())(torch.ones(3, 5))


def test_signatures_of_chosen_submodules_are_kept():
    program = exported(preserve_module_call_signature=("inner",))
    first, second = (entry for entry in program.module_call_graph if entry.fqn.startswith("inner") and entry.signature)
    assert (first.fqn, second.fqn) == ("inner", "inner@1")
    assert first.signature.inputs == (TensorArgument("x"), ConstantArgument("", 2))
    assert first.signature.forward_arg_names == ("x", "factor")
    assert second.signature.outputs == (TensorArgument(program.graph_signature.user_outputs[0]),)
    assert not any("tracepoint" in node.name for node in program.graph.nodes)
    file = io.BytesIO()
    save(program, file)
    assert load(file).module_call_graph == program.module_call_graph


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, pair, *, factor=1):
        return {"y": self.linear(x) * factor, "sums": (x + pair[0], pair[1]["z"]), "factor": factor}


class Scaling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x):
        result = self.inner(x.sin(), [x, {"z": x * 2}], factor=3)
        return result["y"] + result["sums"][0] * result["sums"][1]


def test_a_submodule_with_a_kept_signature_is_called_by_it_and_can_be_exchanged():
    eager, x = Scaling(), torch.randn(3, 4)
    module = unflatten(export(eager, (x,), preserve_module_call_signature=("inner",)))
    torch.testing.assert_close(module(x), eager(x))
    assert module.inner(x, [x, {"z": x}], factor=3)["factor"] == 3
    other = Scaled()
    module.inner = eager.inner = other
    torch.testing.assert_close(module(x), eager(x))
    assert dict(module.named_parameters()).keys() == dict(eager.named_parameters()).keys()


def test_a_kept_signature_does_not_change_what_updates_buffers():
    program = exported(preserve_module_call_signature=("inner",))
    module = unflatten(program)
    module(torch.randn(5, 4))
    assert module.inner.count[0] == 2


def test_signatures_follow_decomposition():
    program = exported(preserve_module_call_signature=("inner",)).run_decompositions()
    names = {node.name for node in program.graph.nodes}
    signatures = [entry.signature for entry in program.module_call_graph if entry.fqn and entry.signature]
    assert len(signatures) == 2
    for signature in signatures:
        tensors = [a for a in (*signature.inputs, *signature.outputs) if isinstance(a, TensorArgument)]
        assert {argument.name for argument in tensors} <= names


def test_an_unknown_submodule_is_named():
    with pytest.raises(InputValueError, match="names 'outer'"):
        exported(preserve_module_call_signature=("outer",))


def pre_autograd_graph():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return capture_pre_autograd_graph(Outer(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("batch", max=8)},))


def test_before_autograd_ops_are_whole_and_write_in_place():
    names = [str(node.target) for node in pre_autograd_graph().graph.nodes if node.op == "call_function"]
    assert {"aten.dropout.default", "aten.linear.default", "aten.add_.Tensor"} <= set(names)


def test_before_autograd_the_module_holds_state_and_ranges():
    module = pre_autograd_graph()
    assert set(module.state_dict()) == set(Outer().state_dict())
    module(torch.ones(2, 4))
    assert module.inner.count[0] == 2
    (size_range,) = module.meta["range_constraints"].values()
    assert size_range.upper == 8
    with pytest.raises(ValueError, match="outside of batch"):
        module(torch.ones(9, 4))


@pytest.mark.parametrize("method", ["train", "eval"])
def test_before_autograd_modes_show_the_recipe(method):
    with pytest.raises(FrozenModeError, match=r"types\.MethodType"):
        getattr(pre_autograd_graph(), method)()


def test_before_autograd_only_modules():
    with pytest.raises(InputTypeError, match="given an object of type function"):
        capture_pre_autograd_graph(lambda x: x, (torch.ones(1),))


def test_it_warns_once():
    pre_autograd._warn_once.cache_clear()
    with pytest.warns(FutureWarning, match="way forward"):
        capture_pre_autograd_graph(torch.nn.ReLU(), (torch.ones(1),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture_pre_autograd_graph(torch.nn.ReLU(), (torch.ones(1),))


def test_a_kept_call_takes_sizes():
    class Rows(torch.nn.Module):
        def forward(self, x, n):
            return x.reshape(n, -1)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = Rows()

        def forward(self, x):
            return self.rows(x, x.shape[0]) + 1

    exported = export(
        Outer(), (torch.ones(4, 2, 3),), dynamic_shapes={"x": {0: Dim("n")}}, preserve_module_call_signature=("rows",)
    )
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(unflatten(exported)(x), x.reshape(7, 6) + 1)
