"""Tensors that a trace found by itself (``torch.tensor([1, 2])`` in the program) become inputs like all other state.

Before: ``c = self._tensor_constant0; y = add(x, c)``. After: ``y = add(x, c_lifted_tensor_0)``.
"""

import torch
from torch import fx

from precast.ir.node_meta import set_value
from precast.tracing.fake_inputs import FakeInputs


def lift_constants(
    module: fx.GraphModule, fakes: FakeInputs, *, position: int, first_number: int
) -> dict[str, torch.Tensor]:
    """Turn tensor attributes into placeholders from ``position`` on; gives their names and tensors in order."""
    graph = module.graph
    attributes = [node for node in graph.nodes if node.op == "get_attr" and _is_tensor(module, node)]
    if not attributes:
        return {}
    lifted: dict[str, torch.Tensor] = {}
    placeholders: dict[int, fx.Node] = {}
    following = [node for node in graph.nodes if node.op == "placeholder"][position:]
    start = following[0] if following else next(node for node in graph.nodes if node.op != "placeholder")
    for node in attributes:
        tensor = getattr(module, str(node.target))
        if id(tensor) not in placeholders:
            with graph.inserting_before(start):
                placeholder = graph.placeholder(f"c_lifted_tensor_{first_number + len(lifted)}")
            set_value(placeholder, fakes.fake(tensor))
            placeholders[id(tensor)] = placeholder
            lifted[placeholder.name] = tensor
        node.replace_all_uses_with(placeholders[id(tensor)])
        graph.erase_node(node)
    for name in {str(node.target) for node in attributes}:
        delattr(module, name)
    module.recompile()
    return lifted


def _is_tensor(module: fx.GraphModule, node: fx.Node) -> bool:
    return isinstance(getattr(module, str(node.target), None), torch.Tensor)
