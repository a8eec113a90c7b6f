"""Translates a functional program to an ONNX model, node by node.

Before: ``linear: f32[s0, 4] = aten.linear(x, p_weight, p_bias); return (linear,)``
After:  ``linear = Gemm(x, weight, bias, transB=1)`` over the named size ``batch``, with the weights as initializers

Names of dynamic sizes in the model are the user's own, and expressions over them.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import sympy
import torch
from onnxscript import evaluator
from torch import fx

from precast._version import __version__
from precast.errors import InputValueError, OnnxError, OnnxRuleError
from precast.graph.nodes import has_value, source_line_of, value_of
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, InputSpec, OutputKind
from precast.graph.sizes import SymbolicSizes
from precast.graph.tensor_spec import Size, as_size
from precast.onnx.element_types import (
    TYPED_NUMBERS,
    data_type_of,
    is_elementwise,
    keeps_dtype,
    operand_dtype,
    real_data_type_of,
    unpacked_shape,
)
from precast.onnx.graphs import custom_domains
from precast.onnx.recorder import RecordedValue, Recorder
from precast.onnx.rules.registry import (
    Rule,
    RuleTable,
    as_pair,
    is_complex,
    lacks_imaginary_part,
    operator_name,
    pair,
    parts,
    takes_complex,
)
from precast.onnx.weights import TorchWeight


class SizeNames:
    """Expresses sizes in the user's names: ``batch``, ``2*length + 1``."""

    def __init__(self, sizes: SymbolicSizes, labels: Mapping[sympy.Expr, str]) -> None:
        own = [symbol for symbol in sizes.symbols if symbol.symbol not in labels]
        names = [symbol.name for symbol in own]
        for symbol in own:
            if names.count(symbol.name) > 1:
                places = [other.seen_at for other in own if other.name == symbol.name]
                raise InputValueError(
                    f"Two different sizes are called {symbol.name!r}: {' and '.join(places)}.",
                    why="in an ONNX model the same name means the same size",
                    fix="Give the two dimensions Dims with different names.",
                )
        self._named = {each.symbol: sympy.Symbol(each.name) for each in own}
        self._named |= {size: sympy.Symbol(label) for size, label in labels.items()}

    def shape(self, sizes: Sequence[int | torch.SymInt]) -> ir.Shape:
        return ir.Shape([self._size(as_size(size)) for size in sizes])

    def _size(self, size: Size) -> int | str:
        return size if isinstance(size, int) else str(size.xreplace(self._named))


BASE_OPSET = 18
"""Torchlib's opset; models for newer ones are converted afterwards."""

# What third-party rules raise for unsupported arguments.
_RULE_FAILURES = (TypeError, ValueError, AssertionError, NotImplementedError, AttributeError, LookupError, RuntimeError)


@dataclass(frozen=True)
class RuleUse:
    """How one operator of the program was translated, and where the user called it."""

    node: str
    operator: str
    rule: str
    source: str
    onnx_operators: tuple[str, ...]
    at: str | None


@dataclass(frozen=True)
class Translation:
    """A model, how its operators were translated, and which outputs are the user's (the others are updated state)."""

    model: ir.Model
    uses: tuple[RuleUse, ...]
    updates: tuple[str, ...]


def translate(
    program: Program, rules: RuleTable, *, name: str = "main", labels: Mapping[sympy.Expr, str] | None = None
) -> Translation:
    """Build the model; an error lists every operator without a rule. ``labels`` are names of sizes."""
    check_rules(program.module, rules)
    builder = GraphBuilder(program.module, rules, SizeNames(program.sizes, labels or {}))
    graph = ir.Graph([], [], nodes=[], name=name, opset_imports={"": BASE_OPSET})
    _add_inputs(program, builder, graph)
    graph.extend(builder.run())
    # Onnxscript's functions declare theirs themselves.
    graph.opset_imports.update(custom_domains(graph))
    updates = _add_outputs(program, builder, graph)
    model = ir.Model(
        graph,
        ir_version=onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", rules.opset],
        producer_name="precast",
        producer_version=__version__,
        functions=[*(ir.from_proto(each.to_function_proto()) for each in builder.functions), *builder.regions.values()],
    )
    return Translation(model, tuple(builder.uses), tuple(updates))


