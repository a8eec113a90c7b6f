"""What nodes know about themselves."""

import pytest
import torch
from torch import fx

from precast.graph import nodes as node_meta
from precast.trace.capture import capture
from tests.graph.programs import scale_program


def node(**meta) -> fx.Node:
    made = fx.Graph().placeholder("x")
    made.meta.update(meta)
    return made


def named(program, name: str) -> fx.Node:
    return next(node for node in program.graph.nodes if node.name == name)


def test_values_are_there_or_asked_for_in_vain():
    assert node_meta.value_of(node(val=3)) == 3
    assert not node_meta.has_value(node())
    with pytest.raises(AssertionError, match="carries no value"):
        node_meta.value_of(node())


def test_one_tensor_is_promised():
    with pytest.raises(AssertionError, match="returns tuple, not one tensor"):
        node_meta.tensor_of(node(val=(torch.ones(1), torch.ones(1))))


def test_source_line_is_the_innermost_of_the_user():
    line = node_meta.source_line_of(named(scale_program(), "relu"))
    assert (line.function, line.code) == ("forward", "return self.linear(x).relu()")
    assert line.file.endswith("programs.py")
    assert str(line) == f"{line.file}:{line.line} in forward: return self.linear(x).relu()"


def test_no_source_line_without_stack_trace():
    assert node_meta.source_line_of(node()) is None


def test_module_path():
    program = scale_program()
    assert node_meta.module_path_of(named(program, "addmm")) == "linear"
    assert node_meta.module_path_of(named(program, "relu")) == ""


def test_provenance_is_copied_where_there_is_none():
    source, target = node(stack_trace="a", seq_nr=1, nn_module_stack={}), node(seq_nr=2)
    node_meta.copy_provenance(source, target)
    assert target.meta == {"stack_trace": "a", "seq_nr": 2, "nn_module_stack": {}}


def test_autograd_origin():
    made = node()
    assert not node_meta.is_backward(made)
    node_meta.set_autograd_origin(made, 7, backward=True)
    assert node_meta.is_backward(made)
    assert node_meta.sequence_number_of(made) == 7


def test_backward_nodes_name_their_forward_node():
    def gradient(x):
        return torch.autograd.grad(x.sin().sum(), x)[0]

    program = capture(gradient, (torch.ones(2, requires_grad=True),))
    backward = {n.name: node_meta.forward_node_of(n) for n in program.graph.nodes if node_meta.is_backward(n)}
    assert backward["mul"] == "sin"
    assert "x.sin().sum()" in str(node_meta.source_line_of(named(program, "mul")))
