"""What one iteration of a loop computes: loads, constants, operations by name, casts.

Scalars form a graph: a node used twice is one object with two users, compared by identity. Printers and generators
visit each object once, so a value that a fused chain reads ten times is still computed once.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Atom, Computed, Index, as_index, atom, atoms, substitute

# Operation → number of arguments. Comparisons and the `is_…` tests return bool; the others, the type of their
# arguments. `where` takes (condition, then, otherwise); `random_bits`, (seed, stream number, place in the stream).
UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "digamma",
    "erf", "erfc", "exp", "expm1", "floor", "is_inf", "is_nan", "lgamma", "log", "log10", "log1p", "log2",
    "logical_not", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trigamma", "trunc",
)  # fmt: skip
BINARY = (
    "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "copysign", "div", "div_floor", "div_trunc", "eq", "fmod", "ge", "gt", "hypot", "le", "logical_and",
    "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne", "nextafter", "pow", "remainder",
    "sub",
)  # fmt: skip
TERNARY = ("random_bits", "where")
# As in ``torch.special``.
SPECIAL_UNARY = (
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "erfcx", "erfinv", "exp2", "i0", "i0e", "i1", "i1e",
    "modified_bessel_k0", "modified_bessel_k1", "ndtri", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
)  # fmt: skip
SPECIAL_BINARY = (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "gammainc", "gammaincc", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p", "zeta",
)  # fmt: skip
ARITIES = {
    **dict.fromkeys((*UNARY, *SPECIAL_UNARY), 1),
    **dict.fromkeys((*BINARY, *SPECIAL_BINARY), 2),
    **dict.fromkeys(TERNARY, 3),
}
PREDICATES = frozenset({
    "eq", "ge", "gt", "is_inf", "is_nan", "le", "logical_and", "logical_not", "logical_or", "logical_xor", "lt",
    "ne",
})  # fmt: skip

# Operations about as cheap as a load: recomputed rather than stored.
LIGHT = frozenset({
    "abs", "add", "eq", "ge", "gt", "le", "lt", "maximum", "minimum", "mul", "ne", "neg", "sub", "where",
})  # fmt: skip


class Arithmetic:
    """Operator overloading for formulas: ``value * 0.5 + other``. Plain numbers take the type of the scalar."""

    def __add__(self, other: Scalar | float) -> Scalar:
        return _binary("add", self, other)

    def __radd__(self, other: float) -> Scalar:
        return _binary("add", self, other, is_reversed=True)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return _binary("sub", self, other)

    def __rsub__(self, other: float) -> Scalar:
        return _binary("sub", self, other, is_reversed=True)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return _binary("mul", self, other)

    def __rmul__(self, other: float) -> Scalar:
        return _binary("mul", self, other, is_reversed=True)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return _binary("div", self, other)

    def __rtruediv__(self, other: float) -> Scalar:
        return _binary("div", self, other, is_reversed=True)

    def __neg__(self) -> Scalar:
        return apply("neg", typing.cast("Scalar", self))


@dataclass(frozen=True, eq=False)
class Load(Arithmetic):
    """Read one element. Where `guard` is false nothing is read and the value is 0."""

    buffer: Buffer
    indices: tuple[Index, ...]
    guard: Scalar | None = None

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @cached_property
    def operands(self) -> tuple[Scalar, ...]:
        """The scalars that decide whether and where to read."""
        return (*(() if self.guard is None else (self.guard,)), *computed_values(self.indices))


@dataclass(frozen=True, eq=False)
class Constant(Arithmetic):
    """A number known at compile time."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True, eq=False)
class IndexValue(Arithmetic):
    """A subscript or a size as a number."""

    index: Index
    dtype: str