def check_rules(module: fx.GraphModule, rules: RuleTable) -> None:
    """Refuse a program with operators that have no rule, listing all of them."""
    missing = {operator_name(node.target): node for node in untranslatable(module, rules)}
    if not missing:
        return
    later = {name: rules.opset_for(node.target) for name, node in missing.items()}
    lines = [f"{name} ({source_line_of(node) or 'no line known'})" for name, node in missing.items()]
    newer = max((since for since in later.values() if since), default=None)
    if newer and all(later.values()):
        raise OnnxError(
            f"Opset {rules.opset} is too old for {', '.join(lines)}.",
            why=f"these operators came with opset {newer}",
            fix=f"Export with opset={newer}.",
        )
    raise OnnxRuleError(
        f"{_counted(len(missing))} no translation to ONNX: {'; '.join(lines)}.",
        why="neither torchlib nor Precast has a rule for it, and it cannot be decomposed into others",
        fix="Give rules in custom_translation_table={torch.ops.…: function}, or rewrite the model without them.",
    )


def _counted(operators: int) -> str:
    return "1 operator has" if operators == 1 else f"{operators} operators have"


def untranslatable(module: fx.GraphModule, rules: RuleTable) -> Iterator[fx.Node]:
    """The calls that have no rule, in subgraphs too."""
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            yield from untranslatable(child, rules)
    for node in module.graph.nodes:
        if node.op == "call_function" and _rule(node, rules) is None:
            yield node


def _line(node: fx.Node) -> str | None:
    line = source_line_of(node)
    return str(line) if line else None


def _rule(node: fx.Node, rules: RuleTable) -> Rule | None:
    """The rule of the node's operator; torchlib's for numbers take constants only, so others are tensors to them."""
    found = rules.find(node.target, is_complex=takes_complex(node))
    if found is None or found.source != "torchlib" or not _takes_symbolic_number(node):
        return found
    of_tensors = getattr(getattr(node.target, "overloadpacket", None), "Tensor", None)
    return (rules.find(of_tensors) if of_tensors is not None else None) or found


def _takes_symbolic_number(node: fx.Node) -> bool:
    is_of_numbers = isinstance(node.target, torch._ops.OpOverload) and node.target._overloadname == "Scalar"
    return is_of_numbers and any(_is_symbolic(each) for each in node.args[1:2])


def _is_symbolic(argument: object) -> bool:
    value = value_of(argument) if isinstance(argument, fx.Node) and has_value(argument) else None
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _read_size(node: fx.Node) -> sympy.Expr | None:
    """The size that a node reads from a tensor, if it is dynamic."""
    value = value_of(node) if node.target is torch.ops.aten.sym_size.int else None
    return value.node.expr if isinstance(value, torch.SymInt) else None


