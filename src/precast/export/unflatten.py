"""Restores the module hierarchy of the original from an exported program.

Before: ``module(x)``: one flat graph over ``encoder.layer.weight``
After:  ``module(x)`` calls ``module.encoder``, which calls ``module.encoder.layer``, which owns ``weight``.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.errors import ExportError
from precast.export.kept_calls import KeptCall, kept_calls, warn_of_unfit
from precast.export.program import ExportedProgram
from precast.export.signature import ExportGraphSignature
from precast.export.torch_files.convert import from_torch
from precast.export.tracepoints import ModuleCallEntry
from precast.export.unlift import ExportedModule, ensure_module, finish_module, order_submodules
from precast.export.updates_in_calls import Stack, place_updates
from precast.graph.nodes import has_value, set_value, tensor_of, value_of
from precast.graph.tensor_spec import TensorSpec
from precast.trace.capture.call import as_identifier

_CONVERSIONS = {getattr(torch.ops.aten.to, name) for name in torch.ops.aten.to.overloads()}


class FlatArgsAdapter(ABC):
    """Adapts calls whose arguments have another tree structure than the program's."""

    @abstractmethod
    def adapt(
        self,
        target_spec: pytree.TreeSpec,
        input_spec: pytree.TreeSpec,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any | None = None,
    ) -> list[Any]:
        """Return the leaves of the call in the order of ``target_spec``."""


class UnflattenedModule(ExportedModule):
    """The module that ``unflatten`` returns; it checks calls as the exported module does."""

    def type_name(self) -> str | None:
        """Return the name of the original module's class."""
        name: str | None = self.meta.get("type_name")
        return name

    @property
    def graph_module(self) -> fx.GraphModule:
        return self

    @property
    def graph_signature(self) -> ExportGraphSignature:
        return self._program.graph_signature

    @property
    def module_call_graph(self) -> list[ModuleCallEntry]:
        return self._program.module_call_graph

    @property
    def range_constraints(self) -> dict[Any, Any]:
        return self._program.range_constraints

    @property
    def _program(self) -> ExportedProgram:
        program: ExportedProgram = self.meta["program"]
        return program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        adapter: FlatArgsAdapter | None = self.meta.get("flat_args_adapter")
        if adapter is not None:
            wanted: pytree.TreeSpec = self.meta["call_convention"].in_tree
            leaves, tree = pytree.tree_flatten((args, kwargs))
            if tree != wanted:
                args, kwargs = pytree.tree_unflatten(adapter.adapt(wanted, tree, leaves), wanted)
        return super().__call__(*args, **kwargs)


class InterpreterModule(fx.GraphModule):
    """A submodule with its own part of the graph."""

    def type_name(self) -> str | None:
        """The class of the original submodule."""
        name: str | None = self.meta.get("type_name")
        return name

    @property
    def graph_module(self) -> fx.GraphModule:
        return self


