"""A slow interpreter that checks, at every node, that real values are what tracing promised.

Each node's ``val`` is a fake value; running the node must give a value of the same dtype, size, significant strides and
device. Symbolic sizes are bound to real ones as inputs (and data-dependent results) arrive.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.compilers.node_values import WHAT_OPS_RAISE
from precast.compilers.symbol_binding import SymbolBinding
from precast.errors import NodeMismatchError
from precast.ir.node_meta import has_value, source_line_of, value_of

# Why a value is not as promised, and what to do about it.
_OP_ADVICE = (
    "tracing ran the op's fake kernel, which disagrees with the real one",
    "correct the op's fake kernel (torch.library.register_fake) or its decomposition",
)
_GRAPH_INPUT_ADVICE = (
    "the graph was traced for another input than it is called with",
    "call it with inputs like its example inputs; for a tangent or a saved value, report a bug of ours",
)


def debug_nop(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Run the graph node by node and check every value against what tracing promised."""

    def run(*inputs: object) -> object:
        return CheckingInterpreter(graph_module).run(*inputs)

    return run


class CheckingInterpreter(fx.Interpreter):
    """Runs a graph once; symbols keep the values that this run gave them."""

    def __init__(self, graph_module: fx.GraphModule):
        super().__init__(graph_module)
        self.binding = SymbolBinding()
        self.extra_traceback = False  # our errors name the node and the line themselves

    def run_node(self, n: fx.Node) -> object:
        """Run one node and compare its result with the node's ``val``; what the op raises tells of the node too."""
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
        # All symbols first: one result's stride may speak of another one's size.
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
    """One property in which a real value is not what was promised."""

    property: str
    promised: object
    real: object


def differences(promised: object, real: object, binding: SymbolBinding) -> Iterator[Difference]:
    """Yield where ``real`` departs from ``promised``, what matters most first."""
    if not isinstance(promised, torch.Tensor) or not isinstance(real, torch.Tensor):
        yield from _number_differences(promised, real, binding)
        return
    if promised.dtype != real.dtype:
        yield Difference("dtype", promised.dtype, real.dtype)
    size = binding.values(promised.shape)
    if len(size) != real.dim() or _disagree(size, real.shape):
        yield Difference("size", _told(promised.shape, size), tuple(real.shape))
        return
    if promised.device != real.device:
        yield Difference("device", promised.device, real.device)
    if promised.layout == torch.strided and real.layout == torch.strided:
        stride = binding.values(promised.stride())
        if _disagree(_significant(stride, real), _significant(real.stride(), real)):
            yield Difference("stride", _told(promised.stride(), stride), real.stride())


def _number_differences(promised: object, real: object, binding: SymbolBinding) -> Iterator[Difference]:
    if isinstance(promised, torch.Tensor) or isinstance(real, torch.Tensor):
        yield Difference("type", type(promised).__name__, type(real).__name__)
        return
    # A plain number among the inputs is an example; a symbol is a promise.
    value = binding.value(promised)
    if isinstance(promised, torch.SymInt | torch.SymFloat | torch.SymBool) and value is not None and value != real:
        yield Difference("value", _told((promised,), (value,)), real)


def _significant(stride: Sequence[int | None], real: torch.Tensor) -> list[int | None]:
    """Return the strides that decide where an element lies: of dimensions with two elements or more."""
    if real.numel() == 0:
        return []
    return [step for step, length in zip(stride, real.shape, strict=True) if length > 1]


def _disagree(promised: Sequence[int | None], real: Sequence[int | None]) -> bool:
    # None: an expression in a symbol that no value has told us yet.
    return any(expected is not None and expected != got for expected, got in zip(promised, real, strict=True))


def _told(symbolic: Sequence[object], values: Sequence[object]) -> str:
    text, numbers = f"({', '.join(map(str, symbolic))})", f"({', '.join(map(str, values))})"
    return text if text == numbers else f"{text} = {numbers}"
