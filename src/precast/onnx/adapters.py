"""From the user's ``(args, kwargs)`` to the model's inputs, in named steps.

Before: ``model(tokens, mask=None, options={"bias": bias})``
After:  ``[tokens, bias]``, the tensors in the order of the model's inputs

``bind`` → ``merge_keywords`` → ``flatten`` → ``drop_constants`` → ``order``; ``lift_state`` appends the weights where
they are inputs too. Each step is a function; ``InputAdapter`` runs them in order.

And between the model's outputs and the result of the user's model, in both directions.

Before: ``[logits]``, the model's outputs
After:  ``{"loss": None, "logits": logits}``

``keep_tensors`` and ``flatten_result`` lead to the model's outputs; ``put_back_constants`` and ``rebuild`` back.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.calls import Leaf, check_leaves, expected_leaves
from precast.graph.nodes import value_of
from precast.graph.opened_objects import opened, result_names
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, OutputKind
from precast.graph.tensor_spec import TensorSpec

Leaves = dict[str, Any]
"""The arguments of a call, by path: ``tokens``, ``options['bias']``."""


def signature_of(model: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a function or of a module's forward; ``None`` for builtins without a signature."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def bind(signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by parameter name, with defaults filled in."""
    if signature is None:
        return {"args": tuple(args), **kwargs}
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputTypeError(
            "The arguments do not fit the model's signature.",
            why=f"{error}; the signature is {signature}",
            fix="Give every required argument, and no other.",
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def merge_keywords(signature: inspect.Signature | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One flat list of arguments: those in ``**kwargs`` by their own names, those in ``*args`` numbered."""
    merged: dict[str, Any] = {}
    kinds = {} if signature is None else {name: p.kind for name, p in signature.parameters.items()}
    for name, value in arguments.items():
        kind = kinds.get(name, inspect.Parameter.VAR_POSITIONAL if signature is None and name == "args" else None)
        if kind is inspect.Parameter.VAR_POSITIONAL:
            merged |= {f"{name}[{i}]": item for i, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            merged |= value
        else:
            merged[name] = value
    return merged


def flatten(arguments: Mapping[str, Any]) -> Leaves:
    """Every leaf of every container, by its path."""
    leaves: Leaves = {}
    for name, value in arguments.items():
        with_paths, _ = pytree.tree_flatten_with_path(opened(value))
        leaves |= {f"{name}{pytree.keystr(path)}": leaf for path, leaf in with_paths}
    return leaves


def drop_constants(leaves: Leaves, constants: Mapping[str, object], numbers: Collection[str] = ()) -> Leaves:
    """The tensors, and the ``numbers`` that are inputs; everything else must equal its value at export."""
    for path, value in leaves.items():
        is_known, expected = path in constants, constants.get(path)
        # A tensor can be a constant too: the default of a parameter.
        if (value is expected and is_known) or (isinstance(value, torch.Tensor) and not is_known) or path in numbers:
            continue
        if not is_known or type(value) is not type(expected) or (value != expected and value == value):
            expectation = f"exported with {expected!r}" if is_known else "exported with a tensor there"
            raise InputValueError(
                f"{path} is {value!r}, but the model was {expectation}.",
                why="non-tensor arguments are constants of an exported model",
                fix="Pass the same, or export again.",
            )
    return {path: value for path, value in leaves.items() if path not in constants}


def order(tensors: Leaves, names: Sequence[str]) -> list[Any]:
    """The tensors and numbers in the order of the model's inputs; they must match these exactly."""
    if set(tensors) != set(names):
        missing, extra = sorted(set(names) - set(tensors)), sorted(set(tensors) - set(names))
        differences = [f"missing {', '.join(missing)}"] if missing else []
        differences += [f"not expected {', '.join(extra)}"] if extra else []
        raise InputValueError(
            f"The tensors of the call are not those that the model was exported with: {'; '.join(differences)}.",
            why=f"its inputs are {', '.join(names)}",
            fix="Call it with the same structure of arguments, or export again.",
        )
    return [tensors[name] for name in names]


def as_onnx(value: Any) -> torch.Tensor:
    """A value in the form of ONNX models: complex numbers as pairs of real ones, Python numbers as scalars.

    >>> as_onnx(torch.tensor([1 + 2j]))
    tensor([[1., 2.]])
    >>> as_onnx(3).dtype
    torch.int64
    """
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def lift_state(inputs: Sequence[torch.Tensor], state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Append the weights to the inputs: placeholders always come first."""
    return [*inputs, *state.values()]


@dataclass(frozen=True)
class InputAdapter:
    """The steps, with the facts about one exported model that they need."""

    signature: inspect.Signature | None
    constants: Mapping[str, object]
    names: tuple[str, ...]
    program: Program
    state: Mapping[str, torch.Tensor]

    @property
    def labels(self) -> tuple[str, ...]:
        """The paths as names: ``x``, ``options_bias``."""
        return tuple(re.sub(r"\W+", "_", path).strip("_") for path in self.names)

    @classmethod
    def of(
        cls, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], program: Program
    ) -> "InputAdapter":
        signature = signature_of(model)
        leaves = flatten(merge_keywords(signature, bind(signature, args, kwargs)))
        paths = _graph_order(signature, args, kwargs)
        names = tuple(compress(paths, which_are_inputs(program, [leaves[path] for path in paths])))
        constants = {path: value for path, value in leaves.items() if path not in names}
        return cls(signature, constants, names, program, program.state)

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, include_state: bool = False
    ) -> list[torch.Tensor]:
        """The model's inputs for one call, checked against those it was exported for."""
        tensors = [as_onnx(value) for value in self.values(args, kwargs)]
        return lift_state(tensors, self.state) if include_state else tensors

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The call's value for each input, in the original's form."""
        arguments = merge_keywords(self.signature, bind(self.signature, args, kwargs))
        found = order(drop_constants(flatten(arguments), self.constants, self.names), self.names)
        self._check(found)
        return found

    def _check(self, values: Sequence[Any]) -> None:
        specs = self.program.signature.inputs_of(InputKind.USER_INPUT)
        wanted = [
            e
            for e, spec in zip(expected_leaves(self.program), specs, strict=True)
            if not isinstance(spec.arg, ConstantArgument)
        ]
        # Devices do not matter to an ONNX model: one exported on the meta device runs on the CPU.
        wanted = [
            replace(spec, device=value.device)
            if isinstance(spec, TensorSpec) and isinstance(value, torch.Tensor)
            else spec
            for spec, value in zip(wanted, values, strict=True)
        ]
        leaves = [Leaf(name, value) for name, value in zip(self.names, values, strict=True)]
        check_leaves(wanted, self.program.sizes, leaves)


def tensor_paths(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths of a call's tensors, in the order of the program's inputs: ``x``, ``options['bias']``."""
    signature = signature_of(model)
    leaves = flatten(merge_keywords(signature, bind(signature, args, kwargs)))
    return tuple(path for path in _graph_order(signature, args, kwargs) if isinstance(leaves[path], torch.Tensor))


def which_are_inputs(program: Program, leaves: Sequence[Any]) -> list[bool]:
    """Which leaves of a call are inputs of the program, not specialized."""
    specs = program.signature.inputs_of(InputKind.USER_INPUT)
    if len(specs) == len(leaves):
        return [not isinstance(spec.arg, ConstantArgument) for spec in specs]
    # A symbolically captured program has only tensor inputs.
    return [isinstance(leaf, torch.Tensor) for leaf in leaves]


def _graph_order(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """The paths of all leaves in the order of the program's inputs, as in the example call."""
    values = [*args, *kwargs.values()]
    # Placeholders show which parameter each argument is bound to.
    places: list[Any] = [object() for _ in values]
    bound = bind(signature, places[: len(args)], dict(zip(kwargs, places[len(args) :], strict=True)))
    names = {id(place): name for name, place in merge_keywords(signature, bound).items()}
    leaves = [flatten({names[id(place)]: value}) for place, value in zip(places, values, strict=True)]
    return tuple(path for each in leaves for path in each)


def flatten_result(result: Any) -> list[Any]:
    """Every leaf of a model's result."""
    return pytree.tree_leaves(opened(result))


def keep_tensors(leaves: Sequence[Any], constants: Sequence[object]) -> list[torch.Tensor]:
    """The leaves that the ONNX model computes: those that are not constants of the program."""
    return [leaf for leaf, constant in zip(leaves, constants, strict=True) if constant is _COMPUTED]


def put_back_constants(outputs: Sequence[Any], constants: Sequence[object]) -> list[Any]:
    """The model's outputs with the constants in between."""
    remaining = iter(outputs)
    return [next(remaining) if constant is _COMPUTED else constant for constant in constants]


def rebuild(leaves: Sequence[Any], tree: pytree.TreeSpec) -> Any:
    """The containers that the user's model returns."""
    return pytree.tree_unflatten(leaves, tree)


_COMPUTED = object()


@dataclass(frozen=True)
class OutputAdapter:
    """The steps, with the facts about one exported model that they need."""

    tree: pytree.TreeSpec
    constants: tuple[object, ...]
    names: tuple[str, ...]
    restored: tuple[Callable[[torch.Tensor], Any] | None, ...]
    """Converts an output to the original's result, if that is another kind of value."""

    @classmethod
    def of(cls, program: Program) -> "OutputAdapter":
        pairs = zip(program.signature.outputs, program.results, strict=True)
        results = [result for spec, result in pairs if spec.kind is OutputKind.USER_OUTPUT]
        constants = tuple(_COMPUTED if isinstance(result, fx.Node) else result for result in results)
        restored = tuple(_restoring(value_of(result)) for result in results if isinstance(result, fx.Node))
        return cls(program.signature.out_tree, constants, _names(program.signature.out_tree, constants), restored)

    def to_model(self, result: Any) -> list[torch.Tensor]:
        """The tensors in the result of the user's model, in the order of the ONNX outputs."""
        return [as_onnx(value) for value in keep_tensors(flatten_result(result), self.constants)]

    def to_user(self, outputs: Sequence[Any]) -> Any:
        """The result of the user's model, from the ONNX model's outputs."""
        values = [value if make is None else make(value) for value, make in zip(outputs, self.restored, strict=True)]
        return rebuild(put_back_constants(values, self.constants), self.tree)


def _restoring(value: object) -> Callable[[torch.Tensor], Any] | None:
    if isinstance(value, torch.Tensor):
        return torch.view_as_complex if value.is_complex() else None
    kinds = ((torch.SymBool, bool), (torch.SymInt, int), (torch.SymFloat, float))
    return next((kind for symbolic, kind in kinds if isinstance(value, (symbolic, kind))), None)


def _names(tree: pytree.TreeSpec, constants: Sequence[object]) -> tuple[str, ...]:
    """Names of the computed outputs, after their paths in the model's result."""
    names = result_names(tree)
    return tuple(name for name, constant in zip(names, constants, strict=True) if constant is _COMPUTED)
