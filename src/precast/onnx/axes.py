"""Converts specifications of dynamic sizes from the forms of torch's exporter, and names the sizes of the model.

Before: ``dynamic_axes={"x": {0: "batch"}, "y": [1]}``, or ``dynamic_shapes={"x": {0: "batch"}}``
After:  ``dynamic_shapes=({0: Dim.DYNAMIC}, {1: Dim.DYNAMIC})``, and a label for each: ``batch``, ``y_dynamic_axes_1``

A string is only a name, not a constraint: two dimensions of one name may differ, and two names may be found equal.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.nodes import value_of
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import InputKind
from precast.graph.tensor_spec import as_size
from precast.onnx.adapters import tensor_paths
from precast.onnx.graphs import outermost_graphs
from precast.onnx.source import Source
from precast.trace.capture import Dim
from precast.trace.capture.dynamic_shapes import TensorDims, normalize_dynamic_shapes
from precast.trace.capture.prepare import unique_names

DynamicAxes = Mapping[str, Mapping[int, str] | Sequence[int] | None]


@dataclass(frozen=True)
class Axes:
    """``shapes`` are for capture; ``labels`` name dimensions of input leaves; ``others`` are axes of anything else."""

    shapes: Any = None
    labels: Mapping[tuple[int, int], str] = field(default_factory=dict)
    others: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def described_axes(source: Source, *, dynamic_shapes: Any, dynamic_axes: DynamicAxes | None) -> Axes:
    """Read both forms; ``dynamic_shapes`` takes precedence if both are given."""
    others: dict[str, dict[int, str]] = {}
    if dynamic_shapes is None:
        dynamic_shapes = source.dynamic_shapes
    if dynamic_shapes is None and dynamic_axes is not None:
        dynamic_shapes, others = _from_dynamic_axes(source, dynamic_axes)
    names: list[str] = []

    def numbered(name: str) -> Dim:
        names.append(name)
        return Dim(f"label_{len(names) - 1}")

    described = _replaced(dynamic_shapes, numbered)
    if described is None:
        return Axes(dynamic_shapes, others=others)
    plan = normalize_dynamic_shapes(source.model, source.args, source.kwargs, described)
    specs = {
        (leaf, dimension): spec.name
        for leaf, tensor in enumerate(plan)
        for dimension, spec in enumerate(tensor.dims if isinstance(tensor, TensorDims) else ())
        if isinstance(spec, Dim)
    }
    # Dims come first: a size that has several names keeps the first of them.
    labels = {place: name for place, name in specs.items() if not name.startswith("label_")}
    strings = {place: name for place, name in specs.items() if place not in labels}
    labels |= {place: names[int(name.removeprefix("label_"))] for place, name in strings.items()}
    return Axes(_replaced(dynamic_shapes, lambda _: Dim.DYNAMIC), labels, others)


def _replaced(spec: Any, replacement: Callable[[str], Any]) -> Any:
    """A specification of sizes with each string replaced."""
    if isinstance(spec, str):
        return replacement(spec)
    if isinstance(spec, Mapping):
        return {key: _replaced(value, replacement) for key, value in spec.items()}
    return [_replaced(item, replacement) for item in spec] if isinstance(spec, (list, tuple)) else spec


def _from_dynamic_axes(source: Source, dynamic_axes: DynamicAxes) -> tuple[Any, dict[str, dict[int, str]]]:
    """The same as ``dynamic_shapes``, one entry per argument; and the axes of names that are not inputs."""
    axes = {name: _named(name, each) for name, each in dynamic_axes.items()}
    leaves, tree = pytree.tree_flatten((source.args, source.kwargs))
    paths = tensor_paths(source.model, source.args, source.kwargs)
    names = [re.sub(r"\W+", "_", path).strip("_") for path in paths]
    given = source.input_names or ()
    given = [*given, *names[len(given) :]]
    remaining = (axes.pop(name, None) or axes.pop(own, None) for name, own in zip(given, names, strict=False))

    def described(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return next(remaining)
        tensors = [each for each in pytree.tree_leaves(opened(leaf)) if isinstance(each, torch.Tensor)]
        return [next(remaining) for _ in tensors] or None

    specs = [described(leaf) for leaf in leaves]
    positional, keywords = pytree.tree_unflatten(specs, tree)
    return [*positional, *keywords.values()], axes


def _named(name: str, axes: Mapping[int, str] | Sequence[int] | None) -> dict[int, str]:
    """Axes by number; those of a list get the names that torch's exporter generates."""
    if isinstance(axes, (list, tuple)):
        axes = {axis: f"{name}_dynamic_axes_{number}" for number, axis in enumerate(axes, 1)}
    if not isinstance(axes, (Mapping, type(None))) or not all(isinstance(axis, int) for axis in axes or ()):
        raise InputTypeError(
            f"dynamic_axes says {axes!r} for {name}.",
            why="axes are numbers",
            fix=f'Write {{{name!r}: {{0: "batch"}}}} or {{{name!r}: [0]}}.',
        )
    return dict(axes or {})


