"""Detects what a step writes to Python's state, where the next step would read it.

Before: ``self.calls += 1`` in a forward, or ``if not self.ready: …; self.ready = True``
After:  the first is refused, with its location; for the second, the first step runs in eager, later ones are compiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.guards.state import StateGuards
from precast.errors import StateMutationError
from precast.export.program import ExportedProgram
from precast.trace.executed_code import ExecutedCode
from precast.trace.state.snapshot import StateSnapshot, Write

_UNKNOWN = object()
"""Represents a data-dependent number (an unbacked symbol)."""


@dataclass(frozen=True)
class Recorded:
    """A captured step, its guards on Python's state, and its writes to that state."""

    exported: ExportedProgram
    guards: StateGuards
    attributes: Callable[[], tuple[Any, ...]]
    """Returns the current attributes of the optimizer."""
    writes: Sequence[Write]
    executed: ExecutedCode

    def reads_the_same(self, attributes: tuple[Any, ...]) -> bool:
        """Whether everything that it reads is unchanged, given that the optimizer's attributes were these."""
        return self.guards.hold() and self.attributes() == attributes


def is_settled(step: Recorded, root: Callable[..., Any], capture_again: Callable[[], Recorded]) -> bool:
    """Whether all later steps equal this one; if not, those after the next do, or the step is refused.

    The step's writes are applied temporarily to the state that ``root`` reaches. If that changes what the step reads,
    it is captured again from there.
    """
    if not step.writes:
        return True
    attributes = step.attributes()
    with _written(step, root):
        if step.reads_the_same(attributes):
            return True
        if _has_unknown(step):
            raise _counting_error(step)
        second = capture_again()
        if _values(second) == _values(step) and _text(second) == _text(step):
            return True
        attributes = second.attributes()
        with _written(second, root):
            if not second.reads_the_same(attributes):
                raise _counting_error(second)
    return False


@contextmanager
def _written(step: Recorded, root: Callable[..., Any]) -> Iterator[None]:
    """While active, Python's state is as the step leaves it."""
    snapshot = StateSnapshot(root, step.executed)
    try:
        for write in step.writes:
            write.put(write.locate(), pytree.tree_map(_known, list(write.values)))
        yield
    finally:
        snapshot.restore()


def _known(value: Any) -> Any:
    """A traced value as a step would write it."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint if value.node.has_hint() else _UNKNOWN
    return value


def _values(step: Recorded) -> list[Any]:
    return [(write.path, pytree.tree_map(_known, list(write.values))) for write in step.writes]


def _has_unknown(step: Recorded) -> bool:
    return any(leaf is _UNKNOWN for leaf in pytree.tree_leaves(_values(step)))


def _text(step: Recorded) -> tuple[str, list[str]]:
    return step.exported.program.module.code, list(step.exported.program.state)


def _counting_error(step: Recorded) -> StateMutationError:
    return StateMutationError(
        "Each step leaves something else in Python's state, which the next one reads.",
        at="; ".join(step.guards.changes()),
        why="a program holds the values that were there when it was captured",
        fix="Keep it in a buffer, and update that with add_() or copy_(); or change it between the steps.",
    )
