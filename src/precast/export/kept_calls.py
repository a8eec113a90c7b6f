"""Calls of submodules with their original arguments, where the program preserved their signature.

Before: ``linear = head(x)``, with whatever values the graph passes
After:  ``call = head(x, factor=2); linear = call['y']``, so that ``head`` can be replaced by another module.
"""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from precast.export.tracepoints import ModuleCallSignature
from precast.export.unlift import CallCodeGen
from precast.graph.signature import ArgumentSpec, NumberArgument, TensorArgument
from precast.trace.capture.call import as_identifier
from precast.trace.capture.prepare import unique_names

_PLAIN = (tuple, list, dict)


@dataclass(frozen=True)
class KeptCall:
    """One call with a preserved signature: its leaves in and out, as nodes of the flat graph or as constants."""

    signature: ModuleCallSignature
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def fits(self, read: Sequence[fx.Node], results: Sequence[fx.Node], inside: set[fx.Node]) -> bool:
        """Whether the nodes ``inside`` need no more than the signature passes: no state of others, no updates.

        What they write may be returned.
        """
        given = set(filter(_is_node, self.inputs))
        made = set(filter(_is_node, self.outputs))
        written = {node.args[0] for node in inside if node.target is torch.ops.aten.copy_.default}
        return set(read) <= given and set(results) <= made and made <= given | inside | written

    def codegen(self) -> CodeGen:
        """Generates code that takes and returns the original trees."""
        positional, named = self.signature.in_spec.children()
        known = (self.signature.forward_arg_names or ())[: positional.num_children]
        missing = [f"argument_{i}" for i in range(len(known), positional.num_children)]
        names = unique_names([as_identifier(name) for name in (*known, *missing, *named.context)])
        return CallCodeGen(_PyTreeInfo(names, self.signature.in_spec, self.signature.out_spec))

    def arguments(self, copied: Callable[[fx.Node], fx.Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the caller's graph passes."""
        leaves = [copied(leaf) if _is_node(leaf) else leaf for leaf in self.inputs]
        args, kwargs = pytree.tree_unflatten(leaves, self.signature.in_spec)
        return args, kwargs

    def results(self, called: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
        """Each returned value of the flat graph, with the node that extracts it from the result."""
        places, _ = pytree.tree_flatten_with_path(
            pytree.tree_unflatten(range(len(self.outputs)), self.signature.out_spec)
        )
        taken = {value: path for (path, _), value in zip(places, self.outputs, strict=True) if _is_node(value)}
        return [(value, _taken(called, path)) for value, path in taken.items()]


def kept_calls(
    signatures: Mapping[str, ModuleCallSignature | None], nodes: Mapping[str, fx.Node]
) -> dict[str, KeptCall]:
    """By path, the calls whose arguments are trees of tuples, lists and dicts over values of the flat graph."""
    calls: dict[str, KeptCall] = {}
    for path, signature in signatures.items():
        if signature is None or not (_is_plain(signature.in_spec) and _is_plain(signature.out_spec)):
            continue
        inputs, outputs = (_leaves(side, nodes) for side in (signature.inputs, signature.outputs))
        if inputs is not None and outputs is not None:
            calls[path] = KeptCall(signature, inputs, outputs)
    return calls


def warn_of_unfit(paths: Sequence[str]) -> None:
    """Tell of submodules that cannot be called by the signature that was kept."""
    warnings.warn(
        f"These submodules are not called by the signature that was kept: {', '.join(paths)}. They need values that "
        "are none of their arguments, such as buffers that others update between their calls. What is put in their "
        "place would be called otherwise than they were: do not exchange them.",
        stacklevel=3,
    )


def _leaves(arguments: Sequence[ArgumentSpec], nodes: Mapping[str, fx.Node]) -> tuple[Any, ...] | None:
    named = TensorArgument | NumberArgument
    if any(isinstance(argument, named) and argument.name not in nodes for argument in arguments):
        return None
    return tuple(nodes[a.name] if isinstance(a, named) else getattr(a, "value", None) for a in arguments)


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)


def _is_plain(tree: pytree.TreeSpec) -> bool:
    return tree.is_leaf() or (tree.type in _PLAIN and all(map(_is_plain, tree.children())))


def _taken(called: fx.Node, path: Sequence[Any]) -> fx.Node:
    value = called
    for step in path:
        key = step.idx if isinstance(step, pytree.SequenceKey) else step.key
        value = called.graph.call_function(operator.getitem, (value, key))
    return value
