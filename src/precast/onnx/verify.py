"""Verifies that a model is valid and computes what the program computes; if not, finds the first node that differs.

Tensors count as equal if they are as close as the arithmetic of their dtype allows after a deep model.

To check that dynamic sizes are dynamic, the model is also called with other sizes than the example's.

Before: ``x: f32[2, 12]`` with the sizes ``batch, length``
After:  ``x: f32[3, 13]``, made from the example's own values, so that indices stay in range
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, cast

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import sympy
import torch
from torch import fx

from precast.errors import OnnxError, OnnxMismatchError
from precast.graph.nodes import value_of
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, OutputKind
from precast.graph.sizes import bind_sizes, evaluate
from precast.graph.tensor_spec import Size, TensorSpec, as_size
from precast.onnx.adapters import as_onnx
from precast.onnx.graphs import all_nodes
from precast.onnx.session import MissingKernelError, Session, has_onnxruntime, newest_readable_opset
from precast.onnx.translate import RuleUse
from precast.onnx.weights import missing_as_inputs, missing_in

# Relative error, and absolute error as a fraction of the largest value.
_TOLERANCES = {
    torch.float64: (1e-5, 1e-7),
    torch.float32: (1e-3, 2e-5),
    torch.float16: (2e-2, 2e-3),
    torch.bfloat16: (5e-2, 2e-2),
    torch.float8_e4m3fn: (0.13, 0.02),
    torch.float8_e4m3fnuz: (0.13, 0.02),
    torch.float8_e5m2: (0.26, 0.02),
    torch.float8_e5m2fnuz: (0.26, 0.02),
}


def difference(actual: torch.Tensor, expected: torch.Tensor, *, is_narrowed: bool = False) -> str | None:
    """A description of the difference, or ``None``. If it ``is_narrowed``, float64 was computed in float32."""
    if actual.dtype != expected.dtype:
        return f"is {actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return f"has the shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
    computed = torch.float32 if is_narrowed and expected.dtype is torch.float64 else expected.dtype
    relative, absolute = _TOLERANCES.get(computed, (0.0, 0.0))
    if expected.dtype.itemsize == 1 and expected.dtype.is_floating_point:
        # Torch cannot compute with this type.
        is_pair = expected.dtype is torch.float4_e2m1fn_x2
        actual, expected = (each.view(torch.uint8) if is_pair else each.float() for each in (actual, expected))
    finite = expected[expected.isfinite()].abs() if expected.is_floating_point() else expected
    largest = max(1.0, float(finite.max())) if expected.is_floating_point() and finite.numel() else 1.0
    is_close = torch.isclose(actual, expected, rtol=relative, atol=absolute * largest, equal_nan=True)
    if bool(is_close.all()):
        return None
    wrong = int((~is_close).sum())
    worst = (actual.double() - expected.double()).abs()[~is_close].max()
    return (
        f"differs at {wrong} of {expected.numel()} elements, by up to {float(worst):.3g} (largest value {largest:.3g})"
    )


@dataclass(frozen=True)
class NodeDifference:
    """A node of the program, the number of its result, and how the model's value differs."""

    node: str
    part: int
    problem: str


def first_difference(model: ir.Model, program: Program, inputs: Sequence[Any]) -> NodeDifference | None:
    """Compare every value that both sides have, in the program's order."""
    by_node = _values_by_node(model)
    probe = model.clone()
    own = {value.name: value for node in probe.graph for value in node.outputs}
    probed = [name for name in by_node.values() if name in own]
    if not probed:
        return None
    probe.graph.outputs[:] = [own[name] for name in probed]
    session = Session(probe)
    actual = dict(zip(probed, session.run(list(map(as_onnx, inputs))), strict=True))
    recorder = _ValueRecorder(program.module)
    with torch.no_grad():
        recorder.run(*_graph_inputs(program, inputs))
    for node, expected in recorder.seen.items():
        name = by_node.get(node)
        if name not in actual:
            continue
        if problem := difference(actual[name], expected, is_narrowed=bool(session.narrowed)):
            name, _, part = node.rpartition("__")
            is_part = bool(name) and part.isdigit()
            return NodeDifference(name if is_part else node, int(part) if is_part else 0, problem)
    return None


