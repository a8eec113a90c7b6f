"""The table of lowering rules: operator → function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch._ops import HigherOrderOperator, OpOverload

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index

if TYPE_CHECKING:
    from precast.native.rules.builder import Builder


class Declined:
    """Returned by a rule that does not support these arguments: the operator falls back."""


DECLINED = Declined()


@dataclass(frozen=True, eq=False)
class Found:
    """Returned by a rule whose result has a data-dependent size: `count`, one integer, at most `bound`.

    Everything after it is lowered into a part that knows the size; there, `define` makes the operator's result. If a
    later operator has fixed the `size`, as in ``x[mask].view(n, n - 1)``, the count is checked instead.
    """

    count: Buffer
    size: Index
    bound: Index
    define: Callable[[Builder], Buffer | tuple[Buffer | None, ...] | Index]


Lowered = Buffer | tuple[Buffer | None, ...] | Found | Declined
Operator = OpOverload | HigherOrderOperator
Rule = Callable[..., Lowered]
AnyRule = TypeVar("AnyRule", bound=Rule)

_RULES: dict[Operator, Rule] = {}
_DRAWING_RULES: dict[OpOverload, Rule] = {}


def lowering(*operators: Operator) -> Callable[[AnyRule], AnyRule]:
    """Register ``rule(builder, *args, **kwargs) -> Buffer`` for `operators`; a second rule for one is an error.

    Tensor arguments are passed as buffers, sizes as ``Index``, subgraphs as modules, everything else as in the
    graph. The traced shape, type and strides of the result are in ``builder.result``.
    """

    def register(rule: AnyRule) -> AnyRule:
        for operator in operators:
            assert operator not in _RULES, f"{operator} has a lowering rule already: {_RULES[operator].__name__}"
            _RULES[operator] = rule
        return rule

    return register


def drawing(*operators: OpOverload) -> Callable[[AnyRule], AnyRule]:
    """Register ``rule(builder, stream, *args, **kwargs)`` for random operators that draw from one of our streams.

    Such a rule supports all arguments: it never declines.
    """

    def register(rule: AnyRule) -> AnyRule:
        for operator in operators:
            assert operator not in _DRAWING_RULES, f"{operator} has a drawing rule already"
            _DRAWING_RULES[operator] = rule
        return rule

    return register


def drawing_rule_for(operator: object) -> Rule | None:
    return _DRAWING_RULES.get(operator) if isinstance(operator, OpOverload) else None


def rule_for(operator: object) -> Rule | None:
    return _RULES.get(operator) if isinstance(operator, Operator) else None


def lowered_operators() -> tuple[OpOverload, ...]:
    """All ``OpOverload`` operators that have a rule."""
    return tuple(sorted((each for each in {*_RULES, *_DRAWING_RULES} if isinstance(each, OpOverload)), key=str))
