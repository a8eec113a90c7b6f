"""Translates signatures, trees and module calls of PyTorch's files to our form."""

import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils import _pytree as pytree

from precast.artifact.schema import Json, brief, damaged
from precast.artifact.trees import FACTORIES, MAX_DEPTH
from precast.errors import ArtifactError
from precast.export.serialize.names import checked_path
from precast.export.serialize.trees import tree_to_json
from precast.export.torch_files.nodes import name_of, number, union

_STATE = {
    "parameter": ("PARAMETER", "parameter_name"),
    "buffer": ("BUFFER", "buffer_name"),
    "tensor_constant": ("CONSTANT_TENSOR", "tensor_constant_name"),
}
_OUTPUTS = {
    "user_output": ("USER_OUTPUT", None),
    "loss_output": ("LOSS_OUTPUT", None),
    "buffer_mutation": ("BUFFER_MUTATION", "buffer_name"),
    "parameter_mutation": ("PARAMETER_MUTATION", "parameter_name"),
    "gradient_to_parameter": ("GRADIENT_TO_PARAMETER", "parameter_name"),
    "gradient_to_user_input": ("GRADIENT_TO_USER_INPUT", "user_input_name"),
    "user_input_mutation": ("USER_INPUT_MUTATION", "user_input_name"),
}
_BUILT_IN = (tuple, list, dict, OrderedDict, defaultdict, deque, namedtuple)
_CONSTANTS = ("as_none", "as_int", "as_float", "as_string", "as_bool")


