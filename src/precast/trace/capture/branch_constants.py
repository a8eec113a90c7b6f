"""Lifts constants of control-flow branches (``torch.tensor(0)``) to inputs of the branches.

Before: ``cond(p, true_graph, false_graph, (x,))``, where ``true_graph`` reads ``_tensor_constant0``
After:  ``cond(p, true_graph, false_graph, (x, _tensor_constant0))``, where it is an attribute of the outer graph
"""

import torch
from torch import fx

from precast.graph.nodes import placeholders_of, set_value
from precast.trace.control_flow import FORMS
from precast.trace.fake_inputs import FakeInputs


def lift_constants_of_branches(module: fx.GraphModule, fakes: FakeInputs) -> None:
    """Edit the module and its subgraphs in place: afterwards, only the outermost graph has tensor attributes."""
    for node in list(module.graph.nodes):
        if not isinstance(node.target, torch._ops.HigherOrderOperator) or node.target._name not in FORMS:
            continue
        form = FORMS[node.target._name]
        branches = [_subgraph(module, node.args[number]) for number in form.branches]
        for branch in branches:
            lift_constants_of_branches(branch, fakes)
        constants = {id(value): value for branch in branches for value in _tensors(branch).values()}
        if not constants:
            continue
        for branch in branches:
            _take_as_inputs(branch, list(constants.values()), fakes)
        with module.graph.inserting_before(node):
            read = [_read(module, value, fakes) for value in constants.values()]
        further = node.args[form.further]
        assert isinstance(further, list | tuple), "operands come in a sequence"
        node.update_arg(form.further, (*further, *read))
        module.recompile()


def _subgraph(module: fx.GraphModule, node: object) -> fx.GraphModule:
    assert isinstance(node, fx.Node), "branches are attributes"
    found = module.get_submodule(str(node.target))
    assert isinstance(found, fx.GraphModule), "branches are graphs"
    return found


def _tensors(module: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    attributes = [node for node in module.graph.nodes if node.op == "get_attr"]
    found = {node: getattr(module, str(node.target), None) for node in attributes}
    return {node: value for node, value in found.items() if isinstance(value, torch.Tensor)}


def _take_as_inputs(branch: fx.GraphModule, constants: list[torch.Tensor], fakes: FakeInputs) -> None:
    last = placeholders_of(branch.graph)[-1] if placeholders_of(branch.graph) else None
    inputs: dict[int, fx.Node] = {}
    for value in constants:
        with branch.graph.inserting_after(last) if last is not None else branch.graph.inserting_before():
            last = inputs[id(value)] = branch.graph.placeholder(f"constant_{len(inputs)}")
        set_value(last, fakes.fake(value))
    for node, value in _tensors(branch).items():
        node.replace_all_uses_with(inputs[id(value)])
        branch.graph.erase_node(node)
    branch.recompile()


def _read(module: fx.GraphModule, value: torch.Tensor, fakes: FakeInputs) -> fx.Node:
    name = next(f"_branch_constant{n}" for n in range(10**6) if not hasattr(module, f"_branch_constant{n}"))
    module.register_buffer(name, value)
    node = module.graph.get_attr(name)
    set_value(node, fakes.fake(value))
    return node
