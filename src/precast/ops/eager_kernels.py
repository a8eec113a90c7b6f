"""Determines which operand dtypes eager's kernels accept, by calling them on tensors of a few elements.

Fake tensors check sizes, but not most dtypes: only the kernels do. If a kernel refuses some dtypes whatever the data
are, and accepts others with the same sizes, it refuses the dtypes.

Before: ``mm(f64[800, 300], f32[300, 100])`` on fake tensors returns ``f64[800, 100]``.
After:  ``mm(f64[8, 8], f32[8, 8])`` raises in eager, since its operands must have the same dtype; so tracing raises.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from precast.ops.facts import Fact, facts_of_op, op_name

SMALL, SMALL_OF_MANY_DIMS = 8, 2
ELEMENTS = 2**18
"""Up to this many, a call is made with its own sizes if small sizes are refused for all dtypes."""
VERDICTS = 20_000

_NOT_ASKED = frozenset({Fact.VIEW, Fact.EFFECTFUL, Fact.CREATION, Fact.WORKSPACE})
# They do not look up elements by index, but check fewer sizes if an operand is empty.
_TAKES_NOTHING = frozenset({"aten::convolution", "aten::cat"})
# They use numbers in their operands as indices without checking them.
_TRUSTING = frozenset({"aten::linalg_lu_solve", "aten::linalg_ldl_solve"})
# They divide by sizes: without elements, the process dies.
_DIVIDING = frozenset({"aten::_scaled_dot_product_flash_attention_for_cpu"})
# Operands that are indices into others, and operands that are masks.
_PLACES = frozenset({"index", "indices", "target", "targets", "offsets", "lengths", "sorter", "repeats"})
_MASKS = frozenset({"mask", "condition"})
_USUAL = {torch.float32, torch.float64}
_PLAIN = (
    bool, int, float, complex, str, type(None), torch.Generator, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """Eager's error for a call that it refuses."""

    kind: type[Exception]
    text: str

    def error(self) -> Exception:
        return self.kind(self.text)


@dataclass(frozen=True)
class _Operand:
    """The metadata of a tensor; ``is_listed`` if it is an item of a list."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    is_listed: bool


@dataclass(frozen=True)
class _Size:
    """An integer that is or may be a size."""

    value: int


@dataclass(frozen=True)
class _Call:
    """A call of ``op``; ``arguments`` are operands, sizes, plain values and tuples of these, by name."""

    op: OpOverload
    arguments: tuple[tuple[str, object], ...]

    def operands(self) -> list[_Operand]:
        return [leaf for leaf in _leaves(self.arguments) if isinstance(leaf, _Operand)]


Retyping = Callable[[_Operand], torch.dtype]
Answer = Refusal | tuple[torch.dtype, ...]
"""Eager's answer to a call: its error, or the dtypes of the results."""

_decided: dict[object, Answer] = {}
_undecided: set[_Call] = set()


