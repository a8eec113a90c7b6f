"""Describes in the manifest how a program is called.

Also normalizes what users pass to be packaged to exported programs by name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from precast.artifact.schema import Json
from precast.errors import ExportError, InputTypeError, InputValueError, PrecastError, SymbolicShapeError
from precast.export.export import export
from precast.export.program import ExportedProgram
from precast.export.serialize.constants import constant_to_json
from precast.export.serialize.symbols import sizes_to_json, symbol_to_json
from precast.export.serialize.trees import tree_to_json
from precast.export.torch_files.convert import from_torch, is_program
from precast.graph.expressions import expression_to_json
from precast.graph.nodes import value_of
from precast.graph.opened_objects import argument_leaf_names, result_names
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, OutputKind
from precast.graph.sizes import SymbolicSizes
from precast.graph.tensor_spec import as_size, dtype_name
from precast.native.describe import Entry
from precast.packaging.traced_program import STATE_UPDATES, TracedProgram, packaged_range
from precast.trace.capture.prepare import unique_names


def call_to_json(
    exported: ExportedProgram, sizes: SymbolicSizes, outputs: Sequence[int | None], *, checks_sizes: bool = True
) -> Json:
    """The original signature; ``outputs`` are the numbers of the native outputs that hold the results.

    With ``checks_sizes=False``, calls do not check what tracing assumed about sizes.
    """
    program = exported.program
    signature = program.signature
    results = list(zip(program.results, signature.outputs, outputs, strict=True))
    leaves = [spec.arg.name for spec in signature.inputs_of(InputKind.USER_INPUT)]
    guards = sizes_to_json(sizes, {})["guards"]
    return {
        "argument_names": list(exported.origin.argument_names),
        "in_tree": tree_to_json(signature.in_tree, with_fields=True),
        "out_tree": tree_to_json(signature.out_tree, with_fields=True),
        "leaves": [_leaf(program, number) for number in range(len(signature.inputs)) if _is_leaf(program, number)],
        "results": [_result(node, output) for node, spec, output in results if _is_returned(spec.kind)],
        "updates": [
            [output, leaves.index(str(spec.target))]
            for _, spec, output in results
            if spec.kind is OutputKind.USER_INPUT_MUTATION and output is not None
        ],
        "symbols": [
            {**symbol_to_json(symbol), "range": list(packaged_range(symbol))} for symbol in program.sizes.symbols
        ],
        "guards": guards if checks_sizes else [],
    }


def _is_leaf(program: Program, number: int) -> bool:
    return program.signature.inputs[number].kind is InputKind.USER_INPUT


def _is_returned(kind: OutputKind) -> bool:
    if kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
        return True
    if kind not in (*STATE_UPDATES, OutputKind.USER_INPUT_MUTATION):
        raise ExportError(
            f"A program with outputs of kind {kind.name} cannot be packaged.",
            why="a packaged program returns what the original returned, and updates state",
            fix="Package the program before to_joint, or write a module that computes the gradients and returns them.",
        )
    return False


def _leaf(program: Program, number: int) -> Json:
    argument = program.signature.inputs[number].arg
    if isinstance(argument, ConstantArgument):
        return {"constant": constant_to_json(argument.value)}
    value = value_of(program.placeholders[number])
    if isinstance(value, torch.Tensor):
        return {"tensor": {"dtype": dtype_name(value.dtype), "shape": [_expression(size) for size in value.shape]}}
    if isinstance(value, torch.SymInt):
        return {"size": _expression(value)}
    return {"constant": constant_to_json(value)}


def _result(node: object, output: int | None) -> Json:
    value: Any = value_of(node) if isinstance(node, fx.Node) else node
    if output is not None:
        return {"number" if isinstance(value, torch.SymInt) else "output": output}
    if isinstance(value, torch.SymInt):
        return {"size": _expression(value)}
    if isinstance(value, torch.SymFloat | torch.SymBool):
        raise ExportError(
            "A program that returns a number computed from sizes, other than a whole one, cannot be packaged.",
            why="the runtime computes whole numbers from sizes",
            fix="Return the size, and compute from it.",
        )
    return {"constant": constant_to_json(value)}


def with_names(entry: Entry, traced: TracedProgram, outputs: Sequence[int | None]) -> Entry:
    """The entry with the user's names of its inputs, outputs and sizes, made unique.

    Arguments and results are named after their paths: ``x``, ``batch_mask``, ``logits``, ``output_0``; new values of
    arguments after the arguments, with the suffix ``_updated``.
    """
    signature = traced.program.signature
    leaves = unique_names(argument_leaf_names(signature.in_tree, traced.exported.origin.argument_names))
    users = [name for name, spec in traced.specs.items() if spec.kind is InputKind.USER_INPUT]
    returned = iter(result_names(signature.out_tree))
    named: dict[int, str] = {}
    for spec, number in zip(signature.outputs, outputs, strict=True):
        name = next(returned) if _is_returned(spec.kind) else f"{spec.target}_updated"
        if number is not None:
            named.setdefault(number, name)
    results = [buffer.name for buffer in entry.program.outputs if buffer.name not in entry.updates]
    unique = unique_names([named.get(number, name) for number, name in enumerate(results)])
    sizes = traced.program.sizes.symbols
    size_names = unique_names([size.identifier for size in sizes])
    return replace(
        entry,
        input_names=dict(zip(users, leaves, strict=True)),
        output_names=dict(zip(results, unique, strict=True)),
        size_names={size.symbol.name: name for size, name in zip(sizes, size_names, strict=True)},
    )


def _expression(size: int | torch.SymInt) -> Json:
    return expression_to_json(as_size(size))


DEFAULT_NAME = "forward"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


class CallableModule(torch.nn.Module):
    """A plain function as a module, so that it can be exported; its arguments keep their names."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        self.forward = forward