class SignatureTranslator:
    """Describes the inputs and outputs of a file's graph module."""

    def __init__(self, module: Any) -> None:
        self._inputs, self._outputs = (module["signature"][part] for part in ("input_specs", "output_specs"))
        self._calls = module["module_call_graph"]
        self._fields = module.get("treespec_namedtuple_fields") or {}
        whole = [entry["signature"] for entry in self._calls if entry["fqn"] == "" and entry["signature"]]
        if not whole:
            raise damaged("the program has no call of its whole", "it contains the trees of arguments and results")
        self._whole = whole[0]

    @property
    def constants(self) -> dict[int, str]:
        """The names of inputs that are Python values, by position."""
        pairs = enumerate(map(union, self._inputs))
        return {position: inside["name"] for position, (tag, inside) in pairs if tag == "constant_input"}

    @property
    def forward_names(self) -> list[str] | None:
        names = self._whole.get("forward_arg_names")
        return None if names is None else [str(name) for name in names]

    def translated(self, names: Mapping[str, str]) -> Json:
        """The signature with the current names of nodes."""
        return {
            "inputs": [self._input(spec, names) for spec in self._inputs],
            "outputs": [self._output(i, spec, names) for i, spec in enumerate(self._outputs)],
            "in_tree": tree_to_json(self._tree(self._whole["in_spec"])),
            "out_tree": tree_to_json(self._tree(self._whole["out_spec"])),
        }

    def module_calls(self, names: Mapping[str, str]) -> list[Json]:
        """Every submodule, with the signature of its call if that was preserved."""
        return [self._module_call(entry, names) for entry in self._calls]

    def _module_call(self, entry: Any, names: Mapping[str, str]) -> Json:
        kept = entry["signature"] if entry["fqn"] else None
        if kept is None:
            return [entry["fqn"]]
        sides = [[_argument(each, names, "constant") for each in kept[side]] for side in ("inputs", "outputs")]
        trees = [tree_to_json(self._tree(kept[side])) for side in ("in_spec", "out_spec")]
        return [entry["fqn"], *sides, *trees, kept.get("forward_arg_names")]

    def _input(self, spec: Any, names: Mapping[str, str]) -> Json:
        tag, inside = union(spec)
        if tag in _STATE:
            kind, key = _STATE[tag]
            name = names.get(inside["arg"]["name"])
            return [kind, ["tensor", name], checked_path(inside[key]), inside.get("persistent")]
        if tag == "user_input":
            return ["USER_INPUT", _argument(inside["arg"], names, "input"), None, None]
        if tag == "constant_input":
            return ["USER_INPUT", ["constant", names.get(inside["name"]), _constant(inside["value"])], None, None]
        raise ArtifactError(
            f"the program takes a {tag[:80]}, {brief(inside)}",
            why="script objects are stored by pickle, which is never read here; effect tokens are not known",
            fix="export the module with precast.export",
        )

    def _output(self, position: int, spec: Any, names: Mapping[str, str]) -> Json:
        tag, inside = union(spec)
        if tag not in _OUTPUTS:
            raise damaged(f"an output is a {tag[:80]!r}", "no such kind is known")
        kind, key = _OUTPUTS[tag]
        target = None if key is None else checked_path(inside[key])
        if key == "user_input_name":
            target = names.get(str(target))
        content = inside["arg"] if key is None and tag == "user_output" else {"as_tensor": inside["arg"]}
        return [kind, _argument(content, names, f"output_{position}"), target]

    def _tree(self, text: Any) -> pytree.TreeSpec:
        try:
            version, content = json.loads(text)
        except (ValueError, TypeError, RecursionError) as problem:
            raise damaged("a tree of arguments cannot be read", brief(text)) from problem
        if version != 1:
            raise damaged(f"a tree of arguments has the version {brief(version)}", "version 1 is known")
        return self._node(content, 0)

    def _node(self, content: Any, depth: int) -> pytree.TreeSpec:
        if depth > MAX_DEPTH:
            raise damaged("a tree of arguments is nested too deeply", f"more than {MAX_DEPTH} levels")
        name, context = content["type"], content["context"]
        if name is None:
            return pytree.treespec_leaf()
        children = [self._node(child, depth + 1) for child in content["children_spec"]]
        kind, held = self._container(str(name), context, len(children))
        return pytree.TreeSpec(kind, held, children)

    def _container(self, name: str, context: Any, count: int) -> tuple[Any, Any]:
        """The container's type in torch's pytree, and its context."""
        if name == "collections.namedtuple":
            return namedtuple, self._namedtuple(str(context))
        if (
            name == "collections.defaultdict"
            and isinstance(context, dict)
            and isinstance(context["dict_context"], list)
        ):
            # Torch would import the factory that is named here.
            return defaultdict, [FACTORIES.get(str(context["default_factory_name"])), context["dict_context"]]
        kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        if kind not in _BUILT_IN and (read := _reader_of_context(kind)) is not None:
            return kind, read(context)
        held = None if context is None else _plain(json.loads(context))
        match name:
            case "builtins.tuple":
                return tuple, None
            case "builtins.list":
                return list, None
            case "collections.deque":
                return deque, held
            case "builtins.dict" | "collections.OrderedDict" if isinstance(held, list) and len(held) == count:
                return (dict if name == "builtins.dict" else OrderedDict), held
        if kind is None or kind in _BUILT_IN:
            raise ArtifactError(
                f"the program takes or returns a {name[:200]!r}, which is not registered here",
                why="a file names classes; loading it never imports code",
                fix="import the module that registers the class with torch.utils._pytree before loading",
            )
        return kind, held

    def _namedtuple(self, name: str) -> Any:
        kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        if kind is not None and pytree.is_namedtuple_class(kind):
            return kind
        fields = (self._fields.get(name) or {}).get("field_names")
        if not isinstance(fields, list):
            raise damaged(f"the named tuple {name[:80]!r} has no fields", "the file must contain them")
        return namedtuple(name.rpartition(".")[2], fields)


def _reader_of_context(kind: Any) -> Callable[[Any], Any] | None:
    """The function registered for deserializing the context of a class; ``None`` for a plain context."""
    return None if kind is None else pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context


def _plain(context: Any) -> Any:
    """Keys that are not plain values would have to be imported."""
    if isinstance(context, dict) and "__enum__" in context:
        raise ArtifactError(
            f"a tree of arguments has the key {brief(context)}",
            why="keys that are enumerations would have to be imported, and loading a file never imports code",
            fix="use plain keys, or export the module with precast.export",
        )
    return [_plain(item) for item in context] if isinstance(context, list) else context


def _constant(content: Any) -> Json:
    tag, value = union(content)
    if tag not in _CONSTANTS:
        raise damaged(f"an argument is a {tag[:80]!r}", "no such constant is known")
    if tag == "as_string":
        return {"str": value}
    return None if tag == "as_none" else number(value)


def _argument(content: Any, names: Mapping[str, str], otherwise: str) -> Json:
    tag, inside = union(content)
    if tag in _CONSTANTS:
        return ["constant", otherwise, _constant(content)]
    if tag.startswith("as_sym_") and isinstance(inside, dict) and "as_name" not in inside:
        return ["constant", otherwise, number(next(iter(inside.values())))]
    name = names.get(name_of(content))
    if name is None:
        raise damaged(f"the signature names {brief(name_of(content))!r}", "no node has that name")
    return ["tensor" if tag == "as_tensor" else "sym_int", name]