class GraphBuilder:
    """Translates one fx graph; ``values`` maps the values of its nodes to ONNX values.

    A subgraph has the enclosing graph as ``outer``, and ``name`` distinguishes it from its siblings. A function does
    not see the values of the graph that calls it.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        rules: RuleTable,
        sizes: SizeNames,
        *,
        outer: "GraphBuilder | None" = None,
        name: str = "",
        is_function: bool = False,
    ) -> None:
        self.module = module
        self.rules = rules
        self.sizes = sizes
        self.values: dict[fx.Node, Any] = {}
        self.recorder = Recorder()
        scope = None if is_function else outer
        self.prefix: str = "" if scope is None else f"{scope.prefix}{scope.current}.{name}."
        self.uses: list[RuleUse] = [] if scope is None else scope.uses
        self._functions: dict[str, Any] = {} if outer is None else outer._functions
        self.regions: dict[bytes, ir.Function] = {} if outer is None else outer.regions
        """Functions of the model for regions that are called several times, by their definition."""
        self._size_sources: dict[sympy.Expr, tuple[ir.Value, int]] = {} if scope is None else scope._size_sources
        # Values computed in a subgraph are not visible outside.
        self._known_sizes: dict[sympy.Expr, ir.Value] = {} if scope is None else dict(scope._known_sizes)
        self.current: str = ""

    @property
    def functions(self) -> list[Any]:
        return list(self._functions.values())

    def run(self) -> list[ir.Node]:
        """Translate the whole graph; returns its nodes in order."""
        nodes: list[ir.Node] = []
        with evaluator.default_as(self.recorder):
            for node in self.module.graph.nodes:
                if node.op == "call_function":
                    nodes += self._translate(node)
                elif node.op == "get_attr":
                    self.values[node] = getattr(self.module, node.target)
        return nodes

    def result(self, argument: Any) -> Any:
        """The ONNX value of a result of the graph."""
        return self.values[argument] if isinstance(argument, fx.Node) else argument

    def _translate(self, node: fx.Node) -> list[ir.Node]:
        if node.target is operator.getitem and isinstance(self.result(node.args[0]), tuple):
            self.values[node] = self._item(node)
            return []
        size = _read_size(node)
        if size in self._known_sizes:
            self.values[node] = self._known_sizes[size]
            return []
        found = _rule(node, self.rules)
        assert found is not None, "checked before"
        self.current = node.name
        result = self._by_parts(found, node) if found.is_by_parts else self._call(found, node)
        if lacks_imaginary_part(node):
            result = as_pair(result)
        nodes = self.recorder.take_nodes()
        self._functions |= self.recorder.functions
        self._check_versions(node, nodes)
        self._describe(node, result)
        self.values[node] = tuple(result) if isinstance(result, (list, tuple)) else result
        if size is not None:
            self._known_sizes[size] = result
        operators = tuple(each.op_type for each in nodes)
        name = operator_name(node.target)
        self.uses.append(RuleUse(node.name, name, found.name, found.source, operators, _line(node)))
        return nodes

    def _item(self, node: fx.Node) -> Any:
        """One of several results; a rule may omit those that serve a backward alone."""
        source, number = node.args
        item = self.result(source)[number]
        if item is None and node.users and isinstance(value_of(node), torch.Tensor):
            assert isinstance(source, fx.Node), "its values are a tuple"
            raise OnnxRuleError(
                f"Result {number} of {operator_name(source.target)} has no translation to ONNX.",
                why="its rule returns only what inference needs",
                fix="Give another rule in custom_translation_table, or do not use that result.",
                at=_line(source),
            )
        return item

    def _call(self, rule: Rule, node: fx.Node, *, part: int | None = None) -> Any:
        if (size := _read_size(node)) in self._size_sources:
            return rule.function(*self._size_sources[size])
        dtype = operand_dtype(node)
        args = [self._operand(arg, None if keeps_dtype(node, i) else dtype) for i, arg in enumerate(node.args)]
        if takes_complex(node) and is_elementwise(node.target) and not isinstance(node.args[0], (list, tuple)):
            args = [arg if keeps_dtype(node, i) else self._paired(node, i, arg, part) for i, arg in enumerate(args)]
        if dtype is not None and node.target in TYPED_NUMBERS:
            args = [arg if isinstance(arg, ir.Value) else self._number(arg, dtype) for arg in args]
        kwargs = {name: self._operand(arg, None) for name, arg in node.kwargs.items()}
        if "dtype" in kwargs and kwargs["dtype"] is None:
            # Torchlib's encoding of "no dtype".
            kwargs["dtype"] = -1
        if isinstance(node.target, torch._ops.HigherOrderOperator) and rule.source == "precast":
            return rule.function(self, *args, **kwargs)
        if rule.source == "precast":
            return rule.function(*args, **kwargs)
        try:
            return rule.function(*args, **kwargs)
        except _RULE_FAILURES as error:
            raise OnnxRuleError(
                f"{rule.source}'s rule {rule.name} for {operator_name(node.target)} failed: {error}",
                why="the rule does not support such arguments",
                fix="Give another rule in custom_translation_table, or rewrite the model without this call.",
                at=_line(node),
            ) from error

    def _paired(self, node: fx.Node, position: int, operand: Any, part: int | None) -> Any:
        """An operand of an elementwise operator as a complex value, or one part of it."""
        given = node.args[position]
        if isinstance(given, fx.Node) and isinstance(operand, ir.Value) and not is_complex(given):
            other = next((value_of(each) for each in node.all_input_nodes if is_complex(each)), value_of(node))
            assert isinstance(other, torch.Tensor), "complex numbers are not bare in a graph"
            whole = as_pair(self._cast(operand, other.dtype.to_real()))
            return whole if part is None else parts(whole)[part]
        if not isinstance(operand, (int, float, complex)):
            return operand
        return complex(operand) if part is None else (complex(operand).real, complex(operand).imag)[part]

    def _by_parts(self, rule: Rule, node: fx.Node) -> Any:
        """The real and imaginary parts, each translated by a rule for real tensors."""
        whole = {each: self.values[each] for each in node.all_input_nodes if is_complex(each)}
        results = []
        for number in (0, 1):
            self.values |= {each: parts(value)[number] for each, value in whole.items()}
            for each in whole:
                self.values[each].shape = ir.Shape(list(whole[each].shape)[:-1])
            results.append(self._call(rule, node, part=number))
        self.values |= whole
        real, imaginary = results
        if isinstance(real, (list, tuple)):
            return tuple(pair(one, other) for one, other in zip(real, imaginary, strict=True))
        # A cast to a real dtype drops the imaginary part.
        return pair(real, imaginary) if is_complex(node) else real

    def _operand(self, argument: Any, dtype: torch.dtype | None) -> Any:
        """A node's argument in the form for rules: values, and Python constants."""
        if isinstance(argument, (list, tuple)):
            return [self._operand(item, dtype) for item in argument]
        if isinstance(argument, fx.Node):
            value = self.values[argument]
            return value if dtype is None else self._cast(value, dtype)
        if isinstance(argument, (torch.device, torch.layout, torch.memory_format)):
            return str(argument)
        if isinstance(argument, torch.dtype):
            return int(real_data_type_of(argument, what=f"The result of {self.current}"))
        return argument

    def _number(self, number: Any, dtype: torch.dtype) -> ir.Value:
        return self.recorder.constant(number, data_type_of(dtype, what=f"A constant of {self.current}"))

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        wanted = data_type_of(dtype, what=f"An operand of {self.current}")
        if not isinstance(value, ir.Value) or value.dtype in (None, wanted):
            return value
        (cast,) = self.recorder.call("Cast", value, to=int(wanted))
        cast.dtype, cast.shape = wanted, value.shape
        return cast

    def _describe(self, node: fx.Node, result: Any) -> None:
        """Set the names, traced types and sizes of the results."""
        expected = value_of(node) if has_value(node) else None
        if isinstance(result, ir.Value):
            # A rule may return an input unchanged, which has a name already.
            if result.producer() is not None and result.name is None:
                result.name = f"{self.prefix}{node.name}"
            self.set_type(result, expected)
        elif isinstance(result, (list, tuple)):
            expectations = expected if isinstance(expected, (list, tuple)) else [expected]
            for number, (value, one) in enumerate(zip(result, expectations, strict=False)):
                if isinstance(value, ir.Value):
                    value.name = value.name or f"{self.prefix}{node.name}__{number}"
                    self.set_type(value, one)

    def read_sizes_off(self, value: ir.Value, expected: torch.Tensor) -> None:
        """Read sizes from an input wherever possible: intermediate values can be fused if nothing reads their sizes."""
        for dim, size in enumerate(map(as_size, expected.shape)):
            if not isinstance(size, int):
                self._size_sources.setdefault(size, (value, dim))

    def set_type(self, value: ir.Value, expected: object) -> None:
        """Set the traced type and shape of a value."""
        if isinstance(expected, torch.Tensor):
            value.dtype = real_data_type_of(expected.dtype, what=f"The value {value.name}")
            value.shape = self.sizes.shape([*unpacked_shape(expected), *([2] if expected.is_complex() else [])])
        elif isinstance(expected, (torch.SymInt, int, torch.SymBool, torch.SymFloat, float)):
            value.shape = ir.Shape([])
            if isinstance(expected, (torch.SymInt, torch.SymBool, torch.SymFloat)) or value.dtype is None:
                types = {int: ir.DataType.INT64, torch.SymInt: ir.DataType.INT64}
                types |= {bool: ir.DataType.BOOL, torch.SymBool: ir.DataType.BOOL}
                value.dtype = types.get(type(expected), ir.DataType.DOUBLE)

    def _check_versions(self, node: fx.Node, nodes: Sequence[ir.Node]) -> None:
        newer = {
            each.op_type: each.version for each in nodes if each.domain == "" and (each.version or 0) > self.rules.opset
        }
        if newer:
            name, version = max(newer.items(), key=lambda item: item[1] or 0)
            raise OnnxError(
                f"Opset {self.rules.opset} is too old for {operator_name(node.target)}.",
                why=f"its rule uses {name}, which came with opset {version}",
                fix=f"Export with opset={version} or newer.",
                at=_line(node),
            )


