"""Views that must not rely on a memory layout that only running decides.

Before: ``a = scaled_dot_product_attention(…); t = transpose(a, 1, 2); v = view(t, …)``
After:  the same with ``reshape``, which copies where the kernel of that call laid its result out otherwise

Tracing drops ``contiguous()`` where its fake result is contiguous already. For an op that stays whole, which kernel
computes it, and in which layout, depends on the device, the grad mode and the sizes of each call.
"""

import torch
from torch import fx

from precast.export.preserved_ops import is_composite
from precast.ops.facts import is_view

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)


def reshape_where_layout_is_open(graph: fx.Graph) -> None:
    """Exchange such views for ``reshape``, in place."""
    open_layout: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if is_view(node) or node.target in (*_VIEWS, _aten.reshape.default):
            if not open_layout.isdisjoint(node.all_input_nodes[:1]):
                open_layout.add(node)
                if node.target in _VIEWS:
                    node.target = _aten.reshape.default
        elif is_composite(node.target):
            open_layout.add(node)
