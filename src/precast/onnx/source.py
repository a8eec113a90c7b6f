"""What is exported, normalized from the forms of a call that users may write.

Before: ``export(model, x)``, ``export(model, (x, {"mask": mask}))``, ``export(exported_program)``
After:  ``Source(model, (x,), {"mask": mask})``, with the program if there is one already
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError
from precast.export import ExportedProgram
from precast.graph.nodes import tensor_of
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind
from precast.graph.sizes import evaluate
from precast.graph.tensor_spec import TensorSpec
from precast.onnx.adapters import signature_of
from precast.trace.capture import Dim


@dataclass(frozen=True)
class Source:
    """``model`` is the reference, called with ``args`` and ``kwargs``.

    ``program`` is set if the user passed one. ``dynamic_shapes``, ``input_names`` and ``output_names`` are the
    model's own, if it has any. ``why_no_example`` says why the arguments are not the user's.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    program: ExportedProgram | None = None
    dynamic_shapes: Any = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    why_no_example: str | None = None

    def named(self, input_names: Sequence[str] | None, output_names: Sequence[str] | None) -> "Source":
        """With the caller's names, if any are given."""
        inputs, outputs = input_names or self.input_names, output_names or self.output_names
        return replace(self, input_names=inputs or None, output_names=outputs or None)


def source_of(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Source:
    """Normalize a model and its arguments."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise InputTypeError(
            f"export() was given an object of type {type(model).__name__}.",
            why="a program in TorchScript cannot be traced into: it hides its Python",
            fix="Export the module that it was made from.",
        )
    if isinstance(model, ExportedProgram):
        return _of_program(model, args, kwargs)
    if _is_foreign_program(model):
        return _of_foreign_program(model)
    positional = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if any(map(is_fake, pytree.tree_leaves((positional, kwargs)))):
        positional, kwargs = pytree.tree_map_only(torch.Tensor, _with_memory, (positional, dict(kwargs or {})))
        return replace(source_of(model, positional, kwargs), why_no_example="the example is of fake tensors")
    if not positional and not kwargs and hasattr(model, "example_arguments"):
        return _of_describing_module(model)
    if not kwargs and positional and isinstance(positional[-1], dict) and _are_keywords(model, positional):
        return Source(model, positional[:-1], dict(positional[-1]))
    return Source(model, positional, dict(kwargs or {}))


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same kind with real memory, for capture."""
    if not is_fake(tensor):
        return tensor
    with unset_fake_temporarily():
        return torch.zeros(tuple(map(int, tensor.shape)), dtype=tensor.dtype)


def _are_keywords(model: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a trailing dict holds keyword arguments, and is not itself an argument."""
    signature, keywords = signature_of(model), args[-1]
    if signature is None or not all(isinstance(key, str) for key in keywords):
        return False
    try:
        signature.bind(*args[:-1], **keywords)
    except TypeError:
        return False
    return True


def _of_describing_module(model: Any) -> Source:
    """A module that provides example arguments, such as torch's ``ExportableModule``."""
    args, kwargs = model.example_arguments()
    source = source_of(model, args, kwargs)
    return replace(
        source,
        dynamic_shapes=model.dynamic_shapes(),
        input_names=model.input_names(),
        output_names=model.output_names(),
    )


def _of_program(exported: ExportedProgram, args: Any, kwargs: Mapping[str, Any] | None) -> Source:
    if kwargs or not isinstance(args, (tuple, list)) or args:
        source = source_of(exported.module(), args, kwargs)
        return replace(source, program=exported)
    if exported.example_inputs is not None:
        return Source(exported.module(), *exported.example_inputs, program=exported)
    args, made = _synthetic_arguments(exported.program)
    return Source(exported.module(), args, made, program=exported, why_no_example="the program has no example inputs")


def _synthetic_arguments(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Synthetic arguments of the right kinds and sizes."""
    pairs = zip(program.signature.inputs, program.placeholders, strict=True)
    least = {symbol.symbol: max(2, symbol.range.lower) for symbol in program.sizes.symbols}
    leaves: list[Any] = []
    for spec, node in pairs:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                leaves.append(spec.arg.value)
            else:
                tensor = TensorSpec.of(tensor_of(node))
                leaves.append(torch.zeros([evaluate(size, least) for size in tensor.shape], dtype=tensor.dtype))
    args, kwargs = pytree.tree_unflatten(leaves, program.signature.in_tree)
    return args, kwargs


def _is_foreign_program(model: Any) -> bool:
    """Whether this is torch's own ``ExportedProgram``, recognized by its attributes."""
    names = ("graph_module", "graph_signature", "range_constraints", "example_inputs", "module")
    return not isinstance(model, torch.nn.Module) and all(hasattr(model, name) for name in names)


def _of_foreign_program(exported: Any) -> Source:
    """Its module, to be captured again with its dynamic sizes."""
    options = {"check_guards": False} if "check_guards" in inspect.signature(exported.module).parameters else {}
    module = exported.module(**options)
    args, kwargs = exported.example_inputs or ((), {})
    kinds = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    values = [
        node.meta.get("val") for node in exported.graph_module.graph.find_nodes(op="placeholder") if node.name in kinds
    ]
    specs = [_foreign_sizes(value) for value in values]
    _, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    positional, keywords = pytree.tree_unflatten(specs, tree)
    return Source(module, tuple(args), dict(kwargs), dynamic_shapes=[*positional, *keywords.values()])


def _foreign_sizes(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return Dim.DYNAMIC if isinstance(value, torch.SymInt) else None
    return {number: str(size) for number, size in enumerate(value.shape) if not isinstance(size, int)} or None
