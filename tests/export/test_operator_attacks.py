"""Operators that programs from files may call stay inside their tensors, whatever arguments a file gives them."""

import io
import json
import signal
import warnings

import pytest
import torch
from torch import fx

from precast.errors import ArtifactError, ExportError, InputValueError
from precast.export import export, load, save
from precast.ops.checked_calls import RULES, checked, is_checked, with_checked_calls
from precast.ops.operators_in_files import may_be_called_by_files
from tests.export.damage import members_of, with_program
from tests.export.operator_attacks import as_from_a_file, attack, in_child, main, recorded_calls

aten = torch.ops.aten


@pytest.fixture(scope="module")
def calls():
    """Real calls of the operators that are checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recorded_calls(is_checked, most=2)


@pytest.mark.slow
def test_real_calls_pass_the_checks(calls):
    assert len(calls) > 25
    refused = []
    for kept in calls.values():
        for func, args, kwargs in kept:
            try:
                as_from_a_file(func, args, kwargs)
            except InputValueError:
                refused.append((func, args, kwargs))
    assert refused == []


@pytest.mark.slow
def test_calls_that_lie_do_not_reach_outside(calls):
    for func, kept in calls.items():
        code = in_child(lambda kept=kept: attack(kept, as_from_a_file, times=15, seed=1), seconds=30, gigabytes=16)
        assert code in (0, -signal.SIGALRM), f"{func} was killed: {code}"


@pytest.mark.slow
def test_no_operator_that_files_may_call_reaches_outside():
    assert main(times=150, seed=2) == 0


def test_every_rule_is_about_an_operator_that_files_may_call():
    assert [name for name in RULES if not may_be_called_by_files("aten", name)] == []


def test_indices_of_pixels_that_are_not_there_are_refused_when_they_are_used():
    grad, x = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4)

    class Gradient(torch.nn.Module):
        def forward(self, grad, x, indices):
            return aten.max_pool2d_with_indices_backward(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)

    exported = export(Gradient(), (grad, x, torch.zeros(1, 1, 2, 2, dtype=torch.int64)))
    file = io.BytesIO()
    save(exported, file)
    module = load(file).module()
    right = torch.tensor([[[[0, 3], [8, 15]]]])
    torch.testing.assert_close(module(grad, x, right), Gradient()(grad, x, right))
    for wrong in (16, -1, 2**40, -(2**62)):
        with pytest.raises(InputValueError, match="outside of its tensors"):
            module(grad, x, torch.full((1, 1, 2, 2), wrong))


def graph_module(root, call):
    graph = fx.Graph()
    graph.output(call(graph, graph.placeholder("x")))
    return fx.GraphModule(root, graph)


def test_branches_of_control_flow_are_checked_too():
    op = aten._softmax_backward_data.default
    branch = graph_module({}, lambda graph, x: graph.call_function(op, (x, x, 5, torch.float32)))
    outer = graph_module({"branch": branch}, lambda graph, x: graph.call_module("branch", (x,)))
    with pytest.raises(InputValueError):
        with_checked_calls(outer)(torch.ones(2, 2))
    assert branch.graph.find_nodes(op="call_function", target=op), "what was given stays as it is"


def test_checked_operators_can_be_traced():
    op = checked(aten._softmax_backward_data.default)
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 2)
        assert op(x, x, 1, torch.float32).shape == (2, 2)


REFUSED = [
    "aten._reshape_alias.default", "aten.from_file.default", "aten.save.default", "aten.set.source_Tensor",
    "aten._sparse_coo_tensor_unsafe.default", "aten.resize.default", "quantized.linear.default",
    "aten.to_sparse.default", "aten._cudnn_rnn.default", "mkldnn._linear_pointwise.default", "prim.device.default",
    "inductor.resize_storage_bytes_.default", "aten._nested_view_from_buffer.default",
    "profiler._record_function_enter.default", "aten._embedding_bag_sparse_backward.default",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_are_not_on_the_list_are_refused(name):
    file = io.BytesIO()
    save(export(torch.nn.ReLU(), (torch.ones(2),)), file)
    program = members_of(file.getvalue())["program.json"].replace(b"aten.relu.default", name.encode())
    with pytest.raises(ArtifactError, match="might reach beyond"):
        load(io.BytesIO(with_program(file.getvalue(), json.loads(program))))


def test_what_could_not_be_loaded_is_not_saved():
    class Alias(torch.nn.Module):
        def forward(self, x):
            return aten._reshape_alias(x, [2], [1]) + 1

    with pytest.raises(ExportError, match="cannot be saved"):
        save(export(Alias(), (torch.ones(2),)), io.BytesIO())