@dataclass(frozen=True, eq=False)
class Apply(Arithmetic):
    """An operation, by its name in `ARITIES`, on arguments of one type (`where`: a bool, then two of one type)."""

    operation: str
    arguments: tuple[Scalar, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Cast(Arithmetic):
    """Convert as C does; to bool: whether it is nonzero."""

    value: Scalar
    dtype: str
    is_asked: bool = False
    """Whether the user's program or a rule requires rounding to this type; otherwise it is only the type of some
    operator's result."""


@dataclass(frozen=True, eq=False)
class Named(Arithmetic):
    """The same value, with its name in the user's graph."""

    name: str
    value: Scalar

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The result of a reduction: `kind` is one of sum, prod, max, min, any, all."""

    name: str
    kind: str
    dtype: str


@dataclass(frozen=True, eq=False)
class Accumulated(Arithmetic):
    """An accumulator's final value; valid after the loop that declares it."""

    accumulator: Accumulator

    @property
    def dtype(self) -> str:
        return self.accumulator.dtype


Scalar = Load | Constant | IndexValue | Apply | Cast | Named | Accumulated


def apply(operation: str, *arguments: Scalar) -> Apply:
    """Build an operation, checking its arity and that its arguments agree in type."""
    assert ARITIES.get(operation) == len(arguments), f"{operation} does not take {len(arguments)} arguments"
    operands = arguments[1:] if operation == "where" else arguments
    assert len({operand.dtype for operand in operands}) == 1, (
        f"{operation} on different types: {', '.join(operand.dtype for operand in operands)}"
    )
    return Apply(operation, arguments, "bool" if operation in PREDICATES else operands[0].dtype)


def _binary(operation: str, mine: Arithmetic, other: Scalar | float, *, is_reversed: bool = False) -> Scalar:
    # Only members of `Scalar` inherit the arithmetic.
    value = typing.cast("Scalar", mine)
    operands = (value, as_scalar(other, value.dtype))
    return apply(operation, *(reversed(operands) if is_reversed else operands))


def as_scalar(value: Scalar | float, dtype: str) -> Scalar:
    return Constant(value, dtype) if isinstance(value, int | float) else value


def cast(value: Scalar, dtype: str, *, is_asked: bool = False) -> Scalar:
    if value.dtype == dtype:
        return value
    if isinstance(value, Constant) and dtype not in ("f16", "bf16", "f32"):
        return Constant(bool(value.value) if dtype == "bool" else value.value, dtype)
    return Cast(value, dtype, is_asked)


def computed(name: str, value: Scalar, extent: Index | int, *, is_certain: bool = False) -> Index:
    """`value`, an i64, as a subscript below `extent`; with `is_certain`, it needs no guard."""
    assert value.dtype == "i64", f"subscripts are i64, not {value.dtype}"
    mentioned: set[Atom] = set()
    for each in walk(value):
        indices = each.indices if isinstance(each, Load) else (each.index,) if isinstance(each, IndexValue) else ()
        for index in indices:
            mentioned |= atoms(index)
    return atom(Computed(name, value, as_index(extent), frozenset(mentioned), is_certain))


def computed_values(indices: tuple[Index, ...]) -> tuple[Scalar, ...]:
    """The values behind the computed subscripts in `indices`, in order."""
    return tuple(each.value for each in _computed_in(indices))


def rewrite_indices(
    indices: tuple[Index, ...], change: Callable[[Scalar], Scalar], memo: dict[int, Scalar]
) -> tuple[Index, ...]:
    """Rebuild the values behind computed subscripts, as `rewrite` does."""
    return _with_values(indices, [rewrite(each, change, memo) for each in computed_values(indices)])


def _computed_in(indices: tuple[Index, ...]) -> tuple[Computed, ...]:
    return tuple(dict.fromkeys(each for index in indices for each in index.computed))


def _with_values(indices: tuple[Index, ...], values: typing.Sequence[Scalar]) -> tuple[Index, ...]:
    old = _computed_in(indices)
    if all(each.value is value for each, value in zip(old, values, strict=True)):
        return indices
    new: dict[Atom, Index] = {
        each: computed(each.name, value, each.extent, is_certain=each.is_certain)
        for each, value in zip(old, values, strict=True)
    }
    return tuple(substitute(index, new) for index in indices)


def conjuncts(condition: Scalar | None) -> Iterator[Scalar]:
    """The conditions whose conjunction is `condition`; none if it is None."""
    while isinstance(condition, Named):
        condition = condition.value
    if isinstance(condition, Apply) and condition.operation == "logical_and":
        for each in condition.arguments:
            yield from conjuncts(each)
    elif condition is not None:
        yield condition


def operands_of(value: Scalar) -> tuple[Scalar, ...]:
    if isinstance(value, Apply):
        return value.arguments
    if isinstance(value, Load):
        return value.operands
    if isinstance(value, Cast | Named):
        return (value.value,)
    return computed_values((value.index,)) if isinstance(value, IndexValue) else ()


def walk(*roots: Scalar, known: Container[int] = ()) -> Iterator[Scalar]:
    """Every distinct scalar below `roots`, operands before users; skips those whose identity is in `known`."""
    seen: set[int] = set()
    stack: list[tuple[Scalar, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        value, is_expanded = stack.pop()
        if is_expanded:
            yield value
        elif id(value) not in seen and id(value) not in known:
            seen.add(id(value))
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(operands_of(value)))


def rewrite(root: Scalar, change: Callable[[Scalar], Scalar], memo: dict[int, Scalar]) -> Scalar:
    """Rebuild a scalar bottom-up, passing each rebuilt node to `change`; shared nodes remain shared through `memo`."""
    # A value shared by many statements is visited once, not for each.
    for value in walk(root, known=memo):
        memo[id(value)] = change(_with_operands(value, memo))
    return memo[id(root)]


def _with_operands(value: Scalar, memo: dict[int, Scalar]) -> Scalar:
    old = operands_of(value)
    new = tuple(memo[id(operand)] for operand in old)
    if all(before is after for before, after in zip(old, new, strict=True)):
        return value
    match value:
        case Load(_, indices, guard):
            is_guarded = guard is not None
            return replace(value, guard=new[0] if is_guarded else None, indices=_with_values(indices, new[is_guarded:]))
        case IndexValue(index, _):
            return replace(value, index=_with_values((index,), new)[0])
        case Apply():
            return replace(value, arguments=new)
        case Cast(_, dtype, is_asked):
            return cast(new[0], dtype, is_asked=is_asked)
        case Named():
            return replace(value, value=new[0])
    raise AssertionError(f"{type(value).__name__} has no operands to replace")
