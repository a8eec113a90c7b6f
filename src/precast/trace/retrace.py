"""Runs a graph as a flat function, so that a stage can retrace it in another form; and eliminates dead nodes.

Before: ``a = exp(x); b = detach(a); return (x,)``. After: ``return (x,)``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from precast.ops.facts import is_pure, is_random
from precast.trace.provenance import attributed_to
from precast.trace.record import FlatFunction

REGIONS = (wrap_with_autocast, wrap_with_set_grad_enabled)
"""Operators that run a subgraph under another mode."""


class AttributingInterpreter(fx.Interpreter):
    """An interpreter that attributes recorded nodes to the node that it runs."""

    def run_node(self, n: fx.Node) -> Any:
        with attributed_to(n):
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # In pre-dispatch tracing, calling these would record them and not change autocast.
        if target is _enter_autocast:
            region = torch.amp.autocast(*args)
            region.__enter__()
            return region
        if target is _exit_autocast:
            return args[0].__exit__(None, None, None)
        if target in REGIONS:
            # The nodes of a region keep their own provenance, not the region's.
            args = tuple(_attributed(each) if isinstance(each, fx.GraphModule) else each for each in args)
        if target is torch.ops.aten.view.default:
            return _viewed(*args)
        return super().call_function(target, args, kwargs)


def _viewed(source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A view; a copy if the operand's layout, after decomposition, allows none."""
    try:
        viewed: torch.Tensor = torch.ops.aten.view.default(source, shape)
    except (ValueError, RuntimeError):
        if source.is_contiguous():
            raise
        viewed = source.contiguous().view(shape)
    return viewed


def _attributed(module: fx.GraphModule) -> Callable[..., Any]:
    return lambda *inputs: AttributingInterpreter(module).run(*inputs)


def as_flat_function(module: fx.GraphModule) -> FlatFunction:
    """The graph as a function from flat inputs to flat outputs."""
    _make_loops_consistent(module)

    def run(*inputs: Any) -> list[Any]:
        return list(AttributingInterpreter(module).run(*inputs))

    return run


def _make_loops_consistent(module: fx.GraphModule) -> None:
    """Edit in place: torch adds what a loop carries to its other operands, and records a list and a tuple."""
    for child in module.modules():
        if not isinstance(child, fx.GraphModule):
            continue
        nodes = child.graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop)
        mixed = [node for node in nodes if len({isinstance(operands, list) for operands in node.args[2:4]}) > 1]
        for node in mixed:
            node.args = tuple(tuple(each) if isinstance(each, list) else each for each in node.args)
        if mixed:
            child.recompile()


def remove_dead_nodes(graph: fx.Graph, kept: Callable[[fx.Node], bool] = lambda node: False) -> int:
    """Remove dead nodes from ``graph`` in place, except those ``kept``; returns how many were removed."""
    removed = 0
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users or kept(node):
            continue
        # A dead random op still advances the generator: dropping it would change later draws.
        if node.op == "get_attr" or (is_pure(node) and not is_random(node)):
            graph.erase_node(node)
            removed += 1
    return removed
