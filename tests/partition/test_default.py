"""The default partition saves what the backward reads."""

import copy
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._functorch import partitioners

from precast.errors import InputValueError
from precast.partition import default_partition, min_cut_rematerialization_partition
from precast.partition.classify import classify
from precast.partition.split import split, verify_halves
from tests.partition.joint_graphs import assert_halves_equal_joint, called, placeholder_names, saved_names, trace_joint


def layer(x, w):
    return F.dropout(torch.relu(F.layer_norm(x @ w, [w.shape[1]])), 0.5)


def partition(joint):
    return default_partition(joint.module, [], num_fwd_outputs=joint.num_fwd_outputs)


def test_halves_together_equal_the_joint_graph():
    joint = trace_joint(layer, torch.randn(4, 6), torch.randn(6, 8))
    assert_halves_equal_joint(joint, *partition(joint))


def test_forward_is_exactly_the_forward():
    joint = trace_joint(lambda x: x.sin().exp(), torch.randn(4))
    forward, backward = partition(joint)
    assert called(forward) == ["sin", "exp"]
    assert saved_names(forward, 1) == ["primals_1", "exp"]
    assert placeholder_names(backward) == ["primals_1", "exp", "tangents_1"]


def test_symbolic_sizes_come_first_in_the_backward_and_last_in_the_forward():
    joint = trace_joint(lambda x, w: x.sum() + w.sin().sum(), torch.randn(4, 6), torch.randn(6, 8), dynamic=True)
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    symbolic = [isinstance(node.meta["val"], torch.SymInt) for node in backward.graph.find_nodes(op="placeholder")]
    assert any(symbolic)
    assert symbolic == sorted(symbolic, reverse=True)
    saved = [node.meta["val"] for node in forward.graph.output_node().args[0][1:]]
    assert [isinstance(value, torch.SymInt) for value in saved] == sorted(symbolic[:-1])


def test_size_only_the_backward_reads_is_saved_instead_of_its_tensor():
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    big = graph.call_function(torch.ops.aten.sin.default, (x,))
    total = graph.call_function(torch.ops.aten.sum.default, (big,))
    size = graph.call_function(torch.ops.aten.sym_size.int, (big, 0))
    gradient = graph.call_function(torch.ops.aten.expand.default, (tangent, [size]))
    graph.output([total, gradient])
    size.meta["val"] = 4
    forward, backward = default_partition(fx.GraphModule({}, graph), [], num_fwd_outputs=1)
    assert saved_names(forward, 1) == ["sym_size_int"]
    assert placeholder_names(backward) == ["sym_size_int", "tangents_1"]


def test_random_draw_nobody_reads_stays_in_the_forward():
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    graph.call_function(torch.ops.aten.rand.default, ([2],))
    graph.output([graph.call_function(torch.ops.aten.sin.default, (x,)), tangent])
    forward, backward = default_partition(fx.GraphModule({}, graph), [], num_fwd_outputs=1)
    assert called(forward) == ["rand_default", "sin_default"]
    assert called(backward) == []


def test_random_draw_of_the_backward_stays_in_the_backward():
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    sine = graph.call_function(torch.ops.aten.sin.default, (x,))
    noise = graph.call_function(torch.ops.aten.rand_like.default, (sine,))
    graph.output([sine, graph.call_function(torch.ops.aten.mul.Tensor, (tangent, noise))])
    forward, backward = default_partition(fx.GraphModule({}, graph), [], num_fwd_outputs=1)
    assert called(forward) == ["sin_default"]
    assert called(backward) == ["rand_like_default", "mul_tensor"]


def test_input_without_gradient_gives_none():
    joint = trace_joint(lambda x, index: x[index], torch.randn(4), torch.tensor([1, 2]))
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert backward.graph.output_node().args[0][1] is None


def test_control_flow_carries_its_branches_over():
    joint = trace_joint(
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).exp(), torch.randn(4)
    )
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert [node.target for node in forward.graph.find_nodes(op="get_attr")]


