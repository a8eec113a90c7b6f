"""Which function lowers which operator."""

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
    """What a rule returns where it does not know these arguments: the operator falls back."""


DECLINED = Declined()


@dataclass(frozen=True, eq=False)
class Found:
    """What a rule returns whose result has a size that depends on data: `count`, one whole number, at most `bound`.

    All that follows is lowered into a part that knows the size; `define` says there what the operator returns.
    """

    count: Buffer
    bound: Index
    define: Callable[[Builder], Buffer | tuple[Buffer | None, ...] | Index]


Lowered = Buffer | tuple[Buffer | None, ...] | Found | Declined
Operator = OpOverload | HigherOrderOperator
Rule = Callable[..., Lowered]
AnyRule = TypeVar("AnyRule", bound=Rule)

_RULES: dict[Operator, Rule] = {}
_DRAWING_RULES: dict[OpOverload, Rule] = {}


def lowering(*operators: Operator) -> Callable[[AnyRule], AnyRule]:
    """Register ``rule(builder, *args, **kwargs) -> Buffer`` for `operators`; a second rule for one is refused.

    Tensor arguments arrive as buffers, sizes as ``Index``, subgraphs as modules, everything else as it stands in the
    graph. What the operator returns (shape, type, strides) is known from tracing: ``builder.result``.
    """

    def register(rule: AnyRule) -> AnyRule:
        for operator in operators:
            assert operator not in _RULES, f"{operator} has a lowering rule already: {_RULES[operator].__name__}"
            _RULES[operator] = rule
        return rule

    return register


def drawing(*operators: OpOverload) -> Callable[[AnyRule], AnyRule]:
    """Register ``rule(builder, stream, *args, **kwargs)`` for random operators that draw from a stream of ours.

    Such a rule knows all arguments: it never declines.
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
    """All operators of ATen and its like that have a rule."""
    return tuple(sorted((each for each in {*_RULES, *_DRAWING_RULES} if isinstance(each, OpOverload)), key=str))