def labelled_sizes(program: Program, labels: Mapping[tuple[int, int], str]) -> dict[sympy.Expr, str]:
    """The sizes of a captured program that labels name; a size keeps the first of several names."""
    pairs = zip(program.signature.inputs, program.placeholders, strict=True)
    users = [node for spec, node in pairs if spec.kind is InputKind.USER_INPUT]
    found: dict[sympy.Expr, str] = {}
    for (leaf, dimension), label in labels.items():
        value = value_of(users[leaf])
        size = as_size(value.shape[dimension]) if isinstance(value, torch.Tensor) else 0
        if not isinstance(size, int) and found.setdefault(size, label) != label:
            # In the words of torch's exporter, which people filter by.
            message = (
                f"# The axis name: {label} will not be used, since it shares the same shape constraints "
                f"with another axis: {found[size]}."
            )
            warnings.warn(message, UserWarning, stacklevel=5)
    return found


def named_sizes(program: Program, labels: Mapping[sympy.Expr, str]) -> Program:
    """Rename the program's sizes; one without a label is named after its place (``x_dim_0``)."""
    own = unique_names([each.identifier for each in program.sizes.symbols])
    symbols = tuple(
        replace(each, name=labels.get(each.symbol, each.name if each.name.isidentifier() else name))
        for each, name in zip(program.sizes.symbols, own, strict=True)
    )
    return program.replace(sizes=replace(program.sizes, symbols=symbols))


def name_output_axes(model: ir.Model, axes: Mapping[str, Mapping[int, str]], labels: Sequence[str]) -> None:
    """Name sizes of outputs that are not computed from labelled sizes."""
    outputs = {value.name: value for value in model.graph.outputs}
    unknown = [name for name in axes if name not in outputs]
    if unknown:
        names = [str(value.name) for value in (*model.graph.inputs, *model.graph.outputs)]
        raise InputValueError(
            f"dynamic_axes names {', '.join(map(repr, unknown))}, which is neither an input nor an output.",
            why=f"the model has {', '.join(names)}",
            fix="Use these names, or give others in input_names and output_names.",
        )
    for output, named in axes.items():
        shape = outputs[output].shape
        for axis, label in named.items():
            size = str(shape[axis]) if shape is not None and -len(shape) <= axis < len(shape) else ""
            if size.isidentifier() and size not in labels:
                rename_axes(model, {size: label})


def rename_axes(model: ir.Model, names: Mapping[str, str]) -> None:
    """Rename sizes in ``model``, in place, including within expressions; the longest match wins."""
    ordered = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in ordered))
    if not ordered:
        return
    for value in _values(model):
        if value.shape is not None and any(isinstance(size, ir.SymbolicDim) for size in value.shape):
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            renamed = [pattern.sub(lambda m: names[m[0]], size) if isinstance(size, str) else size for size in sizes]
            if renamed != sizes:
                value.shape = ir.Shape(renamed)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for outermost in outermost_graphs(model):
        for graph in (outermost, *outermost.subgraphs()):
            yield from graph.inputs
            yield from (value for node in graph for value in node.outputs)
