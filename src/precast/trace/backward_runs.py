"""Backwards that a program runs itself: which autograd graphs they free, and which inputs' ``.grad`` they use.

Before: ``loss = f(x); loss.backward(); return loss``
After:  ``loss`` is returned detached; outside of the graph, a result with a freed autograd graph is made of it

In eager the graph of such a tensor has been freed, and a second backward is an error. The compiled graph would compute
that gradient anyway, or fail.

While a program is traced, its inputs stand for the caller's tensors. They are leaves like those, so a backward inside
the program accumulates into their ``.grad`` as it would into the caller's.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.graph import Node

from precast.errors import CaptureError
from precast.graph.boundary import GradientInputs, has_hooks
from precast.trace.provenance import innermost_users_line


class BackwardRuns:
    """The autograd nodes that backwards have freed, and whether a backward has run, and accumulated into ``.grad``."""

    def __init__(self) -> None:
        self._freed: set[Node] = set()
        self.has_run = self.accumulates = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While active, record the backwards that run on this thread."""
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

        It would if its graph was freed, or if its leaves are among ``changed``, by an optimizer for example.
        """
        if not isinstance(tensor, torch.Tensor) or tensor.grad_fn is None or not (self._freed or self.accumulates):
            return False
        leaves = set(map(id, changed)) if self.accumulates else set()
        nodes = _reachable([tensor.grad_fn])
        return any(node in self._freed or id(getattr(node, "variable", None)) in leaves for node in nodes)


def noting_backwards(function: Callable[..., Any], backwards: BackwardRuns) -> Callable[..., Any]:
    """``function``, with its backwards recorded."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with backwards.noted():
            return function(*args, **kwargs)

    return run


def _executed(outputs: Any, inputs: Any) -> set[Node]:
    """The nodes that a backward runs, and so frees, except those that accumulate into ``.grad``."""
    ends = [_node(output) for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]
    nodes = _reachable([end for end in ends if end is not None])
    if inputs:
        nodes = _leading_to(nodes, inputs)
    return {node for node in nodes if not hasattr(node, "variable")}


def _node(value: Any) -> Node | None:
    return value.grad_fn if isinstance(value, torch.Tensor) else value.node


def _reachable(nodes: Sequence[Node]) -> list[Node]:
    """All nodes reachable from these."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


def _leading_to(nodes: Sequence[Node], inputs: Sequence[Any]) -> list[Node]:
    """The nodes from which one of the inputs is reachable."""
    targets = {_node(each) for each in inputs} - {None}
    leaves = {id(each) for each in inputs if isinstance(each, torch.Tensor) and each.grad_fn is None}
    leading = {node for node in nodes if node in targets or id(getattr(node, "variable", None)) in leaves}
    while more := {n for n in nodes if n not in leading and any(each in leading for each, _ in n.next_functions)}:
        leading |= more
    return list(leading)


_ATTRIBUTE: Any = torch.Tensor.grad
_ACCESSORS = frozenset(getattr(_ATTRIBUTE, name) for name in ("__get__", "__set__", "__delete__"))
_METHOD = type(_ATTRIBUTE.__get__)


def is_gradient_access(function: Any) -> bool:
    """Whether a torch function reads, writes or deletes ``.grad``."""
    return type(function) is _METHOD and function in _ACCESSORS


class GradientSearch:
    """Finds the inputs whose ``.grad`` a run uses.

    ``known`` are the caller's tensors that an earlier run found: a backward accumulates into an existing gradient, so
    its use is found only after the gradient was needed.
    """

    def __init__(self, known: Sequence[torch.Tensor] = ()) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._inputs: dict[int, torch.Tensor] = {}
        self._known = {id(tensor) for tensor in known}
        self.found: dict[int, torch.Tensor] = {id(tensor): tensor for tensor in known}
        self.lines: list[str] = []
        self.is_late = False
        """Whether a backward wrote a gradient before its tensor was known to have one: another run is needed."""

    def meet(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Record which input stands for one of the caller's tensors."""
        self._tensors[id(stand_in)] = tensor
        self._inputs[id(stand_in)] = stand_in
        if id(tensor) in self._known:
            self._give(tensor, stand_in)

    def touch(self, stand_in: Any) -> None:
        """Record that an input's ``.grad`` is about to be used."""
        tensor = self._tensors.get(id(stand_in))
        if tensor is None or id(tensor) in self.found:
            return
        if (gradient := _gradient(tensor)) is not None and gradient.layout is not torch.strided:
            raise CaptureError(
                "The program uses a sparse gradient.",
                at=innermost_users_line(),
                why="compiled graphs compute dense tensors",
                fix="Use sparse=False in the embedding.",
            )
        self.found[id(tensor)] = tensor
        if (line := innermost_users_line()) is not None:
            self.lines.append(line)
        if _gradient(stand_in) is None:
            self._give(tensor, stand_in)
        elif tensor.grad is not None:
            self.is_late = True

    def finish(self, *, runs_backward: bool) -> None:
        """Record the inputs that got gradients from a backward."""
        for stand_in in self._inputs.values():
            if stand_in.is_leaf and stand_in.grad is not None:
                self.touch(stand_in)
        tensors = self._tensors.values() if runs_backward else ()
        if any(tensor.requires_grad and (has_hooks(tensor) or tensor.retains_grad) for tensor in tensors):
            raise CaptureError(
                "The program runs a backward that reaches a tensor with hooks, or one that keeps its gradient.",
                why="hooks are called with real tensors, which a graph does not have",
                fix="Run the backward outside of the program.",
            )

    def _give(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        if tensor.grad is not None:
            stand_in.grad = torch.empty_strided(
                tensor.grad.shape, tensor.grad.stride(), dtype=tensor.grad.dtype, device=tensor.grad.device
            )


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    with warnings.catch_warnings():
        # Torch warns about tensors that are not leaves.
        warnings.simplefilter("ignore")
        return tensor.grad


def gradient_inputs(found: Sequence[torch.Tensor], inputs: Sequence[Any]) -> GradientInputs:
    """The gradient inputs of a call: the positions of the found tensors among its inputs."""
    positions: dict[int, list[int]] = {}
    for position, value in enumerate(inputs):
        positions.setdefault(id(value), []).append(position)
    for tensor in found:
        if len(positions[id(tensor)]) > 1:
            raise CaptureError(
                "The program uses .grad of a tensor that it is given twice.",
                why="two inputs stand for the tensor, and only one of them would get the gradient",
                fix="Pass the tensor once.",
            )
    owners = [(positions[id(tensor)][0], tensor.grad is not None) for tensor in found]
    return GradientInputs(tuple(owner for owner, _ in owners), tuple(present for _, present in owners))
