"""The table of rules: ours first, then onnxscript's torchlib; the user's take precedence over both.

A rule is a function over ONNX values and Python constants that calls onnxscript's ops. Ours are added with one
decorator in the file of their family:

    @rule("aten::relu")
    def relu(x: Value) -> Value:
        return op.Relu(x)

Complex tensors are represented as pairs along a last dimension.

Before: ``mul(c64[3], f32[3])``                          ``unsqueeze(c64[3], 0)``
After:  ``mul(pairs, Concat(x, zeros))``, a complex rule  ``Concat(unsqueeze(real parts), unsqueeze(imaginary parts))``

Elementwise operators get all operands as pairs. Operators that only move numbers are applied to each part. Factory
functions and casts get an imaginary part of zeros.

Also reads sizes that a rule must know at export.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import onnxscript.function_libs.torch_lib.ops  # noqa: F401  (fills torchlib's registry)
import torch
from onnxscript.function_libs.torch_lib.registration import default_registry as torchlib
from torch import fx

from precast.errors import InputTypeError, OnnxError
from precast.graph.nodes import has_value, value_of
from precast.onnx.rules.opsets import integer, integers, op

_aten = torch.ops.aten
MOVERS = {
    _aten.alias, _aten.contiguous, _aten.copy, _aten.detach, _aten.diagonal, _aten.expand, _aten.flatten, _aten.gather,
    _aten.index, _aten.index_put, _aten.index_select, _aten.masked_fill, _aten.movedim, _aten.narrow, _aten.repeat,
    _aten.reshape, _aten.scatter, _aten.select, _aten.select_scatter, _aten.slice_scatter, _aten.split,
    _aten.split_with_sizes, _aten.squeeze, _aten.to, _aten._to_copy, _aten.unbind, _aten.unflatten, _aten.unsqueeze,
    _aten.where,
}  # fmt: skip
"""They only move elements of their operands, and compute nothing."""
_MAKERS = {
    _aten.to, _aten._to_copy, _aten.empty, _aten.full, _aten.new_empty, _aten.new_ones, _aten.new_zeros, _aten.ones,
    _aten.zeros,
}  # fmt: skip


def is_complex(node: fx.Node) -> bool:
    """Whether a node returns a complex tensor."""
    value = value_of(node) if has_value(node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def takes_complex(node: fx.Node) -> bool:
    """Whether an operator takes a complex tensor or number."""
    return any(map(is_complex, node.all_input_nodes)) or any(isinstance(argument, complex) for argument in node.args)


def lacks_imaginary_part(node: fx.Node) -> bool:
    """Whether an operator's rule returns only the real part of its complex result."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet in _MAKERS and is_complex(node) and not takes_complex(node)


def parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part."""
    return op.Gather(x, integer(0), axis=-1), op.Gather(x, integer(1), axis=-1)


def pair(real: Any, imaginary: Any) -> Any:
    return op.Concat(op.Unsqueeze(real, integers(-1)), op.Unsqueeze(imaginary, integers(-1)), axis=-1)


def as_pair(real: Any) -> Any:
    """A real tensor as a complex one."""
    return pair(real, op.CastLike(op.ConstantOfShape(op.Shape(real)), real))


_Function = TypeVar("_Function", bound=Callable[..., Any])

Translations = Mapping[Any, Callable[..., Any]]
"""Operators (``torch.ops.mine.twice.default``, or all of ``torch.ops.mine.twice``) and functions for them."""


@dataclass(frozen=True)
class Rule:
    """The translation of one operator, and its source."""

    function: Callable[..., Any] = field(repr=False)
    source: str
    name: str
    since: int = 18
    is_by_parts: bool = False
    """Whether it is for real tensors, and applied to the real and the imaginary part separately."""


# Rules of torchlib that are not used, with the reason; the operators are decomposed instead, if possible.
_DISTRUSTED = {
    "aten::_native_batch_norm_legit_functional": "ignores that it is training: normalizes with the running statistics",
    "aten::_native_batch_norm_legit": "not tried: its sibling above ignores training",
    "aten::_native_batch_norm_legit.no_stats": "not tried: its sibling above ignores training",
    "aten::native_batch_norm": "not tried: its sibling above ignores training",
    "aten::atleast_1d.Sequence": "maps a sequence, for which onnxruntime loses the types of whole numbers",
    "aten::atleast_2d.Sequence": "not tried: its sibling above loses types",
    "aten::atleast_3d.Sequence": "not tried: its sibling above loses types",
    "aten::cross_entropy_loss": "takes targets for class numbers where they are probabilities",
}

_ours: dict[tuple[str, int], Rule] = {}
_ours_on_complex: dict[tuple[str, int], Rule] = {}


def rule(*names: str, since: int = 18, is_complex: bool = False) -> Callable[[_Function], _Function]:
    """Register a translation for operators by name, for opset ``since`` and newer; a second one is an error.

    Operators on complex tensors have rules of their own.
    """
    table = _ours_on_complex if is_complex else _ours

    def register(function: _Function) -> _Function:
        for name in names:
            assert (name, since) not in table, f"{name} has a rule for opset {since} already"
            table[name, since] = Rule(function, "precast", function.__name__, since)
        return function

    return register


def operator_name(target: object) -> str:
    """``aten::add.Tensor`` for an overload, ``aten::relu`` for a default one; ``operator::add`` for Python's own."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.name())
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    module = {operator.__name__: "operator", "_operator": "operator", math.__name__: "math"}.get(
        getattr(target, "__module__", "") or "", "torch"
    )
    return f"{module}::{getattr(target, '__name__', str(target))}"


