"""Tracing sessions: one at a time, and afterwards all process-wide state is restored, whatever the user's code did."""

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch

from precast.errors import CaptureError
from precast.trace.checkpoint_regions import tagged_checkpoints
from precast.trace.collectives import functional_collectives


class ProcessLock:
    """A reentrant lock of one process. A forked child gets a new one: the thread that held the old one is gone."""

    def __init__(self) -> None:
        self._of_process = os.getpid(), threading.RLock()

    def __enter__(self) -> None:
        if self._of_process[0] != os.getpid():
            self._of_process = os.getpid(), threading.RLock()
        self._of_process[1].acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._of_process[1].release()


# Tracing sets process-wide flags and patches; two at once would see each other's.
_ONE_AT_A_TIME = ProcessLock()


class _Sessions(threading.local):
    depth = 0


_sessions = _Sessions()
# The error reports what fails on fake tensors; torch also logs it, over twenty lines.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not in_tracing_session())


def in_tracing_session() -> bool:
    """Whether a session is active on this thread."""
    return _sessions.depth > 0


@contextmanager
def while_nobody_traces() -> Iterator[None]:
    """Keep other threads from tracing, and so from replacing functions of torch."""
    with _ONE_AT_A_TIME:
        yield


@contextmanager
def tracing_session() -> Iterator[None]:
    """Set up everything that must hold while the user's program runs on fake tensors, and undo it afterwards.

    Libraries see ``torch.compiler.is_compiling()`` and ``is_exporting()``; the autograd engine stays on this thread;
    the caller's saved-tensor hooks are suspended; random, grad-mode, autocast and default-dtype state are restored.
    """
    with _ONE_AT_A_TIME, ExitStack() as stack:
        stack.enter_context(_compiler_flags())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        # Anomaly mode looks for NaN in gradients, and fake tensors have no data.
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(_without_saved_tensor_hooks())
        stack.enter_context(_restored_modes())
        stack.enter_context(tagged_checkpoints())
        stack.enter_context(functional_collectives())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_paused_collector())
        _sessions.depth += 1
        stack.callback(_leave)
        yield


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Disable garbage collection: a trace creates many objects and few cycles, and collecting takes a fourth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _leave() -> None:
    _sessions.depth -= 1


@contextmanager
def _compiler_flags() -> Iterator[None]:
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Suspend the caller's saved-tensor hooks: they belong to run time, and would see fake tensors here."""
    waiting: list[tuple[Any, Any]] = []
    top: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
    while (hooks := top(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        waiting.append(hooks)
    try:
        yield
    finally:
        for pack, unpack in reversed(waiting):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


class _Modes(NamedTuple):
    """The modes of torch that a program can set for what comes after it."""

    grad: bool
    dtype: torch.dtype
    deterministic: tuple[bool, bool]
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def current(cls) -> "_Modes":
        deterministic = torch.are_deterministic_algorithms_enabled()
        return cls(
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            (deterministic, torch.is_deterministic_algorithms_warn_only_enabled()),
            tuple((each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in ("cpu", "cuda")),
        )

    def restore(self) -> None:
        if self == _Modes.current():
            return
        torch.set_grad_enabled(self.grad)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


@contextmanager
def _restored_modes() -> Iterator[None]:
    """Undo setter calls (``torch.set_grad_enabled(False)``, …) that the user's code left in effect."""
    before = _Modes.current()
    try:
        yield
    finally:
        before.restore()


@contextmanager
def unchanged_modes() -> Iterator[None]:
    """Run a program inside; raises if it leaves modes of torch other than it found them, as a graph would not."""
    before = _Modes.current()
    with _restored_modes():
        yield
        changed = before != _Modes.current()
    if changed:
        raise CaptureError(
            "The program switches gradients, autocast, the default dtype or deterministic algorithms for what follows.",
            why="a graph computes values, and leaves torch's modes as they are",
            fix="Switch them in a with statement, or outside of what is compiled.",
        )
