"""Turns an exported program into a module that is called like the original.

Before: ``graph(p_weight, b_count, x) -> (add, relu)`` with ``BUFFER_MUTATION count; USER_OUTPUT``
After:  ``module(x) -> relu`` with ``weight`` and ``count`` inside, and ``copy_(count, add)`` before it returns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.traceback import NodeSource, NodeSourceAction

from precast.errors import FrozenModeError
from precast.export.serialize.names import attribute_paths
from precast.graph.calls import CallConvention
from precast.graph.nodes import placeholders_of, results_of
from precast.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec, Signature
from precast.ops.facts import is_view
from precast.ops.operators_in_files import check_calls, with_checked_calls
from precast.trace.capture.call import as_identifier
from precast.trace.capture.prepare import unique_names

MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_ON_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.GRADIENT_TO_PARAMETER)
_RETURNED = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_aten = torch.ops.aten
NORMALIZING_AND_UPDATING = {
    _aten._native_batch_norm_legit_functional.default,
    _aten._batch_norm_with_update_functional.default,
}


class ExportedModule(fx.GraphModule):
    """A self-contained module made from an exported program; its calls are checked first."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        convention: CallConvention = self.meta["call_convention"]
        args, kwargs = convention.normalized(args, kwargs, checks_leaves=self.meta["checks_calls"])
        # By position: a keyword that is not a Python name is renamed in the generated code.
        return super().__call__(*args, *kwargs.values())

    def train(self, mode: bool = True) -> NoReturn:
        """Refuse: the graph has no modes."""
        raise frozen_mode("train" if mode else "eval")

    def eval(self) -> NoReturn:
        """Refuse: the graph has no modes."""
        raise frozen_mode("eval")


def frozen_mode(method: str) -> FrozenModeError:
    wanted = "train()" if method == "train" else "eval()"
    return FrozenModeError(
        f"A captured module has no {method}().",
        why="what dropout, batch norm and Python branches do in training or evaluation was fixed when it was captured",
        fix=f"Call {wanted} on the original module and capture that. To make {method}() harmless where a library calls "
        f"it, override it: module.{method} = types.MethodType(lambda self, *_: self, module).",
    )


def unlift(
    graph_module: fx.GraphModule,
    signature: Signature,
    state: Mapping[str, torch.Tensor],
    convention: CallConvention,
    *,
    module_paths: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    checks_calls: bool = True,
) -> ExportedModule:
    """A module over ``state`` (shared, not copied); ``aliases`` are further names of some of it.

    Names that cannot be attributes are changed.
    """
    aliases = aliases or {}
    rename = attribute_paths([*state, *aliases, *module_paths])
    if rename is not None:
        signature = _renamed(signature, rename)
        state = {rename(name): tensor for name, tensor in state.items()}
        aliases = {rename(alias): rename(name) for alias, name in aliases.items()}
        module_paths = list(map(rename, module_paths))
    graph, copies = _without_state_inputs(graph_module, signature)
    _note_sources(copies)
    _apply_updates(graph, signature, copies, graph_module)
    names = unique_names(list(map(as_identifier, convention.argument_names)))
    graph.set_codegen(CallCodeGen(_PyTreeInfo(names, signature.in_tree, signature.out_tree)))
    root = _hierarchy(signature, state, module_paths)
    for name, child in graph_module.named_children():
        if isinstance(child, fx.GraphModule):
            root.add_module(name, with_checked_calls(child))
    check_calls(graph)
    module = ExportedModule(root, graph, "ExportedModule")
    module.meta |= users_meta(graph_module)
    module.meta |= {"call_convention": convention, "checks_calls": checks_calls}
    module.meta["unsaved"] = tuple(_unsaved(signature))
    # GraphModule copies what its graph reads; here follow the rest of the hierarchy and further names of tied state.
    for path in module_paths:
        ensure_module(module, path)
    for alias, name in aliases.items():
        _set(module, alias, state[name])
    _restore_kinds(module)
    module._deepcopy_hooks = [_restore_kinds]
    return module


def users_meta(module: object) -> dict[str, Any]:
    """The metadata that users added to a graph module, which is copied to everything made from it."""
    noted = getattr(module, "meta", {})
    return {"custom": noted["custom"]} if isinstance(module, fx.GraphModule) and "custom" in noted else {}


