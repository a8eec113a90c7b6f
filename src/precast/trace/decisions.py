"""Resolves Python branches on data-dependent values, if only one branch can be taken.

Before: ``if not (scale > 0).all(): raise ValueError("scale must be positive")``
After:  ``_assert_async((scale > 0).all(), "the program raises ValueError: scale must be positive")``, then the rest

Before: ``y = f(x, mask) if mask.any() else f(x)``, in a program that may fork
After:  ``cond(mask.any(), the program with the one, the program with the other)``

Both branches are tried on fake tensors, each up to the next branch or to the end. If one raises an error of the
program's own, the other is taken and the graph checks the condition: a call in which the check fails runs the program
in Python if it can, or raises that error. If neither raises, the program forks, or is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributions import constraints, distribution
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from precast.errors import PrecastError
from precast.trace.capture.failures import is_of_tracing
from precast.trace.executed_code import is_machinery
from precast.trace.raising_checks import check_message

MOST_CHOICES = 64
MOST_FORKS = 3
"""At how many branches one run of the program may fork."""
_ASKING = frozenset({Tensor.is_nonzero, torch.is_nonzero})
_CLOSE = frozenset({torch.allclose, Tensor.allclose})
_COMPARING = _CLOSE | {torch.equal, Tensor.equal}

Asked = Tensor | torch.SymBool


class Place(NamedTuple):
    """An instruction of the program; ``validates``: it is torch's check of a distribution's arguments."""

    code: CodeType
    instruction: int
    validates: bool = False


class UndecidedError(BaseException):
    """The program reaches an undecided branch. A BaseException, so that programs do not catch it."""

    def __init__(self, decisions: Decisions, value: Asked, place: Place | None) -> None:
        super().__init__()
        self.decisions, self.value, self.place = decisions, value, place


@dataclass(frozen=True)
class Choice:
    """The truth value that a condition is assumed to have. With a message, the graph checks it; in a fork it holds."""

    value: bool
    message: str | None = None


@dataclass
class Decisions:
    """The choices of one program in the order of its run; after a fork, those of the two programs.

    ``attempt`` is the truth value being tried for the next branch; ``has_one_way``: the program is known to continue
    with the other value.
    """

    forks_left: int = 0
    settled: list[Choice] = field(default_factory=list)
    attempt: bool | None = None
    has_one_way: bool = False
    fork: tuple[Decisions, Decisions] | None = None
    is_given_up: bool = False
    place: Place | None = None
    refusals: dict[Place, Choice] = field(default_factory=dict)
    """The earlier choices at the same instructions: the value that raised is tried first."""

    def run(self, program: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the program with these choices; raises UndecidedError at the next branch."""
        try:
            with _followed(self):
                return program(*args, **kwargs)
        except UndecidedError as stop:
            if stop.decisions is not self or self.fork is None:
                raise
            condition: Any = stop.value
        yes, no = self.fork
        return torch.cond(condition, lambda: yes.run(program, args, kwargs), lambda: no.run(program, args, kwargs), ())

    def trying(self) -> Decisions | None:
        """The decisions with an attempt under way: these, or those of a forked program."""
        if self.attempt is not None:
            return self
        return next((found for each in self.fork or () if (found := each.trying()) is not None), None)

    def goes_on(self, place: Place | None = None) -> None:
        """Record that the program reached its end, or another branch, at ``place``."""
        if self.attempt is not None:
            self._know(None)
        elif len(self.settled) == MOST_CHOICES:
            self.is_given_up = True
        elif place is not None and place.validates:
            # A constraint that does not hold always raises.
            self.settled.append(Choice(True, check_message(ValueError("a value does not satisfy its constraint"))))
        else:
            before = self.refusals.get(place) if place is not None else None
            self.attempt, self.place = before is None or not before.value, place

    def ends_in(self, error: Exception) -> bool:
        """Record that the program raised this; returns whether it should be run again."""
        trying = self.trying()
        if trying is not None:
            if is_of_tracing(error) or isinstance(error, PrecastError):
                trying._give_up()
            else:
                trying._know(error)
            return True
        if self.fork is not None:
            # The results of both branches do not fit into one cond.
            self._give_up()
            return True
        return False

    def _know(self, outcome: Exception | None) -> None:
        assert self.attempt is not None, "something was tried"
        if outcome is None and not self.has_one_way:
            self.attempt, self.has_one_way = not self.attempt, True
            return
        attempt, self.attempt, self.has_one_way = self.attempt, None, False
        if outcome is not None:
            choice = Choice(not attempt, check_message(outcome))
            self.settled.append(choice)
            if self.place is not None:
                self.refusals[self.place] = choice
        elif self.forks_left:
            yes, no = (
                Decisions(self.forks_left - 1, [*self.settled, Choice(value)], refusals=self.refusals)
                for value in (True, False)
            )
            self.fork = yes, no
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.attempt, self.fork, self.is_given_up = None, None, True


