"""Runs a program with graph breaks in pieces: in Python, with the modules that it calls compiled.

Before: ``GraphBreak`` while ``model`` was traced
After:  ``model`` runs in Python; its submodules, and its own ``forward`` below its hooks, are compiled separately

A piece that cannot be captured itself is broken in the same way, and so on inwards. Eager's order is kept, and torch
itself calls every hook.
"""

import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from precast.autograd.checkpoints_in_pieces import routed_again_in_reruns
from precast.trace.exchanged_attributes import ExchangedAttribute
from precast.trace.executed_code import is_trusted
from precast.trace.session import ProcessLock, in_tracing_session

_ROUTE = "_compiled_call_impl"
"""The attribute that torch calls, if it is set, instead of a module."""


class Pieces:
    """The compiled pieces of one function, made by ``compile_piece`` when first called."""

    def __init__(self, function: Callable[..., Any], compile_piece: Callable[[Callable[..., Any]], Any]) -> None:
        self._function = function
        self._compile_piece = compile_piece
        self._compiled: MutableMapping[torch.nn.Module, Any] = WeakKeyDictionary()
        self._forwards: MutableMapping[torch.nn.Module, Any] = WeakKeyDictionary()
        self._lock = ProcessLock()
        self._running = _Running()

    def run(
        self, args: Sequence[Any], kwargs: dict[str, Any], modules: Sequence[torch.nn.Module], *, below_hooks: bool
    ) -> Any:
        """Call the function, with ``modules`` as pieces; with ``below_hooks``, its forward without hooks is a piece."""
        with self._routed(modules):
            if below_hooks and isinstance(self._function, torch.nn.Module):
                return self._run_hooks(self._function, args, kwargs)
            return self._function(*args, **kwargs)

    def compiled(self) -> list[Any]:
        """All pieces compiled so far."""
        return [*self._compiled.values(), *self._forwards.values()]

    def _run_hooks(self, module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        original, thread = module.forward, threading.get_ident()

        def forward(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread or exchanged is None or not exchanged.is_in_place:
                return original(*args, **kwargs)
            # The piece is traced, and its guards are checked, with the module in its original state.
            exchanged.take_away()
            return self._piece(self._forwards, module, forward_of)(*args, **kwargs)

        # If another thread is inside this module's hooks, its replacement calls the original for us.
        exchanged = ExchangedAttribute.put(module, "forward", forward)
        try:
            return module(*args, **kwargs)
        finally:
            if exchanged is not None:
                exchanged.take_away()

    def _piece(
        self,
        pieces: MutableMapping[torch.nn.Module, Any],
        module: torch.nn.Module,
        function_of: Callable[[torch.nn.Module], Callable[..., Any]],
    ) -> Any:
        with self._lock:
            piece = pieces.get(module)
            if piece is None:
                piece = pieces[module] = self._compile_piece(function_of(module))
            return piece

    @contextmanager
    def _routed(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        """While active, calls of the modules on this thread call their pieces."""
        owner = getattr(self._function, "__self__", self._function)
        thread = threading.get_ident()
        exchanged = [
            ExchangedAttribute.put(module, _ROUTE, self._route(module, thread))
            for module in modules
            if module is not owner and vars(module).get(_ROUTE) is None and _is_worth_it(module)
        ]
        running = frozenset(self._running.modules)
        try:
            with routed_again_in_reruns(lambda: self._routed_as_when(running, modules)):
                yield
        finally:
            for each in exchanged:
                if each is not None:
                    each.take_away()

    @contextmanager
    def _routed_as_when(self, running: frozenset[int], modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Route calls as in a run during which the pieces of ``running`` were being called."""
        before, self._running.modules = self._running.modules, set(running)
        try:
            with self._routed(modules):
                yield
        finally:
            self._running.modules = before

    def _route(self, module: torch.nn.Module, thread: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            running = self._running.modules
            if threading.get_ident() != thread or in_tracing_session() or id(module) in running:
                return module._call_impl(*args, **kwargs)
            running.add(id(module))
            try:
                return self._piece(self._compiled, module, lambda each: each)(*args, **kwargs)
            finally:
                running.discard(id(module))

        return call


class _Running(threading.local):
    """The modules whose pieces are being called: a call of the module from its piece must not call the piece again."""

    def __init__(self) -> None:
        self.modules: set[int] = set()


def forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """The current forward of a module, as a method of the module, so that its state is found."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    found = getattr(module.forward, "__func__", None)
    if isinstance(found, FunctionType):
        forward.__dict__["__wrapped__"] = found
    return MethodType(forward, module)


def _is_worth_it(module: torch.nn.Module) -> bool:
    """Whether a module may be more than one operator: torch's own modules without children are not.

    A ``__call__`` of the module's class runs around its route, and would run in the piece once more.
    """
    if isinstance(module, torch.jit.ScriptModule) or "_precast_original" in vars(module):
        return False
    if not is_trusted(type(module).__call__.__module__):
        return False
    return bool(module._modules) or not is_trusted(type(module).__module__)
