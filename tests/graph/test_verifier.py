"""Every rule of the verifier, broken once."""

import operator
from dataclasses import replace

import pytest
import torch

from precast.errors import VerifierError
from precast.graph.program import Program
from precast.graph.signature import TensorArgument
from precast.graph.verifier import RULES, verify
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from tests.graph.programs import scale_program


def sine() -> Program:
    return capture(lambda x: x.sin().cos(), (torch.ones(2),))


def edited(program: Program, edit) -> Program:
    graph = program.copy_graph()
    edit({node.name: node for node in graph.nodes}, graph)
    return program.replace(graph=graph)


def assert_breaks(program: Program, rule: str, message: str) -> None:
    broken = [name for name, check in RULES.items() if list(check(program))]
    assert rule in broken
    with pytest.raises(VerifierError, match=message):
        verify(program)


def test_sound_programs_pass():
    verify(scale_program())
    verify(functionalize(scale_program()))


def test_a_node_used_before_it_is_made():
    def swap(nodes, graph):
        nodes["cos"].append(nodes["sin"])

    assert_breaks(edited(sine(), swap), "graph is well formed", "used before it has been defined")


def test_a_method_call():
    def call_method(nodes, graph):
        with graph.inserting_before(nodes["cos"]):
            graph.call_method("sin", (nodes["x"],))

    assert_breaks(edited(sine(), call_method), "targets are operators", "call_method of 'sin'")


@pytest.mark.parametrize("function", [torch.nn.functional.gelu, torch.add])
def test_a_function_that_is_no_operator(function):
    def call_function(nodes, graph):
        nodes["cos"].target = function

    assert_breaks(edited(sine(), call_function), "targets are operators", "node cos unknown target")


def test_arithmetic_on_sizes_is_allowed():
    def add_sizes(nodes, graph):
        with graph.inserting_before(nodes["cos"]):
            graph.call_function(operator.add, (1, 2)).meta["val"] = 3

    verify(edited(sine(), add_sizes))


def test_a_node_without_value():
    assert_breaks(
        edited(sine(), lambda nodes, graph: nodes["sin"].meta.pop("val")),
        "every node has a value",
        "node sin carries no traced value",
    )


def test_placeholders_in_another_order():
    program = capture(lambda x, y: x - y, (torch.ones(2), torch.ones(2)))
    signature = program.signature.replace(inputs=tuple(reversed(program.signature.inputs)))
    assert_breaks(program.replace(signature=signature), "inputs match the signature", "placeholders are")


def test_a_missing_output():
    signature = sine().signature.replace(outputs=())
    assert_breaks(sine().replace(signature=signature), "outputs match the signature", "returns 1 values")


def test_an_output_of_another_name():
    program = sine()
    (spec,) = program.signature.outputs
    signature = program.signature.replace(outputs=(replace(spec, arg=TensorArgument("sin")),))
    assert_breaks(program.replace(signature=signature), "outputs match the signature", "returns cos where")


def test_a_parameter_without_tensor():
    program = scale_program()
    state = {name: tensor for name, tensor in program.state.items() if name != "linear.bias"}
    assert_breaks(program.replace(state=state), "state is complete", "'linear.bias' is an input but")


def test_a_tensor_without_input():
    assert_breaks(sine().replace(state={"weight": torch.ones(2)}), "state is complete", "which is not an input")


def test_a_write_in_a_functional_program():
    def write(nodes, graph):
        nodes["sin"].target = torch.ops.aten.sin_.default

    program = edited(functionalize(sine()), write)
    assert_breaks(program, "functional programs do not mutate", "node sin aten.sin_.default writes")


def test_the_message_names_the_stage_and_the_users_line():
    program = edited(sine(), lambda nodes, graph: nodes["sin"].meta.pop("val"))
    with pytest.raises(VerifierError) as failure:
        verify(program, after="pass shuffle")
    assert "not sound after pass shuffle" in str(failure.value)
    assert "x.sin().cos()" in failure.value.at


def test_every_broken_rule_is_listed():
    def break_two(nodes, graph):
        nodes["sin"].meta.pop("val")
        nodes["cos"].target = torch.nn.functional.gelu

    with pytest.raises(VerifierError) as failure:
        verify(edited(sine(), break_two))
    assert "targets are operators" in failure.value.why
    assert "every node has a value" in failure.value.why
