"""Compiles graphs with TorchScript, PyTorch's earlier compiler, for users who rely on it.

Before: ``torch.ops.aten.add.Tensor(x, 1)``, ``torch.ops.aten.full.default([2], 1, device = device(type='cpu'))``
After:  ``torch.ops.aten.add(x, 1)``,        ``torch.ops.aten.full([2], 1, device = 'cpu')``, scripted and frozen
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.node import Argument, map_aggregate

from precast.autograd.uncaptured import warn_at_users_line


def ts_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Compile through TorchScript: mutation is removed, and the graph is frozen and optimized for inference."""
    _warn_once()
    with _torchscript():
        scripted = torch.jit.script(_scriptable(graph_module, example_inputs))
        torch._C._jit_pass_remove_mutation(scripted.graph)
        optimized = torch.jit.optimize_for_inference(torch.jit.freeze(scripted.eval()))
    # Real inputs let TorchScript's profiler see shapes now instead of in the first two calls.
    if not any(isinstance(value, FakeTensor | torch.SymInt) for value in example_inputs):
        optimized(*example_inputs)
    return optimized


def simple_ts_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Compile through TorchScript: scripted and frozen only."""
    _warn_once()
    with _torchscript():
        frozen: torch.jit.ScriptModule = torch.jit.freeze(
            torch.jit.script(_scriptable(graph_module, example_inputs)).eval()
        )
        return frozen


def _scriptable(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Return a copy of the graph in the dialect that TorchScript parses."""
    scriptable = fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    for placeholder, example in zip(scriptable.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        placeholder.type = _script_type(example)
    for node in scriptable.graph.nodes:
        if isinstance(node.target, OpOverload):
            node.target = node.target.overloadpacket
        if node.op == "output" and isinstance(node.args[0], list):
            node.args = (tuple(node.args[0]),)  # a list holds one type only, no tensor beside None
        node.args = map_aggregate(node.args, _script_argument)
        node.kwargs = map_aggregate(node.kwargs, _script_argument)
    scriptable.graph.lint()
    scriptable.recompile()
    return scriptable


def _script_type(example: object) -> type | None:
    if isinstance(example, bool | torch.SymBool):
        return bool
    if isinstance(example, int | torch.SymInt):
        return int
    if isinstance(example, float | torch.SymFloat):
        return float
    return None


def _script_argument(argument: Argument) -> Argument:
    return str(argument) if isinstance(argument, torch.device) else argument


@contextmanager
def _torchscript() -> Iterator[None]:
    """Disable TorchScript's own autocast, and its repeated deprecation warnings."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*torch\.jit\.", category=DeprecationWarning)
            # It reads the annotations in fx.GraphModule's own source.
            warnings.filterwarnings("ignore", message="The TorchScript type system", category=UserWarning)
            yield
    finally:
        torch._C._jit_set_autocast_mode(before)


@cache
def _warn_once() -> None:
    message = "TorchScript is deprecated in PyTorch and may go away; precast.compile(model) does not need it"
    warn_at_users_line(message, FutureWarning)