def with_replayed_dropout(joint):
    return min_cut_rematerialization_partition(
        joint.module, [], num_fwd_outputs=joint.num_fwd_outputs, memory_budget=0.0
    )


@pytest.mark.parametrize("divide", [partition, with_replayed_dropout])
def test_code_of_both_halves_is_importable_python(tmp_path, divide):
    joint = trace_joint(layer, torch.randn(64, 64), torch.randn(64, 128))
    for name, half in zip(("forward", "backward"), divide(joint), strict=True):
        file = tmp_path / f"{name}.py"
        file.write_text("import torch\nfrom torch import device, inf, nan\n" + half.code)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert callable(module.forward)


def test_every_node_of_both_halves_keeps_its_value():
    joint = trace_joint(layer, torch.randn(64, 64), torch.randn(64, 128))
    for half in (*partition(joint), *with_replayed_dropout(joint)):
        assert [node.name for node in half.graph.nodes if "val" not in node.meta] == []


def test_backward_without_what_it_needs_is_our_bug():
    joint = trace_joint(torch.sin, torch.randn(4))
    with pytest.raises(AssertionError, match="the backward needs 'primals_1', which is not saved"):
        split(classify(joint.module, num_fwd_outputs=1), [])


def test_halves_that_do_not_fit_are_our_bug():
    joint = trace_joint(lambda x, y: x.sin() * y, torch.randn(4), torch.randn(4))
    forward, backward = partition(joint)
    graph = classify(joint.module, num_fwd_outputs=1)
    with pytest.raises(AssertionError, match="the forward takes the primals"):
        verify_halves(graph, backward, forward)


def test_count_of_outputs_that_does_not_fit_is_refused():
    joint = trace_joint(torch.sin, torch.randn(4))
    with pytest.raises(InputValueError, match="num_fwd_outputs=7 does not fit a joint graph with 2 outputs"):
        default_partition(joint.module, [], num_fwd_outputs=7)


def test_forward_output_that_needs_a_tangent_is_refused():
    joint = trace_joint(torch.sin, torch.randn(4))
    with pytest.raises(InputValueError, match="which only the backward can compute"):
        default_partition(joint.module, [], num_fwd_outputs=2)


def joined(a, b, c):
    grown = torch.cat([a.expand(b.shape[0] + c.shape[0], a.shape[0]), b, c])
    product = grown @ c.t()
    return product @ b[:1].expand(product.shape[1], a.shape[0]), b.shape[0]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (joined, [(6,), (4, 6), (3, 6)]),
        (lambda x, y: torch.cat([x, y]).view(-1) * 2, [(4, 6), (4, 6)]),
        (lambda x, y: F.layer_norm(x, (x.shape[1],)) + y.mean(), [(4, 6), (4, 6)]),
        (lambda x, y: (x.reshape(-1).sum(), y.expand(2, *y.shape).sum(0)), [(4, 6), (4, 6)]),
        (lambda x, y: (x[1:] * y[:-1], x.shape[0]), [(4, 6), (4, 6)]),
        (lambda x, y: F.linear(x, y).relu().sum(), [(4, 6), (5, 6)]),
        (lambda x, y: x.sum(0, keepdim=True) * y, [(4, 6), (4, 6)]),
    ],
)
def test_as_many_sizes_are_saved_as_by_torchs_partitioners(function, shapes):
    joint = trace_joint(function, *map(torch.randn, shapes), dynamic=True)

    def sizes_saved(partition_fn):
        forward, backward = partition_fn(copy.deepcopy(joint.module), [], num_fwd_outputs=joint.num_fwd_outputs)
        assert_halves_equal_joint(joint, forward, backward)
        values = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")]
        return sum(isinstance(value, torch.SymInt) for value in values)

    assert sizes_saved(default_partition) == sizes_saved(partitioners.default_partition)
    peer = partitioners.min_cut_rematerialization_partition
    assert sizes_saved(min_cut_rematerialization_partition) <= sizes_saved(peer)
