"""``aot_export_module`` and ``aot_export_joint_simple``: flat graphs, signatures, and what they refuse."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from precast._torch_compat import named_source
from precast.autograd import aot_export_joint_simple, aot_export_module
from precast.graph.nodes import placeholders_of, value_of
from precast.trace.capture import Dim


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = torch.full((4,), 2.0)

    def forward(self, x):
        y = self.norm(self.linear(x)) * self.scale
        return y.square().sum(), y.detach()


class Of(nn.Module):
    """A module with one parameter around a plain function."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.function = function

    def forward(self, *args):
        return self.function(self.weight, *args)


def state_of(module, signature):
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return [tensors[name] for name in (*signature.parameters, *signature.buffers)]


def test_a_joint_graph_returns_updated_buffers_outputs_and_gradients():
    module, x = Normalized(), torch.randn(5, 3)
    graph, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    names = [node.name for node in graph.graph.output_node().args[0]]
    results = dict(zip(names, graph(*state_of(module, signature), x), strict=True))
    loss, _ = module(x)
    loss.backward()
    backward = signature.backward_signature
    assert torch.equal(results[backward.loss_output], loss)
    for result, name in backward.gradients_to_parameters.items():
        torch.testing.assert_close(results[result], module.get_parameter(name).grad)
    for result, name in signature.buffers_to_mutate.items():
        torch.testing.assert_close(results[result], module.get_buffer(name))


def test_parameters_come_first_then_buffers_then_inputs():
    graph, signature = aot_export_module(Normalized(), (torch.randn(5, 3),), trace_joint=False)
    assert signature.parameters == ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert signature.buffers == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    assert placeholders == [*signature.inputs_to_parameters, *signature.inputs_to_buffers, *signature.user_inputs]
    assert signature.backward_signature is None


def test_a_tensor_that_the_module_refers_to_is_an_attribute_of_the_graph():
    graph, _ = aot_export_module(Normalized(), (torch.randn(5, 3),), trace_joint=False)
    assert [buffer.tolist() for buffer in graph.buffers()] == [[2.0] * 4]


def test_an_updated_user_input_is_an_extra_output():
    module, x = Of(lambda weight, x: x.add_(1) * weight.detach()), torch.zeros(3)
    graph, signature = aot_export_module(module, (x,), trace_joint=False)
    ((result, name),) = signature.user_inputs_to_mutate.items()
    assert name == signature.user_inputs[0]
    assert result == graph.graph.output_node().args[0][0].name
    assert x.tolist() == [0, 0, 0], "tracing left the example alone"


def test_gradients_of_user_inputs_are_named():
    x = torch.randn(3, requires_grad=True)
    _, signature = aot_export_module(
        Of(lambda weight, x: (x * weight).sum()), (x,), trace_joint=True, output_loss_index=0
    )
    assert list(signature.backward_signature.gradients_to_user_inputs.values()) == signature.user_inputs


def test_one_graph_with_dynamic_shapes_serves_other_sizes():
    module = Of(lambda weight, x: (x * weight).sum(0))
    dims = {"args": ({0: Dim("batch", min=1)},)}
    graph, _ = aot_export_module(module, (torch.randn(5, 3),), trace_joint=False, dynamic_shapes=dims)
    assert torch.equal(graph(module.weight, torch.ones(7, 3))[0], torch.full((3,), 7.0))


def test_keyword_arguments_are_user_inputs():
    class Scaled(nn.Module):
        def forward(self, x, *, factor):
            return x * factor

    graph, signature = aot_export_module(
        Scaled(), (torch.ones(2),), kwargs={"factor": torch.ones(2)}, trace_joint=False
    )
    assert len(signature.user_inputs) == 2
    assert graph(torch.full((2,), 3.0), torch.full((2,), 2.0))[0].tolist() == [6, 6]


REFUSED_MODULES = {
    "no loss index": (lambda w, x: (x * w).sum(), {"output_loss_index": None}, "which output is the loss"),
    "loss not scalar": (lambda w, x: x * w, {}, r"has shape \(3,\)"),
    "loss without gradient": (lambda w, x: x.sum(), {}, "does not require grad"),
    "another output requires grad": (lambda w, x: ((x * w).sum(), x * w), {}, r"with \.detach\(\)"),
    "output is no tensor": (lambda w, x: ((x * w).sum(), 3), {}, "Output 1 of the module is not a tensor"),
    "output is nested": (lambda w, x: ((x * w).sum(), [x]), {}, "nested structure"),
    "metadata of an input": (lambda w, x: (x.unsqueeze_(0) * w).sum(), {}, "changes the sizes"),
    "pre-dispatch joint": (lambda w, x: (x * w).sum(), {"pre_dispatch": True}, "before dispatch"),
}


@pytest.mark.parametrize("case", REFUSED_MODULES)
def test_a_module_that_a_joint_graph_cannot_express_is_refused(case):
    function, options, message = REFUSED_MODULES[case]
    with pytest.raises(RuntimeError, match=message):
        aot_export_module(Of(function), (torch.randn(3),), trace_joint=True, **({"output_loss_index": 0} | options))


@pytest.mark.parametrize("change", [torch.Tensor.t_, lambda x: x.unsqueeze_(0)])
def test_a_forward_that_lays_an_input_out_anew_is_refused(change):
    with pytest.raises(RuntimeError, match="changes the sizes"):
        aot_export_module(Of(lambda w, x: change(x) * 2), (torch.randn(2, 3),), trace_joint=False)


