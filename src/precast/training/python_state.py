"""Detects what a step writes to Python's state, where the next step would read it.

Before: ``self.attention = weights``, ``if not self.ready: …; self.ready = True`` or ``self.calls += 1`` in a forward
After:  the first is written after each step; of the second, the first step runs in eager, the later ones are the
        program that was captured from what it writes; the third is refused, with its location
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from precast.autograd.guards.state import StateGuards
from precast.errors import StateMutationError
from precast.export.program import ExportedProgram
from precast.trace.executed_code import ExecutedCode
from precast.trace.state.reachable import ReachableState
from precast.trace.state.snapshot import StateSnapshot
from precast.trace.state.stored import Stored, is_traced

if TYPE_CHECKING:
    from precast.training.step_module import StepModule

_UNKNOWN = object()
"""Represents a data-dependent number (an unbacked symbol)."""


@dataclass(frozen=True)
class Recorded:
    """A captured step, Python's state that it reaches, guards on that, and what it leaves there."""

    module: StepModule
    exported: ExportedProgram
    state: ReachableState
    guards: StateGuards
    attributes: Callable[[], tuple[Any, ...]]
    """Returns the current attributes of the optimizer."""
    stored: Stored
    executed: ExecutedCode
    key: Any
    """What steps are looked up by, as it was when the step was captured."""

    def reads_the_same(self, attributes: tuple[Any, ...]) -> bool:
        """Whether everything that it reads is unchanged, given that the optimizer's attributes were these."""
        return self.guards.hold() and self.attributes() == attributes

    def reads_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of these tensors is state of the program."""
        known = set(map(id, tensors))
        return any(id(tensor) in known for tensor in self.exported.program.state.values())

    def equals(self, other: Recorded) -> bool:
        """Whether both do the same in each step."""
        return _values(self.stored) == _values(other.stored) and _text(self) == _text(other)


@dataclass(frozen=True)
class Settled:
    """The step that all later ones equal, if it is known, and guards of which one holds where it may run."""

    step: Recorded | None
    guards: tuple[StateGuards, ...]
    first: StateGuards | None = None
    """Where they hold, a step must run in eager first, since it is another one."""


def settled_step(step: Recorded, root: Callable[..., Any], capture_again: Callable[[], Recorded]) -> Settled:
    """Find the step that later ones equal: this one, or the second.

    What the step leaves is put temporarily into the state that ``root`` reaches. If that may change what the step
    reads, it is captured again from there. Some of the guards hold before the first step, and some after it.
    """
    if not step.stored:
        return Settled(step, (step.guards,))
    attributes = step.attributes()
    with _written(step, root) as tensors:
        if not tensors and step.reads_the_same(attributes):
            return Settled(step, (step.guards,))
        second = _captured_again(step, capture_again)
        if second.equals(step) and not second.reads_any(tensors):
            return Settled(step, (step.guards, second.guards))
        attributes = second.attributes()
        with _written(second, root) as others:
            if not others and second.reads_the_same(attributes):
                # Tensors that a first step computes are only known by stand-ins, and another key only after it.
                known = second if not tensors and second.key == step.key else None
                return Settled(known, (second.guards,), first=step.guards)
            third = _captured_again(second, capture_again)
            if not others or third.reads_any(others) or not third.equals(second):
                raise _counting_error(second)
    return Settled(None, (), first=step.guards)


def _captured_again(step: Recorded, capture_again: Callable[[], Recorded]) -> Recorded:
    if any(_known(leaf) is _UNKNOWN for leaf in step.stored.leaves):
        raise _counting_error(step)
    return capture_again()


@contextmanager
def _written(step: Recorded, root: Callable[..., Any]) -> Iterator[list[torch.Tensor]]:
    """While active, Python's state is as the step leaves it; yields stand-ins for tensors that it computes."""
    snapshot = StateSnapshot(root, step.executed)
    values = list(map(_known, step.stored.traced))
    try:
        step.stored.put(values)
        yield [value for value in values if isinstance(value, torch.Tensor)]
    finally:
        snapshot.restore()


def _known(value: Any) -> Any:
    """A traced value as a step would write it; for tensors, one of that kind."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint if value.node.has_hint() else _UNKNOWN
    if isinstance(value, torch.Tensor) and is_traced(value):
        sizes = [_known(size) for size in value.shape]
        return torch.zeros([2 if size is _UNKNOWN else size for size in sizes], dtype=value.dtype, device=value.device)
    return value


def _values(stored: Stored) -> list[Any]:
    """What is stored where, to be compared: of tensors, their kind."""
    leaves = [
        (leaf.dtype, tuple(map(_known, leaf.shape))) if isinstance(leaf, torch.Tensor) and is_traced(leaf)
        else id(leaf) if isinstance(leaf, torch.Tensor) else _known(leaf)
        for leaf in stored.leaves
    ]  # fmt: skip
    writes = [(write.path, write.added_to is None, [key for _, key in write.homes]) for write in stored.writes.writes]
    return [writes, stored.writes.tree, leaves]


def _text(step: Recorded) -> tuple[str, list[str]]:
    return step.exported.program.module.code, list(step.exported.program.state)


def _counting_error(step: Recorded) -> StateMutationError:
    return StateMutationError(
        "Each step leaves something else in Python's state, which the next one reads.",
        at="; ".join(step.guards.changes()) or "; ".join(step.stored.paths),
        why="a program holds the values that were there when it was captured",
        fix="Keep it in a buffer, and update that with add_() or copy_(); or change it between the steps.",
    )
