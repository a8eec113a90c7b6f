"""A slow interpreter that checks every node's real value against its traced value.

Each node's ``val`` is a fake value; running the node must return a value of the same dtype, size, significant strides
and device. Symbolic sizes are bound to real ones as inputs (and data-dependent results) arrive.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.errors import NodeMismatchError, PrecastError
from precast.graph.nodes import has_value, source_line_of, value_of

WHAT_OPS_RAISE = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, PrecastError)

Receive = Callable[[fx.Node, object], None]


class _Recorder(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule, receive: Receive):
        super().__init__(graph_module)
        self.extra_traceback = False
        self._receive = receive

    def run_node(self, n: fx.Node) -> object:
        result: object = super().run_node(n)
        self._receive(n, result)
        return result


def node_values(graph_module: fx.GraphModule, inputs: Sequence[object]) -> dict[str, object]:
    """Return the tensors and numbers that nodes compute, by name, up to the node that raises, if any."""
    values: dict[str, object] = {}

    def keep(node: fx.Node, value: object) -> None:
        if isinstance(value, torch.Tensor | int | float):
            values[node.name] = value

    record_node_values(graph_module, inputs, keep)
    return values


def record_node_values(graph_module: fx.GraphModule, inputs: Sequence[object], receive: Receive) -> None:
    """Call ``receive`` with each node's value as soon as it is computed, up to the node that raises, if any."""
    with suppress(*WHAT_OPS_RAISE), torch.no_grad():
        _Recorder(graph_module, receive).run(*inputs)


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SymbolBinding:
    """The numbers that symbols are bound to by the values seen so far."""

    def __init__(self) -> None:
        self._numbers: dict[sympy.Symbol, sympy.Expr] = {}

    def bind(self, promised: object, real: object) -> None:
        """Bind the bare symbols in a traced value to the numbers in the real one, unless they are bound already."""
        for symbolic, number in _pairs(promised, real):
            expression = symbolic.node.expr
            if isinstance(expression, sympy.Symbol):
                self._numbers.setdefault(expression, sympy.sympify(number))

    def value(self, promised: object) -> int | float | bool | None:
        """Return the number for a traced one; None if it contains an unbound symbol."""
        if not isinstance(promised, _SYMBOLIC):
            return promised if isinstance(promised, int | float) else None
        number = promised.node.expr.xreplace(self._numbers)
        if getattr(number, "free_symbols", None):
            return None
        if isinstance(promised, torch.SymBool):
            return bool(number)
        return int(number) if isinstance(promised, torch.SymInt) else float(number)

    def values(self, promised: Sequence[int | torch.SymInt]) -> list[int | None]:
        """Return the numbers for traced sizes or strides."""
        return [None if (number := self.value(size)) is None else int(number) for size in promised]

    def describe(self) -> str:
        """Return the binding as text, ``s0 = 4, s1 = 3``."""
        return ", ".join(f"{symbol} = {number}" for symbol, number in self._numbers.items())


def _pairs(promised: object, real: object) -> Iterator[tuple[torch.SymInt | torch.SymFloat | torch.SymBool, object]]:
    if isinstance(promised, torch.Tensor) and isinstance(real, torch.Tensor):
        if promised.dim() == real.dim():
            for size, length in zip(promised.shape, real.shape, strict=True):
                yield from _pairs(size, length)
            for promised_step, step in zip(promised.stride(), real.stride(), strict=True):
                yield from _pairs(promised_step, step)
    elif isinstance(promised, _SYMBOLIC) and isinstance(real, int | float):
        yield promised, real


# The cause of a mismatch, and the fix.
_OP_ADVICE = (
    "tracing ran the op's fake kernel, which disagrees with the real one",
    "correct the op's fake kernel (torch.library.register_fake) or its decomposition",
)
_GRAPH_INPUT_ADVICE = (
    "the graph was traced for another input than it is called with",
    "call it with inputs like its example inputs; for a tangent or a saved value, report a bug of ours",
)


