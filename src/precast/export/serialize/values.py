"""The traced values of nodes as JSON: dtype, sizes, strides and device of tensors; expressions of symbolic numbers."""

from typing import Any

import torch

from precast.artifact.schema import Json, damaged
from precast.errors import ExportError
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.export.serialize.expressions import expression_to_json
from precast.export.serialize.symbols import LoadedSizes
from precast.ir.tensor_spec import TensorSpec

MAX_RANK = 64


def value_to_json(value: object) -> Json:
    """A tensor as ``[dtype, shape, strides]`` with device and requires_grad where they are not the usual ones."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise ExportError(
                f"A tensor in the graph has the layout {value.layout}.",
                why="a program's file describes strided tensors",
                fix="Convert it with to_dense() in the program.",
            )
        return _tensor_to_json(TensorSpec.of(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {type(value).__name__: expression_to_json(value.node.expr)}
    if isinstance(value, (tuple, list)):
        return {"list" if isinstance(value, list) else "tuple": [value_to_json(item) for item in value]}
    return {"constant": constant_to_json(value)}


def _tensor_to_json(spec: TensorSpec) -> Json:
    assert spec.strides is not None, "strided tensors have strides"
    record: list[Json] = [
        str(spec.dtype).removeprefix("torch."),
        [expression_to_json(size) for size in spec.shape],
        [expression_to_json(stride) for stride in spec.strides],
    ]
    if spec.requires_grad or spec.device.type != "cpu":
        record.append(spec.requires_grad)
    if spec.device.type != "cpu":
        record.append(str(spec.device))
    return record


def value_from_json(content: Json, sizes: LoadedSizes, depth: int = 0) -> Any:
    """A fake value like the traced one. Must run under the fake mode of ``sizes``."""
    if isinstance(content, list):
        return _tensor_from_json(content, sizes)
    if not isinstance(content, dict) or len(content) != 1 or depth > 10:
        raise damaged("the value of a node is not as it should be", f"it is {str(content)[:80]}")
    ((kind, inside),) = content.items()
    if kind in ("SymInt", "SymFloat", "SymBool"):
        return sizes.number(kind, inside)
    if kind in ("list", "tuple") and isinstance(inside, list):
        items = [value_from_json(item, sizes, depth + 1) for item in inside]
        return items if kind == "list" else tuple(items)
    if kind == "constant":
        return constant_from_json(inside)
    raise damaged(f"the value of a node is a {kind!r}", "no such kind is known")


def _tensor_from_json(content: list[Json], sizes: LoadedSizes) -> torch.Tensor:
    dtype, shape, strides, *rest = content if len(content) >= 3 else [None, None, None]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(strides, list) or len(rest) > 2:
        raise damaged("the value of a node is not as it should be", f"it is {str(content)[:80]}")
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise damaged("the value of a node is not as it should be", "it has other strides than sizes")
    numbers = [size for size in (*shape, *strides) if isinstance(size, int)]
    if any(number < 0 or number >= 2**48 for number in numbers):
        raise damaged("the value of a node is not as it should be", f"its sizes are {str(shape)[:80]}")
    requires_grad = bool(rest and rest[0])
    device = constant_from_json({"device": rest[1] if len(rest) > 1 else "cpu"})
    made = torch.empty_strided(
        [sizes.integer(size) for size in shape],
        [sizes.integer(stride) for stride in strides],
        dtype=constant_from_json({"dtype": dtype}),
        device=device,
    )
    return made.requires_grad_() if requires_grad else made
