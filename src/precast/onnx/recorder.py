"""Runs onnxscript functions symbolically and records the ONNX nodes that they create.

Before: ``aten_add(x, 2, alpha=3)``, a Python function over onnxscript's ops
After:  ``two = Constant(2.0); three = Constant(3.0); scaled = Mul(two, three); sum = Add(x, scaled)``

A recorded value supports the Python operators that torchlib's functions use.

Where ONNX expects tensors, Python values become ``Constant`` nodes of the right element type.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.schemas import AttributeParameter, OpSignature, Parameter, TypeConstraintParam
from onnxscript import values

from precast.onnx.rules.opsets import op

Binding = Mapping[TypeConstraintParam, ir.DataType]
"""The element type bound to each type variable of an op's signature in one call."""


def bind_types(inputs: Sequence[tuple[Parameter, Any]]) -> dict[TypeConstraintParam, ir.DataType]:
    """Infer the type variables from the inputs of known type."""
    found: dict[TypeConstraintParam, ir.DataType] = {}
    for parameter, argument in inputs:
        for value in argument if isinstance(argument, (list, tuple)) else [argument]:
            if isinstance(value, ir.Value) and value.dtype is not None:
                found.setdefault(parameter.type_constraint, value.dtype)
    return found


def element_type(parameter: Parameter, argument: Any, binding: Binding) -> ir.DataType:
    """The type of a Python value passed for ``parameter``: that of other operands, or else Python's own."""
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
    """Whether ONNX expects a sequence value, and not a tensor."""
    return all(isinstance(kind, ir.SequenceType) for kind in parameter.type_constraint.allowed_types)


def output_types(signature: OpSignature, count: int, binding: Binding) -> list[ir.DataType | None]:
    """The element types of a call's results, as far as they are known."""
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


_FLOATING = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


class RecordedValue(ir.Value):
    """``a + b`` on two of these records an ``Add`` node and returns its result."""

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __add__(self, other: Any) -> Any:
        return op.Add(self, other)

    def __radd__(self, other: Any) -> Any:
        return op.Add(other, self)

    def __sub__(self, other: Any) -> Any:
        return op.Sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return op.Sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return op.Mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return op.Mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return op.Div(self, other)

    def __matmul__(self, other: Any) -> Any:
        return op.MatMul(self, other)

    def __pow__(self, other: Any) -> Any:
        return op.Pow(self, other)

    def __mod__(self, other: Any) -> Any:
        return op.Mod(self, other, fmod=1) if self.dtype in _FLOATING else op.Mod(self, other)

    def __neg__(self) -> Any:
        return op.Neg(self)

    def __and__(self, other: Any) -> Any:
        return op.And(self, other)

    def __rand__(self, other: Any) -> Any:
        return op.And(other, self)

    def __or__(self, other: Any) -> Any:
        return op.Or(self, other)

    def __lt__(self, other: Any) -> Any:
        return op.Less(self, other)

    def __le__(self, other: Any) -> Any:
        return op.LessOrEqual(self, other)

    def __gt__(self, other: Any) -> Any:
        return op.Greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return op.GreaterOrEqual(self, other)


Inputs = list[tuple[Parameter, Any]]


