"""Names in a graph: results are called by their op, counted in order; inputs of a subgraph as outside.

Before: ``add_3 = add(x, 1); cond = cond(p, true_graph_0, false_graph_0, (add_3,))`` with ``true_graph_0(arg0_1)``
After:  ``add = add(x, 1); cond = cond(p, true_graph_0, false_graph_0, (add,))`` with ``true_graph_0(add)``
"""

from collections.abc import Sequence

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.capture.prepare import unique_names
from precast.ir.graphs import placeholders_of


def with_counted_names(module: fx.GraphModule, inputs: Sequence[str] | None = None) -> fx.GraphModule:
    """A copy of the module and its subgraphs with such names; ``inputs`` are new names for the placeholders."""
    nodes = list(module.graph.nodes)
    placeholders = placeholders_of(module.graph)
    first = list(inputs) if inputs is not None else [node.name for node in placeholders]
    others = [node for node in nodes if node.op not in ("placeholder", "output")]
    names = dict(zip([*placeholders, *others], unique_names([*first, *map(_stem, others)]), strict=True))
    root = torch.nn.Module()
    for node in nodes:
        if node.op == "get_attr":
            child = module.get_submodule(str(node.target))
            outer = _names_outside(module, node, names)
            renamed = with_counted_names(child, outer) if isinstance(child, fx.GraphModule) else child
            root.add_module(str(node.target), renamed)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.create_node(
            node.op,
            names[node] if node.op == "placeholder" else node.target,
            fx.map_arg(node.args, copies.__getitem__),
            fx.map_arg(node.kwargs, copies.__getitem__),
            name=names.get(node),
        )
        copies[node].meta = dict(node.meta)
    return fx.GraphModule(root, graph, type(module).__name__)


def _stem(node: fx.Node) -> str:
    if node.op == "get_attr":
        return str(node.target).replace(".", "_")
    name = getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.rpartition("::")[2]
    # fx does not give names that Python or torch reserve.
    return fx.Graph()._graph_namespace.create_name(name.lower(), None) if name.isidentifier() else node.name


def _names_outside(module: fx.GraphModule, attribute: fx.Node, names: dict[fx.Node, str]) -> list[str] | None:
    """What the inputs of a subgraph are called by the node that runs it: the operands after its last subgraph."""
    child = module.get_submodule(str(attribute.target))
    if len(attribute.users) != 1 or not isinstance(child, fx.GraphModule):
        return None
    (caller,) = attribute.users
    graphs = [
        i for i, argument in enumerate(caller.args) if isinstance(argument, fx.Node) and argument.op == "get_attr"
    ]
    operands = pytree.tree_leaves(list(caller.args[max(graphs) + 1 :]), is_leaf=lambda v: isinstance(v, fx.Node))
    inside = placeholders_of(child.graph)
    if len(operands) != len(inside):
        return None
    return [names[o] if isinstance(o, fx.Node) else node.name for o, node in zip(operands, inside, strict=True)]
