"""Preserves the signatures of chosen submodules: tracing marks their entry and exit, and the marks are then read.

Before: ``linear = linear(x, …)`` inside the submodule ``head``
After:  ``tracepoint([x], 'head'); linear = linear(x, …); tracepoint([linear], 'head')`` while tracing, and an entry
``head: x -> linear`` in ``module_call_graph`` once the marks are removed.

Also lists all submodules that the program called.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from precast.errors import InputValueError
from precast.graph.nodes import called_path_of, set_value
from precast.graph.program import Program
from precast.graph.signature import ArgumentSpec, ConstantArgument, SymIntArgument, TensorArgument
from precast.trace.record import argument_spec


@dataclass(frozen=True)
class ModuleCallSignature:
    """The inputs and outputs of a submodule call, as names in the graph, with their tree structures."""

    inputs: tuple[ArgumentSpec, ...]
    outputs: tuple[ArgumentSpec, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    forward_arg_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ModuleCallEntry:
    """A submodule by its dotted path (empty for the whole program), with its call signature if that was preserved."""

    fqn: str
    signature: ModuleCallSignature | None = None


@dataclass(frozen=True)
class CallSpec:
    """The trees of a call: of ``(args, kwargs)`` and of the result."""

    in_spec: TreeSpec
    out_spec: TreeSpec


_library = torch.library.Library("precast", "DEF")
_library.define("tracepoint(Tensor[] values, SymInt[] sizes, str path, bool entering) -> ()")
_library.impl("tracepoint", lambda values, sizes, path, entering: None, "CompositeExplicitAutograd")


@dataclass(frozen=True)
class _Side:
    """The inputs or outputs of one call: their tree, and for each leaf the class of a tensor or size, or its value."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]