def _renamed(signature: Signature, rename: Callable[[str], str]) -> Signature:
    inputs = [spec if spec.target is None else replace(spec, target=rename(spec.target)) for spec in signature.inputs]
    outputs = [
        replace(spec, target=rename(spec.target)) if spec.kind in _ON_STATE and spec.target is not None else spec
        for spec in signature.outputs
    ]
    return replace(signature, inputs=tuple(inputs), outputs=tuple(outputs))


def finish_module(module: ExportedModule, like: ExportedModule) -> ExportedModule:
    """Give ``module``, another form of ``like``, the same checks, and the state that its graph does not read."""
    module.meta = dict(like.meta)
    unsaved = {path: value for path, _ in like.meta["unsaved"] for value in _values_at(like, path)}
    for name, tensor in (like.state_dict(keep_vars=True) | unsaved).items():
        owner, _, last = name.rpartition(".")
        if not hasattr(ensure_module(module, owner), last):
            _set(module, name, tensor)
    _restore_kinds(module)
    module._deepcopy_hooks = [_restore_kinds]
    return module


class CallCodeGen(_PyTreeCodeGen):
    """Flattens the original arguments by their own tree, whatever types are registered."""

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        positional, named = self.pytree_info.in_spec.children()
        names = self.pytree_info.orig_args
        args = "".join(f"{name}, " for name in names[: positional.num_children])
        keywords = zip(named.context, names[positional.num_children :], strict=True)
        kwargs = ", ".join(f"{key!r}: {name}" for key, name in keywords)
        variables = ", ".join(variable.split(":")[0].split("#")[0] for variable in free_vars)
        return f"\n    {variables}, = pytree.tree_leaves((({args}), {{{kwargs}}}))"


