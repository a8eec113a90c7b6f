"""Each rule of exported programs, made to fire by an edit that breaks it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from precast.errors import VerifierError
from precast.export import ConstantArgument, ExportedProgram, InputKind, OutputKind, OutputSpec, export
from precast.export.signature import Dialect
from precast.export.verifier import DIALECT_RULES, RULES, verify
from tests.export.models import Scale

BROKEN: dict[str, Callable[[ExportedProgram], None]] = {}


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x * self.weight,))


def breaking(rule: str) -> Callable[[Callable[[ExportedProgram], None]], Callable[[ExportedProgram], None]]:
    def register(break_it: Callable[[ExportedProgram], None]) -> Callable[[ExportedProgram], None]:
        BROKEN[rule] = break_it
        return break_it

    return register


def node_called(exported: ExportedProgram, name: str) -> torch.fx.Node:
    return next(node for node in exported.graph.nodes if node.name == name)


@breaking("programs are functional")
def write_in_a_branch(exported):
    sin = next(n for n in exported.graph_module.true_graph_0.graph.nodes if n.name == "sin")
    sin.target = torch.ops.aten.sin_.default


@breaking("every node has a value")
def forget_a_value_in_a_branch(exported):
    del next(n for n in exported.graph_module.true_graph_0.graph.nodes if n.name == "sin").meta["val"]


@breaking("higher-order ops are known")
def call_a_strange_higher_order_op(exported):
    node_called(exported, "cond").target = torch.ops.higher_order.print


@breaking("attributes are subgraphs")
def read_a_tensor(exported):
    exported.graph_module.register_buffer("hidden", torch.ones(2))
    with exported.graph.inserting_before(exported.graph.output_node()):
        exported.graph.get_attr("hidden")


@breaking("state is described")
def forget_whether_a_buffer_is_persistent(exported):
    specs = exported.graph_signature.input_specs
    specs[:] = [replace(spec, persistent=None) for spec in specs]


@breaking("updates name inputs")
def update_an_unknown_buffer(exported):
    specs = exported.graph_signature.output_specs
    specs[0] = replace(specs[0], target="nobody")


@breaking("outputs are in order")
def put_the_update_last(exported):
    specs, output = exported.graph_signature.output_specs, exported.graph.output_node()
    specs.reverse()
    output.args = (tuple(reversed(output.args[0])),)


@breaking("trees match the signature")
def return_more_than_the_tree_holds(exported):
    output = exported.graph.output_node()
    output.args = ((*output.args[0], 3),)
    exported.graph_signature.output_specs.append(OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument("output_2", 3)))


@breaking("grad-mode regions are subgraphs")
def switch_grad_mode(exported):
    with exported.graph.inserting_before(exported.graph.output_node()):
        exported.graph.call_function(torch._C._set_grad_enabled, (False,)).meta["val"] = None


@breaking("training programs have no gradients")
def claim_a_gradient(exported):
    specs, output = exported.graph_signature.output_specs, exported.graph.output_node()
    output.args = ((*output.args[0], output.args[0][-1]),)
    specs.append(OutputSpec(OutputKind.GRADIENT_TO_PARAMETER, specs[-1].arg, "weight"))


def test_every_rule_has_a_way_to_break_it():
    assert set(BROKEN) == set(RULES) | {rule for rules in DIALECT_RULES.values() for rule in rules}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_named(rule):
    exported = export(Counting(), (torch.ones(2),))
    exported.validate()
    BROKEN[rule](exported)
    with pytest.raises(VerifierError, match=rule):
        exported.validate()


def test_rules_of_the_ir_hold_too():
    exported = export(Scale(), (torch.ones(3),))
    del node_called(exported, "mul").meta["val"]
    with pytest.raises(VerifierError, match="carries no traced value"):
        exported.validate()


def test_state_without_an_input_is_seen():
    exported = export(Scale(), (torch.ones(3),))
    exported.constants["stray"] = torch.ones(1)
    with pytest.raises(VerifierError, match="'stray', which is not an input"):
        exported.validate()


def test_missing_state_is_seen():
    exported = export(Scale(), (torch.ones(3),))
    del exported.state_dict["weight"]
    with pytest.raises(VerifierError, match="no tensor is stored"):
        exported.validate()


def test_a_parameter_must_be_one():
    exported = export(Scale(), (torch.ones(3),))
    exported.state_dict["weight"] = torch.ones(3)
    with pytest.raises(VerifierError, match="its tensor is not"):
        exported.validate()


def test_gradients_are_fine_in_the_other_dialect():
    exported = export(Counting(), (torch.ones(2),))
    claim_a_gradient(exported)
    verify(exported.program, Dialect.ATEN)


def test_kinds_are_spelled_as_pytorchs():
    assert {kind.name for kind in InputKind} >= {"USER_INPUT", "PARAMETER", "BUFFER", "CONSTANT_TENSOR", "TOKEN"}
