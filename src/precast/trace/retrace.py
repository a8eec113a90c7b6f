"""Runs an existing graph as a flat function again, so that a stage can record it in another form.

Drops nodes whose results nobody reads and that do nothing else.

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
"""Operators that run a part of a program in a mode of its own."""


class AttributingInterpreter(fx.Interpreter):
    """Interprets node by node; what is recorded meanwhile is attributed to the node that runs."""

    def run_node(self, n: fx.Node) -> Any:
        with attributed_to(n):
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # While tracing before dispatch, calling these would record them and leave autocast as it is.
        if target is _enter_autocast:
            region = torch.amp.autocast(*args)
            region.__enter__()
            return region
        if target is _exit_autocast:
            return args[0].__exit__(None, None, None)
        if target in REGIONS:
            # What a region holds runs as part of the program: its nodes tell their own stories, not the region's.
            args = tuple(_attributed(each) if isinstance(each, fx.GraphModule) else each for each in args)
        if target is torch.ops.aten.view.default:
            return _viewed(*args)
        return super().call_function(target, args, kwargs)


def _viewed(source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A view; a copy where the operand, decomposed, is laid out so that there is none."""
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
    """A function over the graph's flat inputs that gives its flat outputs."""

    def run(*inputs: Any) -> list[Any]:
        return list(AttributingInterpreter(module).run(*inputs))

    return run


def remove_dead_nodes(graph: fx.Graph) -> int:
    """Edit ``graph`` in place, from the end to the start; gives how many nodes went."""
    removed = 0
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        # A dead random op still advances the generator: dropping it would change later draws.
        if node.op == "get_attr" or (is_pure(node) and not is_random(node)):
            graph.erase_node(node)
            removed += 1
    return removed
