"""An exported program as a hierarchy of modules again, as the original had it.

Before: ``module(x)``: one flat graph over ``encoder.layer.weight``
After:  ``module(x)`` calls ``module.encoder``, which calls ``module.encoder.layer``, which owns ``weight``.

Calls of submodules in the form that the original used, where the program kept their signature.

Before: ``linear = head(x)``, with whatever the graph happens to pass
After:  ``call = head(x, factor=2); linear = call['y']``, so that ``head`` can be exchanged for another module.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from precast.export.program import ExportedProgram
from precast.export.tracepoints import ModuleCallSignature
from precast.export.unlift import CallCodeGen, ExportedModule, ensure_module, finish_module
from precast.graph.nodes import set_value, value_of
from precast.graph.signature import ArgumentSpec, TensorArgument
from precast.trace.capture.call import as_identifier
from precast.trace.capture.prepare import unique_names

_PLAIN = (tuple, list, dict)


@dataclass(frozen=True)
class KeptCall:
    """One call whose signature was kept: its leaves in and out, as nodes of the flat graph or as constants."""

    signature: ModuleCallSignature
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def fits(self, read: Sequence[fx.Node], results: Sequence[fx.Node], inside: set[fx.Node]) -> bool:
        """Whether the nodes ``inside`` need no more than the signature passes: no state of others, no updates."""
        given = set(filter(_is_node, self.inputs))
        made = set(filter(_is_node, self.outputs))
        return set(read) <= given and set(results) <= made and made <= given | inside

    def codegen(self) -> CodeGen:
        """Takes and gives the original trees."""
        positional, named = self.signature.in_spec.children()
        known = (self.signature.forward_arg_names or ())[: positional.num_children]
        missing = [f"argument_{i}" for i in range(len(known), positional.num_children)]
        names = unique_names([as_identifier(name) for name in (*known, *missing, *named.context)])
        return CallCodeGen(_PyTreeInfo(names, self.signature.in_spec, self.signature.out_spec))

    def arguments(self, copied: Callable[[fx.Node], fx.Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the caller's graph passes."""
        leaves = [copied(leaf) if _is_node(leaf) else leaf for leaf in self.inputs]
        args, kwargs = pytree.tree_unflatten(leaves, self.signature.in_spec)
        return args, kwargs

    def results(self, called: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
        """Each value of the flat graph that comes back, with the node that takes it out of what was returned."""
        places, _ = pytree.tree_flatten_with_path(
            pytree.tree_unflatten(range(len(self.outputs)), self.signature.out_spec)
        )
        taken = {value: path for (path, _), value in zip(places, self.outputs, strict=True) if _is_node(value)}
        return [(value, _taken(called, path)) for value, path in taken.items()]


def kept_calls(
    signatures: Mapping[str, ModuleCallSignature | None], nodes: Mapping[str, fx.Node]
) -> dict[str, KeptCall]:
    """By path, the calls that a graph can spell: trees of tuples, lists and dicts over values of the flat graph."""
    calls: dict[str, KeptCall] = {}
    for path, signature in signatures.items():
        if signature is None or not (_is_plain(signature.in_spec) and _is_plain(signature.out_spec)):
            continue
        inputs, outputs = (_leaves(side, nodes) for side in (signature.inputs, signature.outputs))
        if inputs is not None and outputs is not None:
            calls[path] = KeptCall(signature, inputs, outputs)
    return calls


def _leaves(arguments: Sequence[ArgumentSpec], nodes: Mapping[str, fx.Node]) -> tuple[Any, ...] | None:
    if any(isinstance(argument, TensorArgument) and argument.name not in nodes for argument in arguments):
        return None
    return tuple(nodes[a.name] if isinstance(a, TensorArgument) else getattr(a, "value", None) for a in arguments)


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


def unflatten(program: ExportedProgram) -> ExportedModule:
    """A module with the original's submodules, each running its own part of the graph; called as the original was.

    A submodule that was called again later, with other nodes between, is there a second time as ``name@1``, over the
    same parameters. A submodule whose call signature was kept is called by it, and so can be exchanged; except where it
    needs more than its arguments, as for a second call over the same state, or updates buffers.

    >>> from precast.export import export
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> [name for name, _ in unflatten(export(model, (torch.ones(1, 2),))).named_children()]
    ['0', '1']
    """
    flat = program.module()
    nodes = [node for node in flat.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    signatures = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.fqn}
    kept = kept_calls(signatures, {node.name: node for node in flat.graph.nodes})
    level = _Level("", 0, flat, kept)
    level.take_inputs([node for node in flat.graph.nodes if node.op == "placeholder"])
    level.add(nodes)
    output = flat.graph.output_node()
    level.graph.output(fx.map_arg(output.args[0], level.copied))
    level.graph.set_codegen(flat.graph._codegen)
    module = ExportedModule(level.root, level.graph, "UnflattenedModule")
    return finish_module(module, flat)


@dataclass
class _Level:
    """The graph of one module on its way: its dotted path, how deep it is, and what it has read so far.

    A module that is there a second time does not own its state, but is given it.
    """

    path: str
    depth: int
    flat: ExportedModule
    kept: Mapping[str, KeptCall]
    owns_state: bool = True
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def take_inputs(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)

    def add(self, nodes: Sequence[fx.Node]) -> None:
        """Nodes of this module itself are copied; a run of nodes of one submodule becomes a call of it."""
        for child, run in groupby(nodes, key=self._child_of):
            if child is None:
                for node in run:
                    self.copies[node] = self.graph.node_copy(node, self.copied)
            else:
                self._call(child, list(run))

    def _child_of(self, node: fx.Node) -> str | None:
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        inner = stack[self.depth + 1] if len(stack) > self.depth + 1 else None
        return inner if inner and inner.startswith(f"{self.path}." if self.path else "") else None

    def copied(self, node: fx.Node) -> fx.Node:
        """The node in this graph; attributes are read when they are first needed."""
        if node not in self.copies:
            assert node.op == "get_attr", f"{node.name} is read before it is computed"
            target = self._relative(str(node.target))
            self._own(target, str(node.target))
            self.copies[node] = self.graph.create_node("get_attr", target, name=node.name)
            self.copies[node].meta = dict(node.meta)
        return self.copies[node]

    def _relative(self, target: str) -> str:
        return target.removeprefix(f"{self.path}.") if self.path else target

    def _own(self, target: str, full: str) -> None:
        owner, _, name = full.rpartition(".")
        home = self.flat.get_submodule(owner)
        place = ensure_module(self.root, target.rpartition(".")[0])
        value = getattr(home, name)
        if isinstance(value, torch.nn.Module):
            place.add_module(name, value)
        elif isinstance(value, torch.nn.Parameter):
            place.register_parameter(name, value)
        else:
            place.register_buffer(name, value)

    def _reads_by_itself(self, node: fx.Node) -> bool:
        """Whether the module reads an attribute and is not given it: its own state, and graphs of control flow."""
        if node.op != "get_attr":
            return False
        is_own = self.owns_state and str(node.target).startswith(f"{self.path}.")
        return is_own or isinstance(self._graph_at(node), fx.GraphModule)

    def _graph_at(self, node: fx.Node) -> object:
        owner, _, name = str(node.target).rpartition(".")
        return getattr(self.flat.get_submodule(owner), name)

    def _call(self, path: str, run: list[fx.Node]) -> None:
        inside = set(run)
        read = list(dict.fromkeys(n for node in run for n in node.all_input_nodes if n not in inside))
        outputs = [node for node in run if any(user not in inside for user in node.users)]
        target = self._fresh(self._relative(path))
        level = _Level(path, self.depth + 1, self.flat, self.kept, self.owns_state and "@" not in target)
        inputs = [node for node in read if not level._reads_by_itself(node)]
        kept = self.kept.get(f"{self.path}.{target}" if self.path else target)
        name = f"from_{run[-1].name}"
        if kept is not None and kept.fits(inputs, outputs, inside):
            self._install(target, level.as_kept(kept, run))
            called = self.graph.create_node("call_module", target, *kept.arguments(self.copied), name=name)
            for node, taken in kept.results(called):
                self._note(node, taken)
            return
        self._install(target, level.as_called(inputs, outputs, run))
        called = self.graph.create_node("call_module", target, tuple(map(self.copied, inputs)), name=name)
        if len(outputs) == 1:
            self._note(outputs[0], called)
            return
        set_value(called, tuple(value_of(node) for node in outputs))
        for position, node in enumerate(outputs):
            self._note(node, self.graph.call_function(operator.getitem, (called, position)))

    def as_called(
        self, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], run: Sequence[fx.Node]
    ) -> fx.GraphModule:
        """A submodule that takes and gives just what the graph around it needs."""
        self.take_inputs(inputs)
        self.add(run)
        results = [self.copies[node] for node in outputs]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        return self._module()

    def as_kept(self, kept: KeptCall, run: Sequence[fx.Node]) -> fx.GraphModule:
        """A submodule that takes and gives what the original did."""
        for leaf in kept.inputs:
            if isinstance(leaf, fx.Node):
                self.take_inputs([leaf])
            else:
                self.graph.placeholder("constant")
        self.add(run)
        self.graph.output(tuple(self.copied(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in kept.outputs))
        self.graph.set_codegen(kept.codegen())
        return self._module()

    def _module(self) -> fx.GraphModule:
        return fx.GraphModule(self.root, self.graph, "Submodule")

    def _install(self, target: str, module: fx.GraphModule) -> None:
        place, _, name = target.rpartition(".")
        ensure_module(self.root, place).add_module(name, module)

    def _note(self, original: fx.Node, copy: fx.Node) -> None:
        copy.meta = dict(original.meta)
        self.copies[original] = copy

    def _fresh(self, target: str) -> str:
        place, _, name = target.rpartition(".")
        taken = ensure_module(self.root, place)._modules
        number, fresh = 0, name
        while isinstance(taken.get(fresh), fx.GraphModule):
            number += 1
            fresh = f"{name}@{number}"
        return f"{place}.{fresh}" if place else fresh
