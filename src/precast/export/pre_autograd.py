"""Captures a module before autograd, not functionalized: composite ops and in-place writes, to rewrite and train."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from precast.errors import InputTypeError
from precast.export.export import aliases_of, argument_names
from precast.export.sizes import with_runtime_asserts
from precast.export.unlift import ExportedModule, unlift
from precast.graph.calls import CallConvention, expected_leaves
from precast.trace.capture import capture


def capture_pre_autograd_graph(
    f: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedModule:
    """Record a module's operators before autograd decomposes them, as a module with the same state and signature.

    Ranges of sizes are stored in ``meta["range_constraints"]`` and checked at each call.

    >>> model = capture_pre_autograd_graph(torch.nn.Dropout(0.5), (torch.ones(2),))
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"]
    ['aten.dropout.default']
    """
    _warn_once()
    if not isinstance(f, torch.nn.Module):
        raise InputTypeError(
            f"capture_pre_autograd_graph() was given an object of type {type(f).__name__}.",
            why="the result holds the state of a module",
            fix="Wrap the function in an nn.Module whose forward calls it.",
        )
    program = with_runtime_asserts(capture(f, args, kwargs, dynamic_shapes=dynamic_shapes, pre_dispatch=True))
    names = argument_names(f, len(args), kwargs or {})
    module = unlift(
        program.module,
        program.signature,
        program.state,
        CallConvention(program.signature.in_tree, expected_leaves(program), program.sizes, names),
        module_paths=[path for path, _ in f.named_modules()],
        aliases=dict(aliases_of(f, program.state)),
    )
    module.meta["range_constraints"] = {symbol.symbol: symbol.range for symbol in program.sizes.symbols}
    return module


@cache
def _warn_once() -> None:
    warnings.warn(
        "capture_pre_autograd_graph() is kept for existing code; precast.export.export() is the way forward: its "
        "programs can be trained on, saved and loaded.",
        FutureWarning,
        stacklevel=3,
    )