def _add_inputs(program: Program, builder: GraphBuilder, graph: ir.Graph) -> None:
    """The user's inputs first; then weights, as initializers and not as inputs."""
    pairs = list(zip(program.signature.inputs, program.placeholders, strict=True))
    for spec, node in pairs:
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument):
            value = RecordedValue(name=node.name)
            expected = value_of(node)
            if isinstance(expected, torch.Tensor):
                real_data_type_of(expected.dtype, what=f"The input {node.name}")
                builder.read_sizes_off(value, expected)
            builder.set_type(value, expected)
            builder.values[node] = value
            graph.inputs.append(value)
        elif isinstance(spec.arg, ConstantArgument):
            builder.values[node] = spec.arg.value
    for spec, node in pairs:
        if spec.kind is not InputKind.USER_INPUT:
            _add_weight(spec, node, program.state, builder, graph)


def _add_weight(
    spec: InputSpec, node: fx.Node, state: Mapping[str, torch.Tensor], builder: GraphBuilder, graph: ir.Graph
) -> None:
    assert spec.target is not None, f"state input {node.name} has no name"
    if not node.users:
        return
    tensor = state[spec.target]
    weight = TorchWeight(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor, spec.target)
    value = RecordedValue(name=spec.target, const_value=weight, type=ir.TensorType(weight.dtype))
    value.shape = ir.Shape(list(weight.shape))
    builder.values[node] = value
    graph.register_initializer(value)


