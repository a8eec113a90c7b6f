"""Signatures and module calls as JSON."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precast.artifact.schema import Json, damaged
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.export.serialize.names import checked_optional_path, checked_path, writable_optional_path, writable_path
from precast.export.serialize.trees import tree_from_json, tree_to_json
from precast.export.tracepoints import ModuleCallEntry, ModuleCallSignature
from precast.graph.signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    Signature,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
    value_argument,
)

_ARGUMENTS: dict[str, Any] = {
    "tensor": TensorArgument,
    "sym_int": SymIntArgument,
    "token": TokenArgument,
}
_NAMES = {kind: name for name, kind in _ARGUMENTS.items()}
# In files, the value determines which kind of number it is.
_NAMES |= dict.fromkeys((SymFloatArgument, SymBoolArgument), "sym_int")


def signature_to_json(signature: Signature) -> Json:
    return {
        "inputs": [
            [s.kind.name, argument_to_json(s.arg), writable_optional_path(s.target), s.persistent]
            for s in signature.inputs
        ],
        "outputs": [
            [s.kind.name, argument_to_json(s.arg), writable_optional_path(s.target)] for s in signature.outputs
        ],
        "in_tree": tree_to_json(signature.in_tree),
        "out_tree": tree_to_json(signature.out_tree),
    }


def signature_from_json(content: Any) -> Signature:
    return Signature(
        inputs=tuple(_input(*record) for record in content["inputs"]),
        outputs=tuple(_output(*record) for record in content["outputs"]),
        in_tree=tree_from_json(content["in_tree"]),
        out_tree=tree_from_json(content["out_tree"]),
    )


def with_kinds_of_numbers(signature: Signature, values: Mapping[str, object]) -> Signature:
    """The signature from a file, which calls every number an integer, corrected by the values in the graph."""

    def corrected(spec: Any) -> Any:
        is_number = isinstance(spec.arg, SymIntArgument) and spec.arg.name in values
        return replace(spec, arg=value_argument(spec.arg.name, values[spec.arg.name])) if is_number else spec

    return signature.replace(
        inputs=tuple(map(corrected, signature.inputs)), outputs=tuple(map(corrected, signature.outputs))
    )


def _input(kind: str, argument: Any, target: str | None, persistent: bool | None) -> InputSpec:
    if kind not in InputKind.__members__:
        raise damaged(f"an input is a {kind!r}", "no such kind is known")
    return InputSpec(InputKind[kind], argument_from_json(argument), checked_optional_path(target), persistent)


def _output(kind: str, argument: Any, target: str | None) -> OutputSpec:
    if kind not in OutputKind.__members__:
        raise damaged(f"an output is a {kind!r}", "no such kind is known")
    return OutputSpec(OutputKind[kind], argument_from_json(argument), checked_optional_path(target))


def argument_to_json(argument: ArgumentSpec) -> Json:
    if isinstance(argument, ConstantArgument):
        return ["constant", argument.name, constant_to_json(argument.value)]
    if isinstance(argument, CustomObjArgument):
        return ["object", argument.name, argument.class_fqn]
    return [_NAMES[type(argument)], argument.name]


def argument_from_json(content: Any) -> ArgumentSpec:
    kind, name, *rest = content
    if kind == "constant" and len(rest) == 1:
        return ConstantArgument(name, constant_from_json(rest[0]))
    if kind == "object" and len(rest) == 1:
        return CustomObjArgument(name, rest[0])
    if kind not in _ARGUMENTS or rest:
        raise damaged(f"an argument is a {kind!r}", "no such kind is known")
    made: ArgumentSpec = _ARGUMENTS[kind](name)
    return made


def module_call_to_json(entry: ModuleCallEntry) -> Json:
    signature = entry.signature
    if signature is None:
        return [writable_path(entry.fqn)]
    return [
        writable_path(entry.fqn),
        [argument_to_json(argument) for argument in signature.inputs],
        [argument_to_json(argument) for argument in signature.outputs],
        tree_to_json(signature.in_spec),
        tree_to_json(signature.out_spec),
        None if signature.forward_arg_names is None else list(signature.forward_arg_names),
    ]


def module_call_from_json(content: Any) -> ModuleCallEntry:
    if len(content) == 1:
        return ModuleCallEntry(checked_path(content[0]))
    fqn, inputs, outputs, in_tree, out_tree, names = content
    signature = ModuleCallSignature(
        inputs=tuple(map(argument_from_json, inputs)),
        outputs=tuple(map(argument_from_json, outputs)),
        in_spec=tree_from_json(in_tree),
        out_spec=tree_from_json(out_tree),
        forward_arg_names=None if names is None else tuple(names),
    )
    return ModuleCallEntry(checked_path(fqn), signature)
