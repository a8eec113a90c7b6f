"""Converts PyTorch's ``ExportedProgram`` objects, without importing the exporter that made them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from precast._torch_compat import example_sizes
from precast.artifact.schema import Json
from precast.errors import ExportError, InputTypeError
from precast.export.program import ExportedProgram, Origin
from precast.export.serialize.graphs import value_from_json, value_to_json
from precast.export.serialize.symbols import LoadedSizes, sizes_from_json
from precast.export.signature import Dialect
from precast.export.torch_files.guards import guard_conditions
from precast.export.torch_files.retrace import retraced
from precast.export.tracepoints import ModuleCallEntry, ModuleCallSignature
from precast.export.verifier import graphs_of
from precast.graph.nodes import placeholders_of, set_module_stack, set_value, value_of
from precast.graph.signature import (
    ArgumentSpec,
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    Signature,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from precast.graph.verifier import is_operator

_PARTS = ("graph_module", "graph_signature", "state_dict", "constants", "range_constraints", "module_call_graph")
_NUMBERS: dict[str, Any] = {kind.__name__: kind for kind in (SymIntArgument, SymFloatArgument, SymBoolArgument)}
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def is_torch_program(value: object) -> bool:
    """Whether this is PyTorch's ``ExportedProgram``, recognized by its class and attributes, which no module has."""
    is_named = type(value).__name__ == "ExportedProgram" and not isinstance(value, ExportedProgram)
    return is_named and all(hasattr(value, part) for part in _PARTS)


def is_program(value: object) -> bool:
    """Whether this is an exported program, ours or PyTorch's: what ``from_torch`` accepts."""
    return isinstance(value, ExportedProgram) or is_torch_program(value)


def from_torch(program: Any) -> ExportedProgram:
    """Convert a program of PyTorch's exporter, sharing its tensors; a Precast program is returned unchanged.

    The program runs once more on fake tensors, so that updates of inputs and buffers become part of the signature. Its
    conditions on sizes are checked at each call, as before.

    >>> import torch.export  # doctest: +SKIP
    >>> from_torch(torch.export.export(torch.nn.ReLU(), (torch.ones(2),))).graph_signature.user_inputs  # doctest: +SKIP
    ('input_1',)
    """
    if isinstance(program, ExportedProgram):
        return program
    if not is_torch_program(program):
        raise InputTypeError(
            f"from_torch() was given an object of type {type(program).__name__}.",
            why="it converts what PyTorch's exporter returns",
            fix="Pass that object, or export the module with precast.export.",
        )
    _check_nodes(program.graph_module)
    signature = _signature(program)
    names = _argument_names(program, signature)
    sizes = _declared_sizes(program, signature, names)
    module = _with_values(program.graph_module, sizes)
    # fx renames what clashes with Python's builtins: ``input`` is ``input_1``.
    names_now = (node.name for node in placeholders_of(module.graph))
    signature = _renamed_inputs(signature, dict(zip((s.arg.name for s in signature.inputs), names_now, strict=True)))
    tensors = {**program.constants, **program.state_dict}
    targets = [str(spec.target) for spec in signature.inputs_of(*_STATE)]
    origin = Origin(
        argument_names=names,
        module_calls=tuple(_module_calls(program.module_call_graph)),
        aliases=tuple(_aliases(program.state_dict, targets)),
        example_inputs=program.example_inputs,
    )
    dialect = Dialect.TRAINING if program.dialect == "TRAINING" else Dialect.ATEN
    return retraced(module, signature, {name: tensors[name] for name in targets}, sizes.sizes, origin, dialect)


def _check_nodes(module: fx.GraphModule) -> None:
    for path, graph in graphs_of(module):
        owner = module.get_submodule(path.rstrip("."))
        for node in graph.nodes:
            if node.op == "get_attr" and isinstance(getattr(owner, str(node.target), None), torch.Tensor):
                raise ExportError(
                    f"A branch of control flow has a tensor of its own, {path}{node.target}.",
                    why="PyTorch's exporter leaves it out of the signature, and cannot save the program either",
                    fix="Export the module with precast.export instead.",
                )
            if node.op == "call_function" and not is_operator(node.target):
                raise ExportError(
                    f"The program calls {node.target}, which is not an operator.",
                    why="parts of vmap and the like are left in PyTorch's programs for training",
                    fix="Convert the program after program.run_decompositions().",
                )


def _signature(program: Any) -> Signature:
    inputs = [
        InputSpec(InputKind[spec.kind.name], _argument(spec.arg), spec.target, spec.persistent)
        for spec in program.graph_signature.input_specs
    ]
    outputs = [
        OutputSpec(OutputKind[spec.kind.name], _argument(spec.arg), spec.target)
        for spec in program.graph_signature.output_specs
    ]
    in_tree, out_tree = program.call_spec.in_spec, program.call_spec.out_spec
    return Signature(tuple(inputs), tuple(outputs), in_tree, out_tree)


def _argument(argument: Any) -> ArgumentSpec:
    match type(argument).__name__:
        case "TensorArgument":
            return TensorArgument(argument.name)
        case "SymIntArgument" | "SymFloatArgument" | "SymBoolArgument" as kind:
            made: ArgumentSpec = _NUMBERS[kind](argument.name)
            return made
        case "ConstantArgument":
            return ConstantArgument(argument.name, argument.value)
    raise ExportError(
        f"The program has {argument.name}, a {type(argument).__name__}.",
        why="script objects and effect tokens of other exporters cannot be converted",
        fix="Export the module with precast.export instead.",
    )


def _argument_names(program: Any, signature: Signature) -> tuple[str, ...]:
    """The names of positional arguments, then of keywords; the elements of ``*args`` are numbered."""
    positional, named = signature.in_tree.children()
    kept = [entry.signature for entry in program.module_call_graph if not entry.fqn and entry.signature is not None]
    return argument_names(kept[0].forward_arg_names if kept else None, positional.num_children, named.context)