def _values_by_node(model: ir.Model) -> dict[str, str]:
    """The model's names for the program's values; those removed by optimization are omitted."""
    values = [value for node in model.graph for value in node.outputs if value.type is not None]
    names = {str(value.name): str(value.name) for value in values}
    for value in model.graph.outputs:
        if origin := value.metadata_props.get("precast.node"):
            names[origin] = str(value.name)
    return names


class _ValueRecorder(fx.Interpreter):
    """Runs a graph and keeps every tensor that its operators return."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            parts = {n.name: result}
            if isinstance(result, (list, tuple)):
                parts = {f"{n.name}__{number}": part for number, part in enumerate(result)}
            self.seen |= {name: part for name, part in parts.items() if _is_comparable(part)}
        return result


def _is_comparable(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex()


def _graph_inputs(program: Program, inputs: Sequence[Any]) -> list[Any]:
    remaining = iter(inputs)
    bound: list[Any] = []
    for spec in program.signature.inputs:
        if spec.kind is not InputKind.USER_INPUT:
            bound.append(program.state[str(spec.target)])
        else:
            bound.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else next(remaining))
    return bound


# Tried in this order for every size symbol; the first for which the program is valid is used.
_STEPS = (1, -1, 2, 3, -2, 4, 7, 8)


def input_shapes(program: Program) -> list[tuple[Size, ...]]:
    """The sizes of the user's tensors, as numbers and expressions; a number input is one size."""
    pairs = zip(program.signature.inputs, program.placeholders, strict=True)
    values = [
        value_of(node)
        for spec, node in pairs
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]
    return [
        TensorSpec.of(value).shape if isinstance(value, torch.Tensor) else (as_size(cast("int | torch.SymInt", value)),)
        for value in values
    ]


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def other_bindings(program: Program, inputs: Sequence[Any]) -> Iterator[dict[sympy.Symbol, int]]:
    """Valid sizes for the program, each different from the example's."""
    shapes = input_shapes(program)
    example, _ = bind_sizes(shapes, [_sizes(value) for value in inputs])
    symbols = sorted(example, key=str)
    for steps in _combinations(len(symbols)):
        binding = {symbol: example[symbol] + step for symbol, step in zip(symbols, steps, strict=True)}
        if not program.sizes.out_of_range(binding) and not program.sizes.failing_guards(binding):
            yield binding
    for step in _STEPS[:3]:
        start = {symbol: size + step for symbol, size in example.items()}
        found = _repaired(program, start)
        if found is not None and found != example:
            yield found


def _repaired(program: Program, binding: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, int] | None:
    """Valid sizes near these: step by step, the change of one size after which the fewest conditions fail."""

    def failing(tried: dict[sympy.Symbol, int]) -> int:
        return len(program.sizes.failing_guards(tried)) + len(program.sizes.out_of_range(tried))

    left = failing(binding)
    while left:
        changes = ((symbol, step) for symbol in binding for step in _STEPS)
        tried = [binding | {symbol: binding[symbol] + step} for symbol, step in changes]
        best = min(tried, key=failing)
        if failing(best) >= left:
            return None
        binding, left = best, failing(best)
    return binding


def _combinations(count: int) -> Iterator[tuple[int, ...]]:
    """Steps for all symbols: the same for all first, then mixed."""
    if count:
        yield from ((step,) * count for step in _STEPS)
        yield from (steps for steps in product(_STEPS[:4], repeat=min(count, 4)) if len(steps) == count)


def resized(tensor: Any, shape: Sequence[Size], binding: Mapping[sympy.Symbol, int]) -> Any:
    """The example repeated or cut to other sizes; ascending integers, such as offsets, remain ascending."""
    if not isinstance(tensor, torch.Tensor):
        return evaluate(shape[0], binding)
    for dimension, size in enumerate(shape):
        wanted = evaluate(size, binding)
        if wanted != tensor.shape[dimension]:
            tensor = (
                tensor.index_select(dimension, _repeated(tensor, dimension, wanted))
                if tensor.numel()
                else tensor.new_zeros(_with(tensor, dimension, wanted))
            )
    return tensor


def _repeated(tensor: torch.Tensor, dimension: int, wanted: int) -> torch.Tensor:
    """The indices of the example's elements: cyclic, or repeating the last where that keeps them ascending."""
    indices, size = torch.arange(wanted), tensor.shape[dimension]
    is_no_integer = tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex()
    is_ascending = not is_no_integer and bool((tensor.long().diff(dim=dimension) >= 0).all())
    return indices.clamp(max=size - 1) if is_ascending else indices % size