def debug_nop(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """A compiler that runs the graph node by node and checks every value against its traced metadata."""

    def run(*inputs: object) -> object:
        return DebugInterpreter(graph_module).run(*inputs)

    return run


class DebugInterpreter(fx.Interpreter):
    """Runs a graph and checks the dtype, sizes, strides and device of every node's result.

    A result that differs from the node's ``val`` raises a ``NodeMismatchError``. ``binding`` maps symbols to their
    values in the last run.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> graph = make_fx(lambda x: x.sin() * 2, tracing_mode="fake")(torch.ones(3))
    >>> DebugInterpreter(graph).run(torch.zeros(3))
    tensor([0., 0., 0.])
    >>> DebugInterpreter(graph).run(torch.zeros(4))
    Traceback (most recent call last):
    precast.errors.NodeMismatchError: node 'x_1' (%x_1 : [num_users=1] = placeholder[target=x_1]) has another size ...
    """

    def __init__(self, graph_module: fx.GraphModule):
        super().__init__(graph_module)
        self.binding = SymbolBinding()
        self.extra_traceback = False  # our errors name the node and the line themselves

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph on these inputs; sizes may differ from those of earlier runs."""
        self.binding = SymbolBinding()
        return super().run(*args, **options)

    def run_node(self, n: fx.Node) -> object:
        """Run one node and compare its result with the node's ``val``; errors of the operator name the node as well."""
        try:
            result: object = super().run_node(n)
        except WHAT_OPS_RAISE as error:
            error.add_note(
                f"while running node {n.name!r} ({n.format_node()}), from {source_line_of(n) or 'nowhere known'}"
            )
            raise
        if has_value(n) and n.op != "output":
            self._check(n, value_of(n), result)
        return result

    def _check(self, node: fx.Node, promised: object, result: object) -> None:
        promised_leaves, result_leaves = pytree.tree_leaves(promised), pytree.tree_leaves(result)
        if len(promised_leaves) != len(result_leaves):
            raise self._error(node, "", Difference("number of results", len(promised_leaves), len(result_leaves)))
        # Bind all symbols first: one result's stride may contain another one's size.
        for expected, real in zip(promised_leaves, result_leaves, strict=True):
            self.binding.bind(expected, real)
        for index, (expected, real) in enumerate(zip(promised_leaves, result_leaves, strict=True)):
            place = f"result {index} of " if len(result_leaves) > 1 else ""
            for difference in differences(expected, real, self.binding):
                raise self._error(node, place, difference)

    def _error(self, node: fx.Node, place: str, difference: "Difference") -> NodeMismatchError:
        symbols, line = self.binding.describe(), source_line_of(node)
        why, fix = _GRAPH_INPUT_ADVICE if node.op == "placeholder" else _OP_ADVICE
        return NodeMismatchError(
            f"{place}node {node.name!r} ({node.format_node()}) has another {difference.property} than traced: "
            f"promised {difference.promised}, got {difference.real}" + (f", where {symbols}" if symbols else ""),
            at=str(line) if line else None,
            why=why,
            fix=fix,
        )


@dataclass(frozen=True)
class Difference:
    """One property in which a real value differs from the traced one."""

    property: str
    promised: object
    real: object


def differences(promised: object, real: object, binding: SymbolBinding) -> Iterator[Difference]:
    """Yield the differences between ``real`` and ``promised``, most important first."""
    if not isinstance(promised, torch.Tensor) or not isinstance(real, torch.Tensor):
        yield from _number_differences(promised, real, binding)
        return
    if promised.dtype != real.dtype:
        yield Difference("dtype", promised.dtype, real.dtype)
    size = binding.values(promised.shape)
    if len(size) != real.dim() or _disagree(size, real.shape):
        yield Difference("size", _sizes_text(promised.shape, size), tuple(real.shape))
        return
    if promised.device != real.device:
        yield Difference("device", promised.device, real.device)
    if promised.layout == torch.strided and real.layout == torch.strided:
        stride = binding.values(promised.stride())
        if _disagree(_significant(stride, real), _significant(real.stride(), real)):
            yield Difference("stride", _sizes_text(promised.stride(), stride), real.stride())


def _number_differences(promised: object, real: object, binding: SymbolBinding) -> Iterator[Difference]:
    if isinstance(promised, torch.Tensor) or isinstance(real, torch.Tensor):
        yield Difference("type", type(promised).__name__, type(real).__name__)
        return
    # A plain number among the inputs is only an example; a symbol must match.
    value = binding.value(promised)
    if isinstance(promised, torch.SymInt | torch.SymFloat | torch.SymBool) and value is not None and value != real:
        yield Difference("value", _sizes_text((promised,), (value,)), real)


def _significant(stride: Sequence[int | None], real: torch.Tensor) -> list[int | None]:
    """Return the strides that affect addresses: those of dimensions with two or more elements."""
    if real.numel() == 0:
        return []
    return [step for step, length in zip(stride, real.shape, strict=True) if length > 1]


def _disagree(promised: Sequence[int | None], real: Sequence[int | None]) -> bool:
    # None: an expression with an unbound symbol.
    return any(expected is not None and expected != got for expected, got in zip(promised, real, strict=True))


def _sizes_text(symbolic: Sequence[object], values: Sequence[object]) -> str:
    text, numbers = f"({', '.join(map(str, symbolic))})", f"({', '.join(map(str, values))})"
    return text if text == numbers else f"{text} = {numbers}"