class InterpreterModuleDispatcher(torch.nn.Module):
    """A submodule whose calls differ: each call within the program runs the next graph."""

    def __init__(self, calls: Sequence[InterpreterModule]) -> None:
        super().__init__()
        first = calls[0]
        for call in calls[1:]:
            for own, others in ((first._parameters, call._parameters), (first._buffers, call._buffers)):
                own |= {name: value for name, value in others.items() if name not in own}
            call._parameters, call._buffers = first._parameters, first._buffers
        self._parameters, self._buffers, self._modules = first._parameters, first._buffers, first._modules
        self._non_persistent_buffers_set = first._non_persistent_buffers_set
        # In a tuple, since modules that are attributes would become submodules.
        self._calls, self._number = tuple(calls), 0

    @property
    def hidden_modules(self) -> list[torch.nn.Module]:
        """The modules for the individual calls, which are not submodules: ``state_dict`` has their state once."""
        return [each for call in self._calls for each in call.modules()]

    def type_name(self) -> str | None:
        """The class of the original submodule."""
        return self._calls[0].type_name()

    def call_modules(self) -> list[InterpreterModule]:
        """The modules for the individual calls."""
        return list(self._calls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self._calls[self._number]
        self._number = (self._number + 1) % len(self._calls)
        return call(*args, **kwargs)


def unflatten(module: ExportedProgram, flat_args_adapter: FlatArgsAdapter | None = None) -> UnflattenedModule:
    """Return a module with the submodules of the original, each running its own part of the graph.

    It is called as the original was. A shared submodule stays one object; one that does something different on a later
    call appears a second time as ``name@1``, over the same parameters. A submodule whose call signature was preserved
    can be swapped for another module, unless it needs more than its arguments, such as buffers that others update
    between its calls: a warning names it. ``flat_args_adapter`` adapts calls whose arguments have another tree.

    >>> from precast.export import export
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> [name for name, _ in unflatten(export(model, (torch.ones(1, 2),))).named_children()]
    ['0', '1']
    """
    module = from_torch(module)
    if module.graph_signature.backward_signature is not None:
        raise ExportError(
            "A program with gradients has no module hierarchy.",
            why="its gradients belong to no submodule",
            fix="Unflatten the program that it was made from.",
        )
    flat = module.module()
    stacks = _stacks(flat.graph)
    _read_before_conversion(flat.graph, stacks)
    signatures = {entry.fqn: entry.signature for entry in module.module_call_graph if entry.fqn}
    named = {node.name: node for node in flat.graph.nodes}
    named |= place_updates(flat.graph, stacks, module.module_call_graph)
    plan = _Plan(flat, kept_calls(signatures, named), _names_of_state(flat, module), stacks)
    level = _Level(plan, "", 0)
    level.take_inputs([node for node in flat.graph.nodes if node.op == "placeholder"])
    level.add([node for node in flat.graph.nodes if node.op not in ("placeholder", "get_attr", "output")])
    output = flat.graph.output_node()
    level.graph.output(fx.map_arg(output.args[0], level.copied))
    level.graph.set_codegen(flat.graph._codegen)
    level.take_turns()
    made = UnflattenedModule(level.root, level.graph, "UnflattenedModule")
    for entry in module.module_call_graph:
        if "@" not in entry.fqn:
            ensure_module(made, entry.fqn)
    finish_module(made, flat)
    order_submodules(made, [entry.fqn for entry in module.module_call_graph])
    made.register_state_dict_post_hook(_drop_repeated)  # type: ignore[no-untyped-call]
    made.register_load_state_dict_pre_hook(_add_repeated)  # type: ignore[no-untyped-call]
    made.meta |= {"type_name": plan.root_kind, "flat_args_adapter": flat_args_adapter, "program": module}
    if plan.unfit:
        warn_of_unfit(sorted(set(plan.unfit)))
    return made


def _drop_repeated(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The state of ``name@1`` is that of ``name``."""
    for key in [key for key in state if key.startswith(prefix) and _original_name(key) in {*state} - {key}]:
        del state[key]


def _add_repeated(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, _value in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        if (original := f"{prefix}{_original_name(name)}") in state:
            state.setdefault(f"{prefix}{name}", state[original])


def _original_name(name: str) -> str:
    return ".".join(part.partition("@")[0] for part in name.split("."))


def _names_of_state(flat: ExportedModule, program: ExportedProgram) -> dict[str, list[str]]:
    """All names of each piece of state that the flat graph reads, by the name that it uses."""
    names = {str(node.target): [str(node.target)] for node in flat.graph.nodes if node.op == "get_attr"}
    for alias, name in program.origin.aliases:
        names.setdefault(name, [name]).append(alias)
    return names


def _stacks(graph: fx.Graph) -> dict[fx.Node, Stack]:
    """The calls around every node; a node without this information is where both its neighbours are."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    recorded = [list((node.meta.get("nn_module_stack") or {}).items()) for node in nodes]
    before: list[Stack] = [()]
    after: list[Stack] = [()]
    for stack in recorded:
        before.append(stack or before[-1])
    for stack in reversed(recorded):
        after.append(stack or after[-1])
    return {node: recorded[i] or _common(before[i], after[len(nodes) - 1 - i]) for i, node in enumerate(nodes)}


def _read_before_conversion(graph: fx.Graph, stacks: Mapping[fx.Node, Stack]) -> None:
    """``x.to(x.dtype)`` is ``x`` itself, which the graph then reads as ``to``; other submodules should read ``x``."""
    for node in graph.nodes:
        if node.target in _CONVERSIONS and not node.kwargs.get("copy") and _is_of_one_kind(node, node.args[0]):
            home = [key for key, _ in stacks[node]]
            is_inside = lambda user, home=home: [key for key, _ in stacks.get(user, ())][: len(home)] == home  # noqa: E731
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user, check=is_inside: not check(user))


def _is_of_one_kind(node: fx.Node, other: Any) -> bool:
    return isinstance(other, fx.Node) and TensorSpec.of(tensor_of(node)) == TensorSpec.of(tensor_of(other))


def _common(first: Stack, second: Stack) -> Stack:
    shared = []
    for one, other in zip(first, second, strict=False):
        if one[0] != other[0]:
            break
        shared.append(one)
    return shared


@dataclass
class _Plan:
    """Shared by all levels: the flat module, calls with preserved signatures, names of state, calls of nodes."""

    flat: ExportedModule
    kept: Mapping[str, KeptCall]
    state_names: Mapping[str, list[str]]
    stacks: Mapping[fx.Node, Stack]
    made: dict[str, InterpreterModule] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)

    @property
    def root_kind(self) -> str | None:
        return next((stack[0][1][1] for stack in self.stacks.values() if stack), None)

    def value_at(self, target: str) -> Any:
        owner, _, name = target.rpartition(".")
        return getattr(self.flat.get_submodule(owner), name)

    def one_of_each(self, module: InterpreterModule) -> InterpreterModule:
        """The module, or an earlier one that does the same over the same state, if it has any."""
        form, has_parts = _form(module)
        return self.made.setdefault(form, module) if has_parts else module