@dataclass(frozen=True)
class RuleTable:
    """The rules of one export."""

    opset: int
    custom: Translations = field(default_factory=dict)

    def __post_init__(self) -> None:
        for target, function in self.custom.items():
            if not callable(function):
                raise InputTypeError(
                    f"custom_translation_table has {function!r} for {operator_name(target)}.",
                    why="an operator is translated by one function",
                    fix="Give a function over onnxscript's ops.",
                )

    def find(self, target: object, *, is_complex: bool = False) -> Rule | None:
        """The rule of an operator, or ``None``."""
        function = self.custom.get(target) or self.custom.get(getattr(target, "overloadpacket", None))
        if function is not None:
            return Rule(function, "custom", getattr(function, "__name__", str(function)))
        name = operator_name(target)
        found = self._newest(name, is_complex=is_complex) or _from_torchlib(name, is_complex=is_complex)
        if found is None and "_copy" in name and torch.Tag.view_copy in getattr(target, "tags", ()):
            # ONNX has only values: the copy of a view is the view.
            found = self.find(_overload(name.replace("_copy", "", 1)), is_complex=is_complex)
        if found is None and is_complex and getattr(target, "overloadpacket", None) in MOVERS:
            real = self.find(target)
            return None if real is None else replace(real, is_by_parts=True)
        return found

    def opset_for(self, target: object) -> int | None:
        """The first newer opset with a rule for an operator that has none in this one."""
        name = operator_name(target)
        later = [since for (known, since) in _ours if known == name and since > self.opset]
        return min(later, default=None)

    def _newest(self, name: str, *, is_complex: bool) -> Rule | None:
        table = _ours_on_complex if is_complex else _ours
        fitting = [found for (known, since), found in table.items() if known == name and since <= self.opset]
        return max(fitting, key=lambda found: found.since, default=None)

    def overloads(self) -> Iterator[torch._ops.OpOverload]:
        """Every overload of an installed operator that has a rule."""
        names = {name for name, since in _ours if since <= self.opset}
        for name in names | (set(torchlib) - set(_DISTRUSTED)):
            found = _overload(name)
            if found is not None:
                yield found
        for target in self.custom:
            if isinstance(target, torch._ops.OpOverload):
                yield target
            elif isinstance(target, torch._ops.OpOverloadPacket):
                yield from (getattr(target, name) for name in target.overloads())


def _from_torchlib(name: str, *, is_complex: bool) -> Rule | None:
    if name not in torchlib or name in _DISTRUSTED:
        return None
    candidates = torchlib[name].complex if is_complex else torchlib[name].overloads
    return Rule(candidates[0], "torchlib", candidates[0].name) if candidates else None


def _overload(name: str) -> torch._ops.OpOverload | None:
    qualified, _, overload = name.partition(".")
    namespace, _, short = qualified.partition("::")
    # Some overloads exist only for TorchScript.
    if name not in _dispatched():
        return None
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
    return found


@cache
def _dispatched() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def static_size(x: Any, axis: int, what: str) -> int:
    """The static size along an axis; if it is dynamic, the error says that ``what`` needs it."""
    size = x.shape[axis] if x.shape is not None else None
    if not isinstance(size, int):
        raise OnnxError(
            f"{what} needs a fixed size.",
            why=f"the size {size} may change, and ONNX has no operator for this that follows it",
            fix="Keep that dimension static.",
        )
    return size


def static_shape(x: Any, what: str) -> list[int]:
    """All sizes of a value."""
    return [static_size(x, axis, what) for axis in range(len(x.shape))]