class Recorder:
    """An onnxscript evaluator that records instead of computing.

    ``nodes`` are the nodes recorded so far, ``functions`` the onnxscript functions that they call. Equal constants are
    recorded once.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.functions: dict[str, values.OnnxFunction[..., Any]] = {}
        self._constants: dict[tuple[str, ir.DataType], ir.Value] = {}

    def take_nodes(self) -> list[ir.Node]:
        """The nodes recorded since the last call."""
        taken, self.nodes = self.nodes, []
        return taken

    def eval_op(self, op: values.Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        schema = op.op_schema
        if schema is None:
            return self._of_unknown_domain(op, args, kwargs)
        if op.name in ("Cast", "CastLike") and args and isinstance(args[0], (int, float)):
            wanted = kwargs.get("to") if op.name == "Cast" else getattr(args[1], "dtype", None)
            if wanted is not None and ir.DataType(wanted).is_floating_point():
                # By way of a float32, it would lose digits on its way to float64.
                return self.constant(args[0], ir.DataType(wanted))
        signature = _signature(schema)
        inputs, attributes = bind_arguments(signature, args, kwargs)
        recorded = self._record(signature, inputs, attributes, _output_count(signature, attributes))
        if isinstance(recorded, ir.Value) and (declared := type_from_attributes(op.name, attributes)):
            recorded.dtype = declared
        return recorded

    def _of_unknown_domain(self, op: values.Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A node of an unknown operator: operands are values, keywords are attributes."""
        types = {bool: ir.DataType.BOOL, int: ir.DataType.INT64}
        operands = [
            each
            if each is None or isinstance(each, ir.Value)
            else self.constant(each, types.get(type(each), ir.DataType.FLOAT))
            for each in args
        ]
        attributes = {name: value for name, value in kwargs.items() if value is not None}
        count = attributes.pop("_outputs", 1)
        results = self.call(op.name, *operands, outputs=count, domain=op.domain, **attributes)
        self.nodes[-1].version = op.opset.version
        return results[0] if count == 1 else tuple(results)

    def eval_function(
        self, function: values.OnnxFunction[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        signature = function.op_signature
        assert signature is not None, f"{function.name} has no signature"
        inputs, attributes = bind_arguments(signature, args, kwargs)
        if function.traceable:
            binding = bind_types(inputs)
            named = {parameter.name: self._operand(parameter, value, binding) for parameter, value in inputs}
            return function.function(**named, **attributes)
        self.functions[function.name] = function
        return self._record(signature, inputs, attributes, len(signature.outputs))

    def call(
        self, operator: str, *inputs: ir.Value | None, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """Record a node that no schema describes well: one with subgraphs, or of a custom domain."""
        node = ir.Node(
            domain,
            operator,
            inputs,
            ir.convenience.convert_attributes(attributes),
            outputs=[RecordedValue() for _ in range(outputs)],
        )
        self.nodes.append(node)
        return list(node.outputs)

    def constant(self, value: Any, data_type: ir.DataType) -> ir.Value:
        """The value of a ``Constant`` node."""
        # repr distinguishes 0.0 from -0.0, and 1 from True.
        key = (repr(value), data_type)
        if key not in self._constants:
            (self._constants[key],) = self.call("Constant", value=as_tensor(value, data_type))
            self._constants[key].dtype = data_type
        return self._constants[key]

    def _record(self, signature: OpSignature, inputs: Inputs, attributes: Mapping[str, Any], count: int) -> Any:
        binding = bind_types(inputs)
        flat: list[ir.Value | None] = []
        for parameter, argument in inputs:
            if parameter.variadic:
                flat += [self._tensor(parameter, item, binding) for item in argument]
            else:
                flat.append(self._operand(parameter, argument, binding, is_node=True))
        while flat and flat[-1] is None:
            flat.pop()
        types = output_types(signature, count, binding)
        outputs = [RecordedValue(type=None if t is None else ir.TensorType(t)) for t in types]
        node = ir.Node(
            signature.domain,
            signature.name,
            flat,
            ir.convenience.convert_attributes(attributes),
            outputs=outputs,
            version=signature.since_version,
        )
        self.nodes.append(node)
        return outputs[0] if count == 1 else tuple(outputs)

    def _operand(self, parameter: Parameter, argument: Any, binding: Any, *, is_node: bool = False) -> Any:
        """An input of a node or function; lists that hold values remain lists for functions, which index them."""
        if argument is None or isinstance(argument, ir.Value):
            return argument
        if is_sequence_input(parameter) and isinstance(argument, (list, tuple)):
            return self._sequence(argument) if is_node else argument
        if isinstance(argument, (list, tuple)) and any(isinstance(item, ir.Value) for item in argument):
            return self._vector(parameter, argument, binding) if is_node else argument
        return self._tensor(parameter, argument, binding)

    def _tensor(self, parameter: Parameter, argument: Any, binding: Any) -> ir.Value | None:
        if argument is None or isinstance(argument, ir.Value):
            return argument
        if isinstance(argument, ir.TensorProtocol):
            (value,) = self.call("Constant", value=argument)
            value.dtype = argument.dtype
            return value
        return self.constant(argument, element_type(parameter, argument, binding))

    def _sequence(self, items: Sequence[Any]) -> ir.Value:
        return self.call("SequenceConstruct", *items)[0] if items else self.call("SequenceEmpty")[0]

    def _vector(self, parameter: Parameter, items: Sequence[Any], binding: Any) -> ir.Value:
        """``[n, 3]`` with a value ``n`` inside, as one tensor."""
        data_type = element_type(parameter, items, binding)
        minus_one = self.constant([-1], ir.DataType.INT64)
        parts = [
            self.call("Reshape", item, minus_one)[0] if isinstance(item, ir.Value) else self.constant([item], data_type)
            for item in items
            if item is not None
        ]
        if len(parts) == 1:
            return parts[0]
        (joined,) = self.call("Concat", *parts, axis=0)
        joined.dtype = data_type
        return joined


def bind_arguments(
    signature: OpSignature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Inputs, dict[str, Any]]:
    """Separate inputs from attributes; attributes that are not given, or ``None``, keep the op's own default."""
    inputs: Inputs = []
    attributes: dict[str, Any] = {}
    remaining = list(args)
    for parameter in signature.params:
        if isinstance(parameter, Parameter) and parameter.variadic:
            inputs.append((parameter, tuple(remaining)))
            remaining = []
            continue
        given = remaining.pop(0) if remaining else kwargs.get(parameter.name)
        if isinstance(parameter, Parameter):
            inputs.append((parameter, given))
        elif given is not None:
            attributes[parameter.name] = _attribute(parameter, given)
        elif parameter.default is not None and signature.domain != "":
            attributes[parameter.name] = parameter.default.value
    return inputs, attributes


def _attribute(parameter: AttributeParameter, value: Any) -> Any:
    if isinstance(value, ir.Attr):
        value = value.value
    if parameter.type is ir.AttributeType.FLOAT and isinstance(value, int):
        return float(value)
    return int(value) if isinstance(value, bool) else value


def _signature(schema: onnx.defs.OpSchema) -> OpSignature:
    return _signature_of(schema.name, schema.since_version, schema.domain)


@cache
def _signature_of(name: str, version: int, domain: str) -> OpSignature:
    return OpSignature.from_op_schema(onnx.defs.get_schema(name, version, domain))


def type_from_attributes(name: str, attributes: Mapping[str, Any]) -> ir.DataType | None:
    """The element type of a result that an attribute determines."""
    if name == "Cast":
        return ir.DataType(attributes["to"])
    if name in ("Constant", "ConstantOfShape") and "value" in attributes:
        data_type: ir.DataType = attributes["value"].dtype
        return data_type
    if name == "Constant":
        return ir.DataType.INT64 if {"value_int", "value_ints"} & attributes.keys() else ir.DataType.FLOAT
    return None


def _output_count(signature: OpSignature, attributes: Mapping[str, Any]) -> int:
    if signature.domain == "" and signature.name == "BatchNormalization" and not attributes.get("training_mode"):
        return 1
    if signature.domain == "" and signature.name == "Split":
        return int(attributes["num_outputs"])
    return len(signature.outputs)
