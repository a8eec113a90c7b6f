"""``dynamic_shapes`` as source text, with corrections: something to paste over what did not hold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.capture.dynamic_shapes import DerivedDim, Dim, DimHint, DimSpec, TensorDims
from precast.ir.sizes import SizeRange


@dataclass(frozen=True)
class Correction:
    """What to write for a size: another range for its Dim, or an expression in its place (over ``free``, a new Dim)."""

    size_range: SizeRange | None = None
    expression: str | None = None
    free: str | None = None


def suggest(
    tensors: Sequence[TensorDims | None], arguments: Mapping[str, object], corrections: Mapping[str, Correction]
) -> str:
    """The definitions of all Dims that are still needed, and ``dynamic_shapes`` by argument name."""
    leaves = iter(tensors)
    shapes = {name: _render(value, leaves, corrections) for name, value in arguments.items()}
    entries = ", ".join(f"{name!r}: {text}" for name, text in shapes.items())
    return "\n".join([*_definitions(tensors, corrections), f"dynamic_shapes = {{{entries}}}"])


def _definitions(tensors: Sequence[TensorDims | None], corrections: Mapping[str, Correction]) -> Iterator[str]:
    roots = {
        root.name: root.range
        for tensor in tensors
        for spec in (tensor.dims if tensor is not None else ())
        if (root := _root_of(spec)) is not None
    }
    for name, size_range in roots.items():
        correction = corrections.get(name, Correction())
        if correction.expression is None:
            yield _definition(name, correction.size_range or size_range)
        elif correction.free is not None:
            yield _definition(correction.free, SizeRange())


def _root_of(spec: DimSpec) -> Dim | None:
    return spec.root if isinstance(spec, DerivedDim) else spec if isinstance(spec, Dim) else None


def _definition(name: str, size_range: SizeRange) -> str:
    lower = f", min={size_range.lower}" if size_range.lower else ""
    upper = f", max={size_range.upper}" if size_range.upper is not None else ""
    return f'{name} = Dim("{name}"{lower}{upper})'


def _render(value: object, leaves: Iterator[TensorDims | None], corrections: Mapping[str, Correction]) -> str:
    children, tree = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if isinstance(value, torch.Tensor) or tree.is_leaf():
        return _render_tensor(next(leaves), corrections)
    keys: list[Any] = [key for (key,), _ in children]
    texts = [_render(child, leaves, corrections) for _, child in children]
    names = [getattr(key, "key", getattr(key, "name", None)) for key in keys]
    if keys and None not in names:
        return f"{{{', '.join(f'{name!r}: {text}' for name, text in zip(names, texts, strict=True))}}}"
    return f"[{', '.join(texts)}]"


def _render_tensor(tensor: TensorDims | None, corrections: Mapping[str, Correction]) -> str:
    if tensor is None:
        return "None"
    texts = {number: _render_dim(tensor, number, corrections) for number in range(len(tensor.dims))}
    dims = ", ".join(f"{number}: {text}" for number, text in texts.items() if text is not None)
    return f"{{{dims}}}" if dims else "None"


def _render_dim(tensor: TensorDims, number: int, corrections: Mapping[str, Correction]) -> str | None:
    """The text for one dimension; nothing for one that stays as the example has it."""
    spec = tensor.dims[number]
    if spec is None or spec is DimHint.STATIC:
        return None
    if isinstance(spec, int):
        return str(spec)
    if isinstance(spec, DimHint):
        correction = corrections.get(f"{tensor.path}.shape[{number}]")
        return f"Dim.{spec.name}" if correction is None else "Dim.AUTO"
    root = _root_of(spec)
    assert root is not None, "what is neither a number nor a hint has a root"
    expression = corrections.get(root.name, Correction()).expression
    if expression is None:
        return repr(spec)
    if expression.isdigit() or expression == "Dim.AUTO":
        return str(tensor.sizes[number]) if expression.isdigit() else expression
    return expression if isinstance(spec, Dim) else repr(spec).replace(root.name, f"({expression})")