def test_writing_into_an_input_that_requires_grad_is_refused():
    x = torch.randn(3, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="which requires grad"):
        aot_export_module(Of(lambda w, x: (x.mul_(2) * w).sum()), (x,), trace_joint=True, output_loss_index=0)


def test_an_unused_parameter_is_named():
    module = Of(lambda weight, x: (x * weight).sum())
    module.unused = nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match="parameter unused gets no gradient"):
        aot_export_module(module, (torch.randn(3),), trace_joint=True, output_loss_index=0)


def test_a_simple_joint_graph_takes_tangents():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    graph = aot_export_joint_simple(lambda x, y: (x.sin() * y,), (x, y), trace_joint=True)
    tangent = torch.randn(3)
    output, gradient, none = graph(x, y, tangent)
    assert torch.equal(output, x.sin() * y)
    torch.testing.assert_close(gradient, tangent * y * x.cos())
    assert none is None


def test_a_simple_graph_without_gradients_is_the_forward():
    graph = aot_export_joint_simple(lambda x: [x + 1, x * 2], (torch.zeros(2),), trace_joint=False)
    assert [result.tolist() for result in graph(torch.ones(2))] == [[2, 2], [2, 2]]


REFUSED_FUNCTIONS = {
    "input mutation": (lambda x: (x.add_(1).clone(),), (torch.ones(2),), "writes into its input"),
    "aliased output": (lambda x: (x.view(-1),), (torch.ones(2),), "a view of an input"),
    "returned input": (lambda x: (x,), (torch.ones(2),), "the input object itself"),
    "nested inputs": (lambda x: (x[0] + 1,), ([torch.ones(2)],), "inputs are nested"),
    "nested outputs": (lambda x: ([x + 1],), (torch.ones(2),), "nested structure"),
    "bare output": (lambda x: x + 1, (torch.ones(2),), "bare tensor"),
    "bare input": (lambda x: (x + 1,), torch.ones(2), "not a bare leaf"),
}


@pytest.mark.parametrize("case", REFUSED_FUNCTIONS)
def test_a_function_that_a_simple_graph_cannot_express_is_refused(case):
    function, args, message = REFUSED_FUNCTIONS[case]
    with pytest.raises(RuntimeError, match=message):
        aot_export_joint_simple(function, args, trace_joint=False)


def fake(mode, tensor, kind=DimDynamic.DYNAMIC):
    sizes = StatelessSymbolicContext(dynamic_sizes=[kind, *[DimDynamic.STATIC] * (tensor.dim() - 1)])
    return mode.from_tensor(tensor, source=named_source("x"), symbolic_context=sizes)


@pytest.mark.parametrize("kind", [DimDynamic.DYNAMIC, DimDynamic.UNBACKED])
def test_symbolic_and_unknown_sizes_of_fake_inputs_stay_symbols(kind):
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    model = nn.Linear(5, 3)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            y = self.model(x)
            return y.mean(), y.detach()

    x = torch.randn(7, 5)
    graph, _ = aot_export_module(Loss(), (fake(mode, x, kind),), trace_joint=True, output_loss_index=0)
    assert str(value_of(placeholders_of(graph.graph)[-1]).shape[0])[0] in "su"
    loss, _, *gradients = graph(model.weight, model.bias, x)
    expected = model(x).mean()
    expected.backward()
    torch.testing.assert_close((loss, *gradients), (expected, model.weight.grad, model.bias.grad))

    simple = aot_export_joint_simple(lambda x: (x.sin() * 2,), [fake(mode, x, kind)], trace_joint=False)
    torch.testing.assert_close(simple(x)[0], x.sin() * 2)
    joint = aot_export_joint_simple(
        lambda x, size: (x.sin() / size,),
        [fake(mode, x.requires_grad_(), kind), mode.shape_env.create_unbacked_symint()],
        trace_joint=True,
    )
    torch.testing.assert_close(joint(x, 7, torch.ones(7, 5))[1], x.cos() / 7)


def test_guards_on_sizes_are_those_of_the_callers_environment():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = [fake(mode, torch.randn(4, 5)), fake(mode, torch.randn(4, 5))]
    aot_export_joint_simple(lambda x, y: (x + y,), inputs, trace_joint=False)
    assert mode.shape_env.format_guards().count("Eq") <= 1


def test_a_module_of_fake_parameters_is_exported():
    with FakeTensorMode():
        model, x = nn.Linear(2, 3), torch.ones(4, 2)
    graph, signature = aot_export_module(model, (x,), trace_joint=False)
    assert signature.parameters == ["weight", "bias"]
    assert graph(torch.ones(3, 2), torch.ones(3), torch.ones(4, 2))[0].tolist() == [[3.0] * 3] * 4


def test_fake_inputs_of_two_modes_are_refused():
    inputs = [FakeTensorMode().from_tensor(torch.ones(2)) for _ in range(2)]
    with pytest.raises(ValueError, match="different modes"):
        aot_export_joint_simple(lambda x, y: (x + y,), inputs, trace_joint=False)


@pytest.mark.parametrize("other", [lambda x: x, lambda x: x.view(3, 1)[:, 0]])
def test_writing_into_an_input_that_shares_memory_with_another_is_refused(other):
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match="shares memory"):
        aot_export_module(Of(lambda w, x, y: (x.mul_(2) + y,)), (x, other(x)), trace_joint=False)


def test_a_joint_graph_of_inputs_without_gradients_has_none():
    joint = aot_export_joint_simple(lambda x: (x * 2,), [torch.ones(3)], trace_joint=True)
    assert joint(torch.ones(3))[1] is None
