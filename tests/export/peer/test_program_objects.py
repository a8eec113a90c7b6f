"""What users do with a program: both exporters' programs answer alike."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.export.peer.comparison import PEERS

X = torch.ones(2, 3)
aten = torch.ops.aten


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2))

    def forward(self, x):
        return self.rest(self.first(x) + 1)


class Squashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return nn.functional.silu(self.linear(x) * 2)


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def meta(program, key):
    return [node.meta.get(key) for node in program.graph.nodes if node.op == "call_function"]


def changed(peer):
    program = peer.export(Layers(), (X,))
    for node in program.graph_module.graph.nodes:
        if node.target is aten.add.Tensor:
            node.target = aten.mul.Tensor
    program.graph_module.recompile()
    return operators(program._update(program.graph_module, program.graph_signature))


def with_own_table(peer, change):
    table = peer.default_decompositions()
    change(table)
    return operators(peer.export(Squashed(), (X,)).run_decompositions(table))


def all_fake(peer):
    with FakeTensorMode():
        module, x = Layers(), torch.ones(2, 3)
        program = peer.export(module, (x,))
    return operators(program), type(program.state_dict["first.weight"]).__name__


def fake_inputs(peer):
    with FakeTensorMode():
        x = torch.ones(2, 3)
    return operators(peer.export(Layers(), (x,)))


def fake_with_sizes(peer):
    with FakeTensorMode():
        module, x = Layers(), torch.ones(2, 3)
    program = peer.export(module, (x,), dynamic_shapes=({0: peer.Dim("rows")},))
    return operators(program), [str(each) for each in program.range_constraints.values()]


def on_the_meta_device(peer):
    program = peer.export(Layers().to("meta"), (X.to("meta"),))
    return operators(program), str(program.state_dict["first.weight"].device)


def again(peer):
    return peer.export(peer.export(Layers(), (X,)).module(), (X,))


def called_signature(peer):
    (entry,) = [e for e in preserved(peer).module_call_graph if e.fqn == "rest"]
    signature = entry.signature
    return [each.name for each in signature.inputs], [each.name for each in signature.outputs], signature.in_spec


def preserved(peer):
    return peer.export(Layers(), (X,), preserve_module_call_signature=("rest",))


def whole_call(peer):
    signature = peer.export(Layers(), (X,)).module_call_graph[0].signature
    return signature.in_spec, signature.out_spec, list(signature.forward_arg_names)


QUESTIONS = {
    "module stacks": lambda p: [list(s.values()) for s in meta(p.export(Layers(), (X,)), "nn_module_stack")],
    "keys of module stacks": lambda p: [list(s) for s in meta(p.export(Layers(), (X,)), "nn_module_stack")],
    "module stacks of a program that is exported again": lambda p: [
        list(s.values()) for s in meta(again(p), "nn_module_stack")
    ],
    "a program that is exported again": lambda p: operators(again(p)),
    "torch functions": lambda p: meta(p.export(Layers(), (X,)), "torch_fn"),
    "torch functions after decomposition": lambda p: meta(p.export(Layers(), (X,)).run_decompositions(), "torch_fn"),
    "submodules": lambda p: [entry.fqn for entry in p.export(Layers(), (X,)).module_call_graph],
    "the whole call": whole_call,
    "a kept signature": called_signature,
    "example inputs": lambda p: str(p.export(Layers(), (X,)).example_inputs),
    "dialect": lambda p: p.export(Layers(), (X,)).dialect,
    "parameters": lambda p: [name for name, _ in p.export(Layers(), (X,)).named_parameters()],
    "parameters of the module": lambda p: [name for name, _ in p.export(Layers(), (X,)).module().named_parameters()],
    "state of the module": lambda p: list(p.export(Layers(), (X,)).module().state_dict()),
    "names in the signature": lambda p: p.export(Layers(), (X,)).graph_signature.parameters,
    "inputs in the signature": lambda p: p.export(Layers(), (X,)).graph_signature.user_inputs,
    "validation": lambda p: p.export(Layers(), (X,)).validate(),
    "another graph": changed,
    "decompositions by default": lambda p: operators(p.export(Squashed(), (X,)).run_decompositions()),
    "no decompositions": lambda p: operators(p.export(Squashed(), (X,)).run_decompositions({})),
    "one decomposition": lambda p: operators(
        p.export(Squashed(), (X,)).run_decompositions({aten.silu.default: lambda x: x * x.sigmoid()})
    ),
    "the table of decompositions": lambda p: with_own_table(p, lambda table: None),
    "a table with less": lambda p: with_own_table(p, lambda table: table.pop(aten.linear.default)),
    "a table with another rule": lambda p: with_own_table(
        p, lambda table: table.update({aten.linear.default: lambda x, w, b: aten.mm.default(x, w)})
    ),
    "fake tensors throughout": all_fake,
    "fake inputs": fake_inputs,
    "fake tensors with dynamic sizes": fake_with_sizes,
    "the meta device": on_the_meta_device,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_both_programs_answer_alike(question):
    theirs, ours = (QUESTIONS[question](peer) for peer in PEERS.values())
    assert ours == theirs


REFUSALS = {
    "calling a program": (RuntimeError, lambda p: p.export(Layers(), (X,))(X)),
    "training": (NotImplementedError, lambda p: p.export(Layers(), (X,)).module().train()),
    "evaluation": (NotImplementedError, lambda p: p.export(Layers(), (X,)).module().eval()),
    "missing arguments": (TypeError, lambda p: p.export(Layers(), ())),
    "arithmetic on dims": (NotImplementedError, lambda p: p.Dim("a") * -2),
    "a difference of dims": (NotImplementedError, lambda p: p.Dim("a") - p.Dim("b")),
    "a constant size": (RuntimeError, lambda p: p.export(Layers(), (X,), dynamic_shapes=({1: p.Dim("a")},))),
}


@pytest.mark.parametrize("what", REFUSALS)
@pytest.mark.parametrize("library", PEERS)
def test_both_refuse_with_the_same_kind_of_error(what, library):
    kind, ask = REFUSALS[what]
    with pytest.raises(kind):
        ask(PEERS[library])