def _form(module: InterpreterModule) -> tuple[str, bool]:
    """A key of what a graph does, with which state and submodules, and whether it has any of these."""
    numbers = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    lines: list[object] = [getattr(module.graph._codegen, "pytree_info", None)]
    has_parts = False
    for node in module.graph.nodes:
        target: object = None if node.op == "placeholder" else node.target
        if node.op in ("get_attr", "call_module"):
            target, has_parts = id(_attribute(module, str(node.target))), True
        lines.append((node.op, target, str(fx.map_arg((node.args, node.kwargs), numbers.__getitem__))))
    return str(lines), has_parts


def _attribute(module: torch.nn.Module, path: str) -> object:
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name)


@dataclass
class _Level:
    """The graph of one module under construction: its dotted path, its depth, and what it has read so far."""

    plan: _Plan
    path: str
    depth: int
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)
    calls: dict[str, list[tuple[fx.Node, InterpreterModule]]] = field(default_factory=dict)
    unkept: set[str] = field(default_factory=set)

    def take_inputs(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)

    def add(self, nodes: Sequence[fx.Node]) -> None:
        """Copy nodes of this module itself; a run of nodes from one call of a submodule becomes that call."""
        for child, run in groupby(nodes, key=self._child_of):
            if child is None:
                for node in run:
                    self.copies[node] = self.graph.node_copy(node, self.copied)
            else:
                self._call(*child, list(run))

    def _child_of(self, node: fx.Node) -> tuple[str, str, str] | None:
        """The submodule call that a node belongs to: its key, and the submodule's path and class."""
        stack = self.plan.stacks[node]
        if len(stack) <= self.depth + 1:
            return None
        key, (path, kind) = stack[self.depth + 1]
        return (key, path, kind) if path.startswith(f"{self.path}." if self.path else "") and path else None

    def copied(self, node: fx.Node) -> fx.Node:
        """The node in this graph; attributes are read, and sizes computed, at their first use."""
        if node not in self.copies and node.op == "get_attr":
            target = self._own_name(str(node.target))
            self._own(target, self.plan.value_at(str(node.target)))
            self.copies[node] = self.graph.create_node("get_attr", target, name=as_identifier(target))
            self.copies[node].meta = dict(node.meta)
        elif node not in self.copies:
            assert _is_size(node), f"{node.name} is read before it is computed"
            self.copies[node] = self.graph.node_copy(node, self.copied)
        return self.copies[node]

    def _may_compute(self, node: fx.Node) -> bool:
        """Whether a node is of this graph, or a size that is computed from those that are."""
        return node in self.copies or (_is_size(node) and all(map(self._may_compute, node.all_input_nodes)))

    def _own_name(self, target: str) -> str:
        """This module's name for some state; another module's state is held under a name of its own."""
        start = f"{self.path}." if self.path else ""
        own = [name for name in self.plan.state_names[target] if name.startswith(start)]
        return own[0].removeprefix(start) if own else target.replace(".", "_")

    def _own(self, target: str, value: Any) -> None:
        owner, _, name = target.rpartition(".")
        place = ensure_module(self.root, owner)
        if isinstance(value, torch.nn.Module):
            place.add_module(name, value)
        elif isinstance(value, torch.nn.Parameter):
            place.register_parameter(name, value)
        else:
            place.register_buffer(name, value)

    def reads_by_itself(self, node: fx.Node) -> bool:
        """Whether the module reads an attribute itself instead of receiving it: its own state, and subgraphs."""
        if node.op != "get_attr":
            return False
        is_own = any(name.startswith(f"{self.path}.") for name in self.plan.state_names[str(node.target)])
        return is_own or isinstance(self.plan.value_at(str(node.target)), fx.GraphModule)

    def _call(self, key: str, path: str, kind: str, run: list[fx.Node]) -> None:
        inside = set(run)
        read = list(dict.fromkeys(n for node in run for n in node.all_input_nodes if n not in inside))
        outputs = [node for node in run if any(user not in inside for user in node.users)]
        level = _Level(self.plan, path, self.depth + 1)
        inputs = [node for node in read if not level.reads_by_itself(node)]
        number = key.rpartition("@")[2]
        kept = self.plan.kept.get(f"{path}@{number}" if number.isdigit() and "@" in key else path)
        target = path.removeprefix(f"{self.path}.") if self.path else path
        name = as_identifier(target if target != "self" else "self_")
        results = [node for node in outputs if not self._may_compute(node)]
        if kept is not None and kept.fits(level.needed(inputs, kept), results, inside):
            made = self._installed(target, level.as_kept(kept, run, kind))
            called = self.graph.create_node("call_module", made[0], *kept.arguments(self.copied), name=name)
            for node, taken in kept.results(called):
                self._note(node, taken)
        else:
            self.unkept.add(target)
            if kept is not None:
                self.plan.unfit.append(path)
            made = self._installed(target, level.as_called(inputs, outputs, run, kind))
            called = self.graph.create_node("call_module", made[0], tuple(map(self.copied, inputs)), name=name)
            self._take_outputs(called, outputs)
        self.calls.setdefault(target, []).append((called, made[1]))

    def _take_outputs(self, called: fx.Node, outputs: Sequence[fx.Node]) -> None:
        if len(outputs) == 1:
            self._note(outputs[0], called)
            return
        set_value(called, tuple(value_of(node) for node in outputs))
        for position, node in enumerate(outputs):
            self._note(node, self.graph.call_function(operator.getitem, (called, position)))

    def needed(self, inputs: Sequence[fx.Node], kept: KeptCall) -> list[fx.Node]:
        """The arguments of a call with a preserved signature: it computes sizes, and holds constants."""
        given = set(kept.inputs)
        return [node for node in inputs if node not in given and not self._is_at_hand(node, given)]

    def _is_at_hand(self, node: fx.Node, given: set[Any]) -> bool:
        if node in given:
            return True
        if node.op == "get_attr":
            value = self.plan.value_at(str(node.target))
            is_constant = str(node.target) in dict(self.plan.flat.meta["unsaved"])
            return is_constant and not _is_written(node) and isinstance(value, torch.Tensor)
        return _is_size(node) and all(self._is_at_hand(each, given) for each in node.all_input_nodes)

    def as_called(
        self, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], run: Sequence[fx.Node], kind: str
    ) -> InterpreterModule:
        """A submodule that takes and returns only what the graph around it needs."""
        self.take_inputs(inputs)
        self.add(run)
        results = [self.copies[node] for node in outputs]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        return self._module(kind)

    def as_kept(self, kept: KeptCall, run: Sequence[fx.Node], kind: str) -> InterpreterModule:
        """A submodule that takes and returns what the original did."""
        for leaf in kept.inputs:
            if isinstance(leaf, fx.Node) and leaf not in self.copies:
                self.take_inputs([leaf])
            else:
                self.graph.placeholder("constant")
        self.add(run)
        self.graph.output(tuple(self.copied(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in kept.outputs))
        self.graph.set_codegen(kept.codegen())
        return self._module(kind)

    def _module(self, kind: str) -> InterpreterModule:
        self.take_turns()
        made = InterpreterModule(self.root, self.graph, "InterpreterModule")
        made.meta["type_name"] = kind
        return made

    def take_turns(self) -> None:
        """Combine the different calls of a submodule with a preserved signature into one dispatching module."""
        for target, calls in self.calls.items():
            if target in self.unkept or len({id(module) for _, module in calls}) == 1:
                continue
            for node, _ in calls:
                place, _, name = str(node.target).rpartition(".")
                ensure_module(self.root, place)._modules.pop(name, None)
                node.target = target
            place, _, name = target.rpartition(".")
            ensure_module(self.root, place).add_module(
                name, InterpreterModuleDispatcher([module for _, module in calls])
            )

    def _installed(self, target: str, made: InterpreterModule) -> tuple[str, InterpreterModule]:
        """Install a submodule at its path, unless it is there already; returns its name."""
        module = self.plan.one_of_each(made)
        place, _, name = target.rpartition(".")
        home = ensure_module(self.root, place)._modules
        fresh, number = name, 0
        while isinstance(there := home.get(fresh), InterpreterModule) and there is not module:
            if _form(there) == _form(module):
                module = there
                break
            number += 1
            fresh = f"{name}@{number}"
        if there is not module:
            _take_over(module, there)
            home[fresh] = module
        return (f"{place}.{fresh}" if place else fresh), module

    def _note(self, original: fx.Node, copy: fx.Node) -> None:
        copy.meta = dict(original.meta)
        self.copies[original] = copy


def _is_size(node: fx.Node) -> bool:
    """Whether a node computes a number from sizes."""
    is_number = has_value(node) and isinstance(value_of(node), torch.SymInt | torch.SymFloat | torch.SymBool)
    return node.op == "call_function" and is_number and node.target is not torch.ops.aten._local_scalar_dense.default


def _is_written(node: fx.Node) -> bool:
    return any(user.target is torch.ops.aten.copy_.default and user.args[0] is node for user in node.users)


def _take_over(module: torch.nn.Module, before: torch.nn.Module | None) -> None:
    """Pass on what was read from a submodule, and from those in it, before it was called."""
    if before is None or before is module:
        return
    for own, others in ((module._parameters, before._parameters), (module._buffers, before._buffers)):
        own |= {name: value for name, value in others.items() if name not in own}
    for name, child in before._modules.items():
        if (own_child := module._modules.setdefault(name, child)) is not None:
            _take_over(own_child, child)
