"""Backwards that a program runs itself: what they leave of autograd's graph.

Before: ``loss = f(x); loss.backward(); return loss``
After:  ``loss`` is returned as a value of which no gradient can be taken, for a ``spent`` one to be made of it outside

In eager the graph behind such a tensor is there but freed, and a second backward is an error. A graph of ours would
compute that gradient anyway, or fail to.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.graph import Node


class BackwardRuns:
    """The nodes of autograd's graph that backwards have freed, and whether one was run, and added to ``.grad``."""

    def __init__(self) -> None:
        self._freed: set[Node] = set()
        self.has_run = self.accumulates = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While active, backwards that are run on this thread are noted."""
        thread = threading.get_ident()
        run: Callable[..., Any] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def run_noted(outputs: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() != thread:
                return run(outputs, *args, **options)
            _, keeps_graph, _, inputs, *_ = args
            executed = set() if keeps_graph else _executed(outputs, inputs)
            result = run(outputs, *args, **options)
            self._freed |= executed
            self.has_run = True
            self.accumulates |= bool(options.get("accumulate_grad"))
            return result

        with patch.object(torch.autograd, "_engine_run_backward", run_noted):
            yield

    def has_spent(self, tensor: Any, changed: Sequence[torch.Tensor]) -> bool:
        """Whether a backward of ``tensor`` would fail in eager.

        That is so if its graph was freed, or if an optimizer has ``changed`` leaves of it since.
        """
        if not isinstance(tensor, torch.Tensor) or tensor.grad_fn is None or not (self._freed or self.accumulates):
            return False
        leaves = set(map(id, changed)) if self.accumulates else set()
        nodes = _reachable([tensor.grad_fn])
        return any(node in self._freed or id(getattr(node, "variable", None)) in leaves for node in nodes)


def noting_backwards(function: Callable[..., Any], backwards: BackwardRuns) -> Callable[..., Any]:
    """``function``, which notes the backwards that it runs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with backwards.noted():
            return function(*args, **kwargs)

    return run


def _executed(outputs: Any, inputs: Any) -> set[Node]:
    """The nodes that a backward runs, and so frees; those that add to ``.grad`` are there to stay."""
    ends = [_node(output) for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]
    nodes = _reachable([end for end in ends if end is not None])
    if inputs:
        nodes = _leading_to(nodes, inputs)
    return {node for node in nodes if not hasattr(node, "variable")}


def _node(value: Any) -> Node | None:
    return value.grad_fn if isinstance(value, torch.Tensor) else value.node


def _reachable(nodes: Sequence[Node]) -> list[Node]:
    """All nodes behind these, those that are nearer first."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


def _leading_to(nodes: Sequence[Node], inputs: Sequence[Any]) -> list[Node]:
    """The nodes from which one of the inputs is reached."""
    targets = {_node(each) for each in inputs} - {None}
    leaves = {id(each) for each in inputs if isinstance(each, torch.Tensor) and each.grad_fn is None}
    leading = {node for node in nodes if node in targets or id(getattr(node, "variable", None)) in leaves}
    while more := {n for n in nodes if n not in leading and any(each in leading for each, _ in n.next_functions)}:
        leading |= more
    return list(leading)