@dataclass
class Tracepoints:
    """What was observed of the chosen submodules; each mark has the number of its side."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sides: list[_Side] = field(default_factory=list)

    @contextmanager
    def marked(self, mod: torch.nn.Module, paths: Sequence[str]) -> Iterator[None]:
        """While active, calls of these submodules leave marks."""
        # A module may be registered under several of the paths: the marks name the one it was called by.
        submodules = {id(submodule): (path, submodule) for path in paths for submodule in [_submodule(mod, path)]}
        with ExitStack() as stack:
            for path, submodule in submodules.values():
                self.names[path] = tuple(inspect.signature(submodule.forward).parameters)
                stack.enter_context(patch.object(submodule, "forward", self._marking(submodule, path)))
            yield

    def _marking(self, submodule: torch.nn.Module, path: str) -> Any:
        original = submodule.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._mark(path, (args, kwargs), entering=True)
            result = original(*args, **kwargs)
            self._mark(path, result, entering=False)
            return result

        return forward

    def _mark(self, path: str, values: Any, *, entering: bool) -> None:
        leaves, tree = pytree.tree_flatten(values)
        traced = (torch.Tensor, torch.SymInt)
        kept = tuple(type(leaf) if isinstance(leaf, traced) else ConstantArgument("", leaf) for leaf in leaves)
        tensors, sizes = ([leaf for leaf in leaves if isinstance(leaf, kind)] for kind in traced)
        torch.ops.precast.tracepoint(tensors, sizes, f"{path}\n{len(self.sides)}", entering)
        self.sides.append(_Side(tree, kept))

    def read_off(self, program: Program) -> tuple[Program, list[ModuleCallEntry]]:
        """The program without the marks, and an entry for each call that they marked."""
        graph = program.copy_graph()
        marks: dict[str, list[fx.Node]] = {}
        for node in list(graph.nodes):
            if node.target is torch.ops.precast.tracepoint.default:
                marks.setdefault(str(node.args[2]).partition("\n")[0], []).append(node)
        entries = [entry for path, nodes in marks.items() for entry in self._entries(path, nodes)]
        for node in (node for nodes in marks.values() for node in nodes):
            graph.erase_node(node)
        return (program.replace(graph=graph) if marks else program), entries

    def _entries(self, path: str, nodes: list[fx.Node]) -> Iterator[ModuleCallEntry]:
        for number in range(0, len(nodes), 2):
            inputs, outputs = (self._side_of(node) for node in nodes[number : number + 2])
            signature = ModuleCallSignature(
                inputs=_arguments(inputs, nodes[number]),
                outputs=_arguments(outputs, nodes[number + 1]),
                in_spec=inputs.tree,
                out_spec=outputs.tree,
                forward_arg_names=self.names[path],
            )
            called = called_path_of(nodes[number])
            yield ModuleCallEntry(called or (path if number == 0 else f"{path}@{number // 2}"), signature)

    def _side_of(self, mark: fx.Node) -> _Side:
        # The program ran more than once, and not always to its end: the graph has the marks of one run.
        return self.sides[int(str(mark.args[2]).partition("\n")[2])]


def with_marks(program: Program, calls: Sequence[ModuleCallEntry]) -> Program:
    """The program with marks for the signatures of these calls, so that they can be recovered after a transform."""
    if not any(entry.signature for entry in calls if entry.fqn):
        return program
    graph = program.copy_graph()
    nodes = {node.name: node for node in graph.nodes}
    with graph.inserting_before(graph.output_node()):
        for entry in calls:
            for entering in (True, False) if entry.fqn and entry.signature else ():
                assert entry.signature is not None, "checked above"
                arguments = entry.signature.inputs if entering else entry.signature.outputs
                kinds = (TensorArgument, SymIntArgument)
                values, sizes = ([nodes[a.name] for a in arguments if isinstance(a, kind)] for kind in kinds)
                mark = graph.call_function(torch.ops.precast.tracepoint.default, (values, sizes, entry.fqn, entering))
                set_value(mark, None)
    return program.replace(graph=graph)


def without_marks(program: Program, calls: Sequence[ModuleCallEntry]) -> tuple[Program, list[ModuleCallEntry]]:
    """The program without marks, and the same calls with the current names of their values."""
    graph = program.copy_graph()
    marks = [node for node in graph.nodes if node.target is torch.ops.precast.tracepoint.default]
    names = {(mark.args[2], mark.args[3]): mark for mark in marks}
    for mark in marks:
        graph.erase_node(mark)
    renamed = [
        entry
        if entry.signature is None or not entry.fqn
        else replace(
            entry,
            signature=replace(
                entry.signature,
                inputs=_renamed(entry.signature.inputs, names[entry.fqn, True]),
                outputs=_renamed(entry.signature.outputs, names[entry.fqn, False]),
            ),
        )
        for entry in calls
    ]
    return (program.replace(graph=graph) if marks else program), renamed


def _renamed(arguments: Sequence[ArgumentSpec], mark: fx.Node) -> tuple[ArgumentSpec, ...]:
    named = {TensorArgument: torch.Tensor, SymIntArgument: torch.SymInt}
    return _arguments(_Side(pytree.treespec_leaf(), tuple(named.get(type(a), a) for a in arguments)), mark)


def _submodule(mod: torch.nn.Module, path: str) -> torch.nn.Module:
    try:
        return mod.get_submodule(path)
    except AttributeError as problem:
        raise InputValueError(
            f"preserve_module_call_signature names {path!r}, but the module has no such submodule.",
            why=str(problem),
            fix="Use dotted paths as in named_modules().",
        ) from None


def _arguments(side: _Side, mark: fx.Node) -> tuple[ArgumentSpec, ...]:
    tensors, sizes = (iter(pytree.tree_leaves(values)) for values in mark.args[:2])
    return tuple(
        leaf if isinstance(leaf, ArgumentSpec) else argument_spec(next(sizes if leaf is torch.SymInt else tensors), 0)
        for leaf in side.leaves
    )