def _without_state_inputs(
    graph_module: fx.GraphModule, signature: Signature
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of the graph in which state is read from attributes; user inputs remain placeholders."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs = list(zip(placeholders_of(graph_module.graph), signature.inputs, strict=True))
    for node, spec in sorted(inputs, key=lambda pair: pair[1].kind is not InputKind.USER_INPUT):
        if spec.kind is InputKind.USER_INPUT:
            copies[node] = graph.placeholder(node.name)
        else:
            copies[node] = graph.create_node("get_attr", str(spec.target), name=node.name)
        copies[node].meta = dict(node.meta)
    for node in graph_module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.target in NORMALIZING_AND_UPDATING:
                keep_statistics_for_backward(graph, copies[node])
    return graph, copies


def _note_sources(copies: Mapping[fx.Node, fx.Node]) -> None:
    """Record for every node the node of the program that it was copied from, in torch's format."""
    create, replaced = NodeSourceAction.CREATE, NodeSourceAction.REPLACE
    for original, copy in copies.items():
        source = NodeSource(original, "ExportedProgram.module()", create)
        if copy.op == "get_attr" and original.op == "placeholder":
            copy.meta["from_node"] = [source]
            source = NodeSource(copy, "ExportedProgram.module().unlift()", [create, replaced])
        copy.meta["from_node"] = [*original.meta.get("from_node", ()), source]


def keep_statistics_for_backward(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """Autograd saves the running statistics that batch norm reads; they are written before its backward runs."""
    clones = []
    for position in (3, 4):
        statistic = node.args[position]
        if isinstance(statistic, fx.Node) and statistic.op == "get_attr":
            with graph.inserting_before(node):
                clone = graph.call_function(_aten.clone.default, (statistic,))
            clone.meta = dict(statistic.meta)
            node.update_arg(position, clone)
            clones.append(clone)
    return clones


def _apply_updates(
    graph: fx.Graph, signature: Signature, copies: Mapping[fx.Node, fx.Node], original: fx.GraphModule
) -> None:
    """Write updated values into state and inputs at the end, and return only user outputs."""
    by_target = _inputs_by_target(signature)
    placeholders = {node.name: copies[node] for node in placeholders_of(original.graph)}
    output = graph.output_node()
    results = list(zip(results_of(graph), signature.outputs, strict=True))
    updates: list[tuple[fx.Node, Any, OutputSpec]] = []
    for value, spec in results:
        if spec.kind in MUTATIONS:
            updates.append((placeholders[by_target[str(spec.target)].arg.name], value, spec))
    with graph.inserting_before(output):
        values = [_own_value(graph, value) for _, value, _ in updates]
        written = {
            value: _write(graph, target, own, spec) for (target, value, spec), own in zip(updates, values, strict=True)
        }
    returned = [written.get(value, value) for value, spec in results if spec.kind in _RETURNED]
    output.args = (tuple(returned),)


def _inputs_by_target(signature: Signature) -> dict[str, InputSpec]:
    """State by its name in the module, and user inputs by their name in the graph, as mutations refer to them."""
    return {spec.target if spec.target is not None else spec.arg.name: spec for spec in signature.inputs}


def _own_value(graph: fx.Graph, value: Any) -> Any:
    """The value, cloned if it shares memory with an input, which may be written first."""
    source = value
    while isinstance(source, fx.Node) and is_view(source) and source.all_input_nodes:
        source = source.all_input_nodes[0]
    if not isinstance(source, fx.Node) or source.op not in ("placeholder", "get_attr"):
        return value
    clone = graph.call_function(_aten.clone.default, (value,))
    clone.meta = dict(value.meta)
    return clone


def _write(graph: fx.Graph, target: fx.Node, value: Any, spec: OutputSpec) -> fx.Node:
    under_no_grad = spec.kind is OutputKind.PARAMETER_MUTATION
    if under_no_grad:
        graph.call_function(torch._C._set_grad_enabled, (False,)).meta["val"] = None
    written = graph.call_function(_aten.copy_.default, (target, value))
    written.meta = dict(target.meta)
    if under_no_grad:
        graph.call_function(torch._C._set_grad_enabled, (True,)).meta["val"] = None
    return written


def _hierarchy(signature: Signature, state: Mapping[str, torch.Tensor], module_paths: Sequence[str]) -> torch.nn.Module:
    root = torch.nn.Module()
    for path in module_paths:
        ensure_module(root, path)
    for spec in signature.inputs:
        if spec.target is not None:
            _set(root, spec.target, state[spec.target])
    return root


def ensure_module(root: torch.nn.Module, path: str) -> torch.nn.Module:
    """The submodule at a dotted path; missing modules on the way are created."""
    for name in filter(None, path.split(".")):
        if name not in root._modules:
            root.add_module(name, torch.nn.Module())
        root = root.get_submodule(name)
    return root


def order_submodules(module: torch.nn.Module, paths: Sequence[str]) -> None:
    """Bring submodules into the order of the original's."""
    order = {path: number for number, path in enumerate(paths)}
    for name, child in list(module.named_modules(remove_duplicate=False)):

        def place(each: str, start: str = name) -> tuple[int, int]:
            full = f"{start}.{each}" if start else each
            base, _, call = full.partition("@")
            return order.get(base, len(order)), int(call.partition(".")[0] or 0) if call else 0

        for each in sorted(child._modules, key=place):
            child._modules[each] = child._modules.pop(each)


def _set(root: torch.nn.Module, path: str, tensor: torch.Tensor) -> None:
    owner, _, name = path.rpartition(".")
    home = ensure_module(root, owner)
    if isinstance(tensor, torch.nn.Parameter):
        home.register_parameter(name, tensor)
    else:
        home.register_buffer(name, tensor)


def _unsaved(signature: Signature) -> list[tuple[str, bool]]:
    """State that ``state_dict`` omits: its path, and whether it is a buffer at all."""
    return [
        (str(spec.target), spec.kind is InputKind.BUFFER)
        for spec in signature.inputs
        if spec.kind is InputKind.CONSTANT_TENSOR or (spec.kind is InputKind.BUFFER and spec.persistent is False)
    ]


def _restore_kinds(module: fx.GraphModule) -> None:
    """GraphModule registers every tensor as a persistent buffer: correct constants and non-persistent ones."""
    kinds = {id(value): is_buffer for path, is_buffer in module.meta["unsaved"] for value in _values_at(module, path)}
    homes = [home for each in module.modules() for home in (each, *getattr(each, "hidden_modules", ()))]
    registered = [(home, values) for home in homes for values in (home._buffers, home._parameters)]
    found = [(home, values, name) for home, values in registered for name in values if id(values[name]) in kinds]
    # Modules that take turns have one dict of state: what goes out of it for one goes out for all.
    for home, values, name, value in [(home, values, name, values[name]) for home, values, name in found]:
        if kinds[id(value)]:
            home._non_persistent_buffers_set.add(name)
        else:
            values.pop(name, None)
            home.__dict__[name] = value


def _values_at(module: torch.nn.Module, path: str) -> Iterator[torch.Tensor]:
    """The tensor of that name, if it exists: one that is only read elsewhere may have another name."""
    owner, _, name = path.rpartition(".")
    home = ensure_module(module, owner)
    if name in home._buffers or name in home._parameters or name in home.__dict__:
        yield getattr(home, name)