def eager_answer(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer | None:
    """Eager's answer for operands of these dtypes: its error, or the dtypes of the results.

    The operands may be fake: their data are not read. None if it cannot be determined from the dtypes.
    """
    if not _may_be_asked(op):
        return None
    try:
        kind = (op, *map(_kind, args), *((name, _kind(value)) for name, value in kwargs.items()))
        if kind in _decided:
            return _decided[kind]
        call = _described(op, args, kwargs)
    except _UnknownArgumentError:
        return None
    if call in _undecided or not _can_be_asked(call):
        return None
    if len(_decided) + len(_undecided) > VERDICTS:
        _decided.clear()
        _undecided.clear()
    with _aside():
        answers = (_ask(each, is_exact=each == call) for each in _with_sizes_to_try(call))
        answer = next((each for each in answers if each is not None), None)
    if answer is None:
        _undecided.add(call)
    else:
        _decided[kind] = answer
    return answer


@contextmanager
def _aside() -> Iterator[None]:
    """While active, calls of eager are not recorded, do not warn, and do not advance random generators."""
    with _disable_current_modes(), no_python_dispatcher(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _may_be_asked(op: OpOverload) -> bool:
    """Whether calling the op is safe: torch's own kernel, which checks its operands and has no side effects."""
    return op.namespace == "aten" and facts_of_op(op).isdisjoint(_NOT_ASKED) and op_name(op) not in _TRUSTING


class _UnknownArgumentError(Exception):
    """An argument of a kind that cannot be recreated."""


def _kind(value: object) -> object:
    """The key of an argument on which eager's answer depends: everything except sizes."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise _UnknownArgumentError
        return value.dtype, tuple(_number(size) == 0 for size in value.shape), value.device.type
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if isinstance(value, torch.SymInt):
        return int, _number(value)
    if not isinstance(value, _PLAIN):
        raise _UnknownArgumentError
    return type(value), value


def _described(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
    schema = op._schema.arguments
    given = [*zip(schema, args, strict=False), *((each, kwargs[each.name]) for each in schema if each.name in kwargs)]
    return _Call(op, tuple((each.name, _describe(each.name, str(each.type), value)) for each, value in given))


def _can_be_asked(call: _Call) -> bool:
    """Whether the call is safe: backward ops, which trust their operands, are called only for unusual dtypes.

    Kernels of other devices are not called: they fail asynchronously.
    """
    operands = call.operands()
    if not operands or any(operand.device != "cpu" for operand in operands):
        return False
    if op_name(call.op) in _DIVIDING and any(0 in operand.shape for operand in operands):
        return False
    if not _is_gradient(call.op):
        return True
    if _finds_nothing(call) and not _looks_nowhere(operands):
        return False
    is_usual = len({operand.dtype for operand in operands if not _is_index(operand)} - _USUAL) == 0
    asked_for = {leaf for leaf in _leaves(call.arguments) if isinstance(leaf, torch.dtype)}
    is_mixed = len({operand.dtype for operand in operands if operand.dtype.is_floating_point} | asked_for) > 1
    return is_mixed or not is_usual


def _finds_nothing(call: _Call) -> bool:
    """Whether an operand is empty: kernels that index one tensor by another may not check for that."""
    operands = call.operands()
    has_empty = len(operands) > 1 and any(0 in operand.shape for operand in operands)
    return has_empty and op_name(call.op) not in _TAKES_NOTHING


def _looks_nowhere(operands: Sequence[_Operand]) -> bool:
    """Whether no operand indexes others."""
    return not any(operand.name in _PLACES or operand.name in _MASKS or operand.is_listed for operand in operands)


def _is_index(operand: _Operand) -> bool:
    # A target is an index for some losses and a number for others; the former check it.
    return operand.name in _PLACES - {"target"} and operand.dtype is torch.int64


def _describe(name: str, kind: str, value: object, *, is_listed: bool = False) -> object:
    if isinstance(value, torch.Tensor):
        return _Operand(name, value.dtype, tuple(map(_number, value.shape)), value.device.type, is_listed)
    if isinstance(value, list | tuple):
        return tuple(_describe(name, kind, each, is_listed=True) for each in value)
    if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
        return _Size(_number(value)) if "number" not in kind else _number(value)
    return None if isinstance(value, torch.Generator) else value


def _number(value: int | torch.SymInt) -> int:
    if isinstance(value, torch.SymInt):
        if not value.node.has_hint():
            raise _UnknownArgumentError
        return int(value.node.hint)
    return value


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _with_sizes_to_try(call: _Call) -> Iterator[_Call]:
    """The call with small sizes, which stay equal where they were equal; and with its own if these are not large.

    Backward ops trust their sizes to be those of the forward, so these are not changed. If indices are looked up in an
    empty tensor, non-empty ones are tried instead.
    """
    operands = call.operands()
    is_not_large = sum(prod(operand.shape) for operand in operands) <= ELEMENTS
    if _finds_nothing(call) and _looks_nowhere(operands) and is_not_large:
        yield call
        return
    limit = SMALL if all(len(operand.shape) <= 5 for operand in operands) else SMALL_OF_MANY_DIMS
    least = limit if _finds_nothing(call) else 0
    small = _Call(call.op, tuple((name, _resized(value, least, limit)) for name, value in call.arguments))
    if not _is_gradient(call.op):
        yield small
        if small == call or least:
            return
    if is_not_large:
        yield call


def _resized(value: object, least: int, limit: int) -> object:
    """Sizes clipped to the limit; ``least`` replaces 0."""
    if isinstance(value, tuple):
        return tuple(_resized(each, least, limit) for each in value)
    if isinstance(value, _Operand):
        shape = tuple(min(size or least, limit) for size in value.shape)
        return _Operand(value.name, value.dtype, shape, value.device, value.is_listed)
    return _Size(min(value.value, limit)) if isinstance(value, _Size) else value


def _ask(call: _Call, *, is_exact: bool) -> Answer | None:
    """Whether eager accepts or refuses the dtypes; None if it refuses the call for all dtypes.

    If a tensor is empty and the sizes are exact (``is_exact``), a refusal is about the sizes.
    """
    refusals = {}
    for fill in _fills(call):
        answer = _answer(call, _own_type, fill)
        if not isinstance(answer, Refusal):
            return answer
        refusals[fill] = answer
    if is_exact and any(0 in operand.shape for operand in call.operands()) and len(set(refusals.values())) == 1:
        return refusals[0]
    if all(_names_no_dimension(refusal) for refusal in refusals.values()):
        return refusals[0]
    decisive = {
        refusals[fill]
        for fill in refusals
        if any(not isinstance(_answer(call, types, fill), Refusal) for types in _OTHER_TYPES)
    }
    # An error that depends on the data is not about dtypes.
    return decisive.pop() if len(decisive) == 1 else None


def _names_no_dimension(refusal: Refusal) -> bool:
    """Whether the error is about a missing dimension, which depends neither on sizes nor on dtypes."""
    return refusal.kind is IndexError and refusal.text.startswith("Dimension out of range")


def _fills(call: _Call) -> tuple[int, ...]:
    """Values to fill integer tensors with, which may be indices; backward ops, which trust them, get only 0."""
    return (0,) if _is_gradient(call.op) else (0, 1)


@cache
def _is_gradient(op: OpOverload) -> bool:
    return "backward" in op_name(op)


def _answer(call: _Call, types: Retyping, fill: int) -> Answer:
    """Eager's answer to the call with integers of ``fill``, and ones elsewhere."""
    made = [(name, _made(value, types, fill)) for name, value in call.arguments]
    positional = {each.name for each in call.op._schema.arguments if not each.kwarg_only}
    args = [value for name, value in made if name in positional]
    try:
        results = call.op(*args, **{name: value for name, value in made if name not in positional})
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return Refusal(type(error), str(error))
    return tuple(leaf.dtype for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor))


def _made(value: object, types: Retyping, fill: int) -> object:
    if isinstance(value, tuple):
        return [_made(each, types, fill) for each in value]
    if isinstance(value, _Size):
        return value.value
    if isinstance(value, torch.dtype):
        return types(_Operand("dtype", value, (), "cpu", is_listed=False))
    if not isinstance(value, _Operand):
        return value
    dtype = types(value)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.full(value.shape, fill, dtype=dtype, device=value.device)
    # Identity matrices, which are invertible and positive definite.
    is_square = len(value.shape) > 1 and value.shape[-1] == value.shape[-2]
    made = torch.eye(value.shape[-1], device=value.device) if is_square else torch.ones((), device=value.device)
    return made.to(dtype).expand(value.shape).contiguous()


def _own_type(operand: _Operand) -> torch.dtype:
    return operand.dtype


def _usual_type_of_kind(operand: _Operand) -> torch.dtype:
    if operand.dtype.is_complex:
        return torch.complex64
    if operand.dtype.is_floating_point:
        return torch.float32
    return operand.dtype if operand.dtype is torch.bool or _may_be_mask(operand) else torch.int64


def _usual_type_of_role(operand: _Operand) -> torch.dtype:
    if operand.name in _PLACES:
        return operand.dtype if _may_be_mask(operand) else torch.int64
    return torch.bool if operand.name in _MASKS else torch.float32


def _may_be_mask(operand: _Operand) -> bool:
    """Whether another dtype would change the meaning: indices instead of a mask, or the other way round."""
    return operand.is_listed and operand.name in _PLACES and operand.dtype in (torch.bool, torch.uint8)


def _fractions(operand: _Operand) -> torch.dtype:
    return operand.dtype if _may_be_mask(operand) else torch.float32


def _whole_numbers(operand: _Operand) -> torch.dtype:
    return operand.dtype if _may_be_mask(operand) else torch.int64


def _bools_for_bytes(operand: _Operand) -> torch.dtype:
    return torch.bool if _may_be_mask(operand) else operand.dtype


_OTHER_TYPES: tuple[Retyping, ...] = (
    _usual_type_of_kind, _usual_type_of_role, _fractions, _whole_numbers, _bools_for_bytes,
)  # fmt: skip