def argument_names(known: Sequence[str] | None, positional: int, keywords: Sequence[str]) -> tuple[str, ...]:
    """One name per argument; if too few are known, the last one is that of ``*args``."""
    names = list(known or ())[: len(known or ()) - len(keywords)]
    if len(names) < positional:
        rest = names.pop() if names else "args"
        names += [f"{rest}_{number}" for number in range(positional - len(names))]
    return (*names[:positional], *keywords)


def _declared_sizes(program: Any, signature: Signature, names: Sequence[str]) -> LoadedSizes:
    inputs = {
        spec.arg.name: value_of(node)
        for spec, node in zip(signature.inputs, placeholders_of(program.graph_module.graph), strict=True)
    }
    users = [inputs[spec.arg.name] for spec in signature.inputs_of(InputKind.USER_INPUT)]
    examples = _examples(inputs.values())
    symbols: dict[str, Json] = {}
    for name, value in inputs.items():
        for place, size in _sizes_of(name, value):
            for symbol in sorted(free_symbols(size), key=str):
                allowed = program.range_constraints.get(symbol)
                symbols.setdefault(
                    str(symbol),
                    size_record(
                        str(symbol),
                        place,
                        [_bound(allowed and allowed.lower, 0), _bound(allowed and allowed.upper, None)],
                        examples[str(symbol)],
                    ),
                )
    described = [value_to_json(user) for user in users]
    guards = guard_conditions(getattr(program, "_guards_code", ()), names, signature.in_tree, described)
    return sizes_from_json({"symbols": list(symbols.values()), "guards": guards})


def size_record(symbol: str, place: str, bounds: Sequence[int | None], example: int) -> Json:
    """A size that is named after the place where it first occurs, ``x.shape[0]``."""
    name = "".join(letter if letter.isalnum() else "_" for letter in place).strip("_")
    return {"symbol": symbol, "name": name, "seen_at": place, "range": list(bounds), "example": example}


def _examples(values: Any) -> dict[str, int]:
    modes = [mode for value in values if (mode := getattr(value, "fake_mode", None)) is not None]
    numbers = [value.node.shape_env for value in values if isinstance(value, torch.SymInt)]
    found: list[ShapeEnv] = [*(mode.shape_env for mode in modes if mode.shape_env is not None), *numbers]
    return {str(symbol): int(size) for env in found[:1] for symbol, size in example_sizes(env).items()}


def _sizes_of(name: str, value: object) -> Iterator[tuple[str, torch.SymInt]]:
    places: list[tuple[str, Any]] = [(name, value)]
    if isinstance(value, torch.Tensor):
        places = [(f"{name}.shape[{dimension}]", size) for dimension, size in enumerate(value.shape)]
    yield from ((place, size) for place, size in places if isinstance(size, torch.SymInt))


def _bound(bound: Any, otherwise: int | None) -> int | None:
    return int(bound) if bound is not None and getattr(bound, "is_Integer", False) else otherwise


def _with_values(module: fx.GraphModule, sizes: LoadedSizes) -> fx.GraphModule:
    """A copy of the graph over fake inputs of ours, with names that fx allows."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(str(node.target))
            with sizes.fakes.mode, sizes.shape_env.suppress_guards():
                value = value_of(node)
                set_value(copies[node], value_from_json(value_to_json(value), sizes))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
            set_module_stack(copies[node], _module_stack(node))
    return fx.GraphModule(module, graph, "GraphModule")


_KEPT = ("stack_trace", "torch_fn", "custom")


def _module_stack(node: fx.Node) -> dict[str, tuple[str, str]]:
    stack = node.meta.get("nn_module_stack") or {}
    return {key: (path, str(kind)) for key, (path, kind) in stack.items() if not path.startswith("_empty_nn_module")}


def _renamed_inputs(signature: Signature, names: Mapping[str, str]) -> Signature:
    """The signature with renamed inputs, including in outputs that update them."""
    inputs = [InputSpec(spec.kind, _named(spec.arg, names), spec.target, spec.persistent) for spec in signature.inputs]
    outputs = [
        OutputSpec(spec.kind, _named(spec.arg, names), names.get(str(spec.target), spec.target))
        if spec.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT)
        else OutputSpec(spec.kind, _named(spec.arg, names), spec.target)
        for spec in signature.outputs
    ]
    return signature.replace(inputs=tuple(inputs), outputs=tuple(outputs))


def _named(argument: ArgumentSpec, names: Mapping[str, str]) -> ArgumentSpec:
    if isinstance(argument, ConstantArgument):
        return ConstantArgument(names.get(argument.name, argument.name), argument.value)
    return type(argument)(names.get(argument.name, argument.name))  # type: ignore[call-arg]


def _module_calls(entries: Sequence[Any]) -> Iterator[ModuleCallEntry]:
    for entry in entries:
        kept = entry.signature if entry.fqn else None
        if kept is None:
            yield ModuleCallEntry(entry.fqn)
            continue
        inputs, outputs = (tuple(map(_argument, side)) for side in (kept.inputs, kept.outputs))
        names = None if kept.forward_arg_names is None else tuple(kept.forward_arg_names)
        yield ModuleCallEntry(
            entry.fqn, ModuleCallSignature(inputs, outputs, kept.in_spec, kept.out_spec, forward_arg_names=names)
        )


def _aliases(state: Mapping[str, torch.Tensor], targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Further names of tied state."""
    first = {id(state[name]): name for name in reversed(targets) if name in state}
    for name, tensor in state.items():
        if name not in targets and id(tensor) in first:
            yield name, first[id(tensor)]