def _add_outputs(program: Program, builder: GraphBuilder, graph: ir.Graph) -> list[str]:
    """The user's tensors first, then updated state; returns the names of the latter."""
    specs = list(zip(program.signature.outputs, program.results, strict=True))
    users = [(spec, result) for spec, result in specs if spec.kind is OutputKind.USER_OUTPUT]
    updates = [(spec, result) for spec, result in specs if spec.kind is not OutputKind.USER_OUTPUT]
    names: list[str] = []
    for spec, result in [*users, *updates]:
        if not isinstance(result, fx.Node):
            continue
        value = builder.result(result)
        expected = value_of(result)
        if isinstance(expected, torch.Tensor):
            real_data_type_of(expected.dtype, what=f"The output {result.name}", at=_line(result))
        own = as_own_output(_as_result(builder, value, expected, graph), graph)
        if spec.kind is not OutputKind.USER_OUTPUT:
            own.name = f"updated_{spec.target}"
            names.append(own.name)
        graph.outputs.append(own)
    return names


def _as_result(builder: GraphBuilder, value: Any, expected: object, graph: ir.Graph) -> ir.Value:
    """A result as a value of the model; Python floats are float32, like tensors that torch makes of them."""
    if not isinstance(value, ir.Value):
        types = {bool: ir.DataType.BOOL, int: ir.DataType.INT64}
        value = builder.recorder.constant(value, types.get(type(value), ir.DataType.FLOAT))
        value.shape = ir.Shape([])
    elif isinstance(expected, (torch.SymFloat, float)) and value.dtype == ir.DataType.DOUBLE:
        (cast,) = builder.recorder.call("Cast", value, to=int(ir.DataType.FLOAT))
        cast.dtype, cast.shape = ir.DataType.FLOAT, ir.Shape([])
        value = cast
    graph.extend(builder.recorder.take_nodes())
    assert isinstance(value, ir.Value), "converted above"
    return value


def as_own_output(value: ir.Value, graph: ir.Graph) -> ir.Value:
    """``value``, or a copy of it if it is an input, a weight or an output already."""
    if value.producer() is not None and value not in graph.outputs:
        return value
    copy = RecordedValue(name=f"{value.name}_copy_{len(graph.outputs)}", type=value.type, shape=value.shape)
    graph.append(ir.Node("", "Identity", [value], outputs=[copy]))
    return copy