def _with(tensor: torch.Tensor, dimension: int, size: int) -> list[int]:
    return [size if number == dimension else old for number, old in enumerate(tensor.shape)]


def describe_binding(program: Program, binding: Mapping[sympy.Symbol, int]) -> str:
    """``batch=3, length=13``."""
    return ", ".join(
        f"{symbol.name}={binding[symbol.symbol]}" for symbol in program.sizes.symbols if symbol.symbol in binding
    )


_UNWRITTEN = {f"aten::{name}" for name in ("empty", "empty_like", "new_empty", "empty_permuted", "empty_strided")}
# They return values, and their indices.
_CHOOSING = {f"aten::{name}" for name in ("topk", "sort", "kthvalue", "median", "nanmedian", "mode", "max", "min")}
_RANDOM_OPERATORS = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip

Reference = Callable[[Sequence[Any]], Sequence[torch.Tensor]]
"""The original model as a function from the ONNX model's inputs to its outputs."""


@dataclass(frozen=True)
class Verification:
    """What was compared and found equal, and what could not be checked and why."""

    checked: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        skipped = [f"not checked: {reason}" for reason in self.skipped]
        return "\n".join([f"checked: {', '.join(self.checked) or 'nothing'}", *skipped])


def verify_model(
    model: ir.Model,
    program: Program,
    uses: Sequence[RuleUse],
    inputs: Sequence[Any],
    reference: Reference,
    *,
    why_no_example: str | None = None,
    trusts_custom_rules: bool = True,
) -> Verification:
    """Check the structure, then the results on the example and on other sizes; raise if they differ.

    The user's own rules may compute anything: with such, results are compared only on request.
    """
    check_structure(model)
    reason = why_no_example or _why_not_run(model) or (_whose_rules(uses) if trusts_custom_rules else None)
    session = None if reason else _session_or_reason(model)
    if not isinstance(session, Session):
        return Verification(("structure",), (f"the numbers: {reason or session}",))
    checked, skipped = ["structure"], _unread_opset(model)
    for name, call in _calls(program, inputs, skipped, reference):
        expected = call.expected
        try:
            actual = session.run(list(map(as_onnx, call.inputs)))[: len(expected)]
        except MissingKernelError as error:
            skipped.append(f"the numbers: {_lacking(error)}")
            break
        is_narrowed = bool(session.narrowed)
        problems = [difference(a, e, is_narrowed=is_narrowed) for a, e in zip(actual, expected, strict=True)]
        if any(problems):
            found = first_difference(model, program, call.inputs)
            if freedom := _freedom(uses, found):
                skipped.append(f"the numbers on {name}: they differ, as {freedom}")
                break
            if found is None and _is_captured_otherwise(program, call):
                raise _other_path(name, problems[0] or "outputs differ")
            raise _mismatch(model, uses, found, name, problems)
        checked.append(name)
    if session.is_widened:
        skipped.append("kernels that onnxruntime lacks for narrow dtypes: it ran the operators in wider ones, rounded")
    if session.narrowed:
        skipped.append(f"float64 in {', '.join(sorted(session.narrowed))}: onnxruntime has no kernels, and ran float32")
    return Verification(tuple(checked), tuple(skipped))


def _whose_rules(uses: Sequence[RuleUse]) -> str | None:
    if any(use.operator.startswith("onnx_symbolic::") for use in uses):
        return "torch has no numbers for operators that the model names itself (torch.onnx.ops.symbolic)"
    custom = sorted({use.operator for use in uses if use.source == "custom"})
    return f'{", ".join(custom)} means what custom_translation_table says; verify="custom" compares' if custom else None


def _freedom(uses: Sequence[RuleUse], found: "NodeDifference | None") -> str | None:
    """Why an operator may legitimately return other numbers than eager."""
    for use in uses:
        name = use.operator.partition(".")[0]
        if name in _UNWRITTEN:
            return f"{use.operator} returns uninitialized memory"
        if found is not None and found.node == use.node and found.part == 1 and name in _CHOOSING:
            return f"{use.operator} may choose other indices of equal values"
    return None


def _session_or_reason(model: ir.Model) -> Session | str:
    """A session of the model; or the reason why onnxruntime cannot run it."""
    try:
        return Session(model)
    except MissingKernelError as error:
        return _lacking(error)