@dataclass
class _Run:
    """One run of a program with given choices."""

    decisions: Decisions
    made: int = 0
    known: dict[object, bool] = field(default_factory=dict)
    """The symbolic conditions that this run forked at, or tries: asked again, they have the same value."""

    def decide(self, value: Asked, place: Place | None) -> bool:
        condition = value.node.expr if isinstance(value, torch.SymBool) else None
        if condition in self.known:
            return self.known[condition]
        choice = self._choice(value, place)
        if choice.message is not None:
            # Recorded anew each time: an earlier check may be in a subgraph that does not run.
            _check(value, choice.value, choice.message)
        elif condition is not None:
            self.known[condition] = choice.value
        return choice.value

    def _choice(self, value: Asked, place: Place | None) -> Choice:
        decisions = self.decisions
        if self.made < len(decisions.settled):
            self.made += 1
            return decisions.settled[self.made - 1]
        if self.made == len(decisions.settled) and decisions.attempt is not None:
            self.made += 1
            return Choice(decisions.attempt)
        raise UndecidedError(decisions, value, place)


_running: ContextVar[_Run | None] = ContextVar("decided_run", default=None)


def is_trying() -> bool:
    """Whether this run only tries a branch."""
    run = _running.get()
    return run is not None and run.decisions.attempt is not None


def compares(function: object, args: Any) -> bool:
    """Whether a torch function compares two tensors and returns a Python bool that can be decided here."""
    run = _running.get()
    if function not in _COMPARING or run is None or run.decisions.is_given_up or _asking_place() is None:
        return False
    left, right = (*args, None, None)[:2]
    are_tensors = isinstance(left, Tensor) and isinstance(right, Tensor)
    return are_tensors and left.dtype == right.dtype and (function in _CLOSE or left.ndim == right.ndim)


def decide_comparison(function: object, left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Decide the result of the comparison."""
    if function in _CLOSE:
        return decide(torch.isclose(left, right, *args, **kwargs).all())
    return left.shape == right.shape and decide((left == right).all())


def asks_for_truth(function: object, args: Any) -> bool:
    """Whether a torch function reads a truth value that can be decided here."""
    run = _running.get()
    if function not in _ASKING or run is None or run.decisions.is_given_up:
        return False
    return isinstance(args[0], Tensor) and args[0].numel() == 1 and _asking_place() is not None


def decide(value: Tensor) -> bool:
    """Decide the truth value."""
    run = _running.get()
    assert run is not None, "a program runs"
    return run.decide(value, _asking_place())


def _check(value: Asked, choice: bool, message: str) -> None:
    if isinstance(value, torch.SymBool):
        holds = value if choice else torch.sym_not(value)
        torch.ops.aten._assert_scalar.default(holds, message)
        torch._check(holds)
        return
    is_true = value.detach().reshape(()) != 0
    torch._assert_async(is_true if choice else ~is_true, message)


def _asking_place() -> Place | None:
    """The branching instruction, if it is the program's: branches inside torch are not decided here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        ("precast.", "torch._tensor", "torch.overrides")
    ):
        frame = frame.f_back
    if frame is None or is_machinery(frame.f_globals.get("__name__")):
        return None
    return Place(frame.f_code, frame.f_lasti, _validates(frame))


def _validates(frame: FrameType) -> bool:
    """Whether a distribution checks a constraint: elsewhere, the result of a constraint's check is just a value."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename == constraints.__file__:
        caller = caller.f_back
    return caller is not None and caller is not frame and caller.f_code.co_filename == distribution.__file__


@contextmanager
def _followed(decisions: Decisions) -> Iterator[None]:
    """While active, branches of the program on this thread follow the decisions."""
    thread = threading.get_ident()
    original: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__
    token = _running.set(run := _Run(decisions))

    def truth_of(kind: type[Tensor]) -> Callable[[Any], bool]:
        by_kind: Callable[[Tensor], bool] = kind.__bool__

        def tensor_truth(value: Tensor) -> bool:
            # Python functions of torch bypass the mode, and come here. A real tensor is substituted first.
            is_traced = isinstance(value, FunctionalTensor) or is_fake(value)
            if is_traced and threading.get_ident() == thread and asks_for_truth(Tensor.is_nonzero, (value,)):
                return decide(value)
            return by_kind(value)

        return tensor_truth

    def truth(value: torch.SymBool) -> bool:
        try:
            return original(value)
        except GuardOnDataDependentSymNode:
            place = _asking_place() if threading.get_ident() == thread and not decisions.is_given_up else None
            if place is None or _running.get() is not run:
                raise
        return run.decide(value, place)

    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.SymBool, "__bool__", truth))
            for kind in (FunctionalTensor, Tensor):
                stack.enter_context(patch.object(kind, "__bool__", truth_of(kind)))
            yield
    finally:
        _running.reset(token)
