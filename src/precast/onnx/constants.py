"""Python values where ONNX wants tensors: which element type they take, and the ``Constant`` nodes that hold them."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.schemas import OpSignature, Parameter, TypeConstraintParam

Binding = Mapping[TypeConstraintParam, ir.DataType]
"""The element type that each type variable of an op's signature stands for in one call."""


def bind_types(inputs: Sequence[tuple[Parameter, Any]]) -> dict[TypeConstraintParam, ir.DataType]:
    """Read the type variables off the inputs whose type is known."""
    found: dict[TypeConstraintParam, ir.DataType] = {}
    for parameter, argument in inputs:
        for value in argument if isinstance(argument, (list, tuple)) else [argument]:
            if isinstance(value, ir.Value) and value.dtype is not None:
                found.setdefault(parameter.type_constraint, value.dtype)
    return found


def element_type(parameter: Parameter, argument: Any, binding: Binding) -> ir.DataType:
    """The type of a Python value passed for ``parameter``: the other operands', or else what Python's suggests."""
    if parameter.type_constraint in binding:
        return binding[parameter.type_constraint]
    allowed = parameter.type_constraint.allowed_types
    if len(allowed) == 1:
        return next(iter(allowed)).dtype
    items = argument if isinstance(argument, (list, tuple)) else [argument]
    known = [item.dtype for item in items if isinstance(item, ir.Value) and item.dtype is not None]
    if known:
        return known[0]
    if any(isinstance(item, (float, complex)) for item in items):
        return ir.DataType.FLOAT
    if items and all(isinstance(item, bool) for item in items):
        return ir.DataType.BOOL
    if items and all(isinstance(item, str) for item in items):
        return ir.DataType.STRING
    return ir.DataType.INT64


def as_tensor(value: Any, data_type: ir.DataType) -> ir.TensorProtocol:
    """A Python number, string, or list of them as a tensor; a complex number is the pair of its parts."""
    if isinstance(value, complex):
        value = [value.real, value.imag]
    return ir.tensor(value, dtype=data_type)


def is_sequence_input(parameter: Parameter) -> bool:
    """Whether ONNX wants a sequence value there, and not a tensor."""
    return all(isinstance(kind, ir.SequenceType) for kind in parameter.type_constraint.allowed_types)


def output_types(signature: OpSignature, count: int, binding: Binding) -> list[ir.DataType | None]:
    """What is known of the element types of a call's results."""
    outputs = list(signature.outputs)
    repeated = outputs + outputs[-1:] * (count - len(outputs))
    return [_output_type(output, binding) for output in repeated[:count]]


def _output_type(output: Parameter, binding: Binding) -> ir.DataType | None:
    allowed = output.type_constraint.allowed_types
    if not all(isinstance(kind, ir.TensorType) for kind in allowed):
        return None
    if output.type_constraint in binding:
        return binding[output.type_constraint]
    return next(iter(allowed)).dtype if len(allowed) == 1 else None