def _lacking(error: MissingKernelError) -> str:
    return f"onnxruntime has no kernels for its dtypes on the CPU ({error.__cause__})"


def check_structure(model: ir.Model) -> None:
    """Run onnx's own checker on the model."""
    try:
        with missing_as_inputs(model):
            passes.CheckerPass()(model)
    except (onnx.checker.ValidationError, ir.passes.PassError) as error:
        raise OnnxError(
            "The exported model is not valid ONNX.",
            why=str(error.__cause__ or error),
            fix="Check the rules in custom_translation_table; without any, this is a defect of Precast.",
        ) from error


def _why_not_run(model: ir.Model) -> str | None:
    if missing_in(model):
        return "the model has no weights yet"
    if not has_onnxruntime():
        return "onnxruntime is not installed"
    if any(map(_is_random, all_nodes(model))):
        return "the model draws random numbers"
    return None


def _unread_opset(model: ir.Model) -> list[str]:
    opset, newest = model.opset_imports[""], newest_readable_opset()
    return [f"opset {opset}: onnxruntime reads up to {newest}, and ran the model as that"] if opset > newest else []


def _is_random(node: ir.Node) -> bool:
    if node.op_type != "Dropout":
        return node.op_type in _RANDOM_OPERATORS
    training = node.inputs[2] if len(node.inputs) > 2 else None
    constant = ir.convenience.get_const_tensor(training) if training is not None else None
    return training is not None and (constant is None or bool(constant.numpy()))


@dataclass(frozen=True)
class _Call:
    inputs: Sequence[Any]
    expected: Sequence[torch.Tensor]


def _calls(
    program: Program, inputs: Sequence[Any], skipped: list[str], reference: Reference
) -> Iterator[tuple[str, _Call]]:
    """The example, then the example at one other combination of sizes that the original model accepts."""
    yield "example inputs", _Call(inputs, reference(inputs))
    shapes = input_shapes(program)
    candidates = list(islice(other_bindings(program, inputs), 6))
    for binding in candidates:
        others = [resized(tensor, shape, binding) for tensor, shape in zip(inputs, shapes, strict=True)]
        try:
            expected = reference(others)
        except (RuntimeError, ValueError, IndexError):
            # The original model itself refuses these sizes.
            continue
        yield describe_binding(program, binding), _Call(others, expected)
        return
    if any(not isinstance(size, int) for shape in shapes for size in shape):
        skipped.append(
            "other sizes: the original model accepts none of those tried" if candidates else "other sizes: none fit"
        )


def _is_captured_otherwise(program: Program, call: "_Call") -> bool:
    """Whether the program that was captured computes other numbers than the original."""
    with torch.no_grad():
        results = fx.Interpreter(program.module).run(*_graph_inputs(program, call.inputs))
    specs = program.signature.outputs
    users = [value for spec, value in zip(specs, results, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
    own = [as_onnx(value) for value in users if isinstance(value, torch.Tensor)]
    return len(own) == len(call.expected) and any(map(difference, own, call.expected))


def _other_path(call: str, problem: str) -> OnnxMismatchError:
    return OnnxMismatchError(
        f"The program that was captured computes other numbers than the original on {call}: an output {problem}.",
        why="the model takes another path when it is traced; nn.TransformerEncoder, for example, has a fast path that "
        "returns zeros where the input is padding",
        fix="Turn that path off: torch.backends.mha.set_fastpath_enabled(False) for PyTorch's; or pass verify=False.",
    )


def _mismatch(
    model: ir.Model,
    uses: Sequence[RuleUse],
    found: NodeDifference | None,
    call: str,
    problems: Sequence[str | None],
) -> OnnxMismatchError:
    outputs = [value.name for value in model.graph.outputs]
    mismatches = "; ".join(f"{name} {problem}" for name, problem in zip(outputs, problems, strict=False) if problem)
    use = next((use for use in uses if found and use.node == found.node), None)
    where = (
        f"the first node that differs is {found.node}: it {found.problem}" if found else "every remaining node agrees"
    )
    rule = f"; it is {use.operator}, translated by {use.source}'s {use.rule}" if use else ""
    return OnnxMismatchError(
        f"The ONNX model computes other numbers than the original on {call}: {mismatches}.",
        why=where + rule,
        fix="Give a correct rule in custom_translation_table, or pass verify=False to get the model as it is.",
        at=use.at if use else None,
    )