def exported_entries(
    given: object,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> dict[str, ExportedProgram]:
    """The programs to package, by the name of their entry."""
    entries = given if isinstance(given, Mapping) else {DEFAULT_NAME: given}
    if not entries:
        raise InputValueError("There is nothing to package.", why="no entry was given", fix="Give at least one.")
    for name in entries:
        _check_name(name)
    return {str(name): _exported(str(name), each, args, kwargs, dynamic_shapes) for name, each in entries.items()}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputValueError(
            f"{name!r} cannot name an entry.",
            why="names start with a letter, followed by letters, digits, '_', '.' and '-'",
            fix="Choose such a name, for example 'train_step'.",
        )


def _exported(
    name: str, given: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    if is_program(given):
        return from_torch(given)
    if isinstance(given, tuple) and 2 <= len(given) <= 4:
        module, args, kwargs, dynamic_shapes = (*given, None, None)[:4]
        return _exported(name, module, args, kwargs, dynamic_shapes)
    if callable(given):
        record = functools.partial(
            export,
            as_module(given),
            example_arguments(args),
            kwargs,
            dynamic_shapes=dynamic_shapes,
            branch_on_data=True,
        )
        try:
            return record()
        except SymbolicShapeError as first:
            # Recurrent layers take any number of steps only where no gradients are recorded.
            try:
                with torch.no_grad():
                    return record()
            except (PrecastError, RuntimeError):
                raise first from None
    raise InputTypeError(
        f"The entry {name!r} is of type {type(given).__name__}.",
        why="what is packaged is a module, a function, an exported program, or several of them by name",
        fix="Pass a module and its arguments, or {'forward': (module, args), 'eval': (module, args)}.",
    )


def example_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    """The positional arguments as a tuple; anything else, such as a bare tensor, is left for export to refuse."""
    return tuple(args) if isinstance(args, list | torch.Size) else args  # type: ignore[return-value]


def as_module(given: Callable[..., Any]) -> torch.nn.Module:
    """The module, or a module that calls the function."""
    return given if isinstance(given, torch.nn.Module) else CallableModule(given)
