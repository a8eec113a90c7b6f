"""Where a trace ends since Python has to run: a hook that does more than compute on tensors.

Before: ``model(x)`` with a hook that prints, deep inside
After:  ``GraphBreak``, raised before the hook has run; whoever traces runs the program in pieces instead
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.parallel import DistributedDataParallel

from precast.tracing.hook_effects import hook_effect

FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")
ALL_HOOKS = (*FORWARD_HOOKS, *BACKWARD_HOOKS)


class GraphBreak(BaseException):
    """A program that cannot be one graph. ``module`` has the hooks that are in the way, if it is hooks of a module.

    Not an ``Exception``: the user's own handlers must not take it for a failure of their code.
    """

    def __init__(self, reason: str, module: torch.nn.Module | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.module = module


def global_hooks(name: str) -> dict[int, Any]:
    """The hooks on all modules, of the kind that single modules keep under ``name``."""
    found: dict[int, Any] = getattr(module_hooks, f"_global{name}")
    return found


def hooks_of(module: torch.nn.Module, name: str) -> list[Any]:
    """The hooks of one kind that a call of ``module`` runs."""
    return [*global_hooks(name).values(), *getattr(module, name).values()]


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of ``module`` runs any hooks."""
    return any(global_hooks(name) or getattr(module, name) for name in ALL_HOOKS)


_are_allowed: ContextVar[bool] = ContextVar("graph_breaks", default=False)


@contextmanager
def allowed_breaks() -> Iterator[None]:
    """While active, traces may end in a ``GraphBreak``."""
    token = _are_allowed.set(True)
    try:
        yield
    finally:
        _are_allowed.reset(token)


@contextmanager
def breaks_at_hooks() -> Iterator[None]:
    """While active, hooks that cannot be captured end the trace, where that is allowed, before any of them runs."""
    if not _are_allowed.get():
        yield
        return
    thread = threading.get_ident()
    call: Callable[..., Any] = torch.nn.Module._call_impl
    register: Callable[..., Any] = torch.Tensor.register_hook

    def call_checked(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return call(module, *args, **kwargs)
        if isinstance(module, DistributedDataParallel):
            raise GraphBreak(f"{_name(module)} exchanges gradients by hooks of its own")
        if not has_hooks(module):
            return call(module, *args, **kwargs)
        if (reason := _uncapturable(module)) is not None:
            raise GraphBreak(f"a hook of {_name(module)} cannot be captured: {reason}", module)
        hooks = [hook for name in FORWARD_HOOKS for hook in hooks_of(module, name)]
        try:
            return call(module, *args, **kwargs)
        except Exception as error:
            if not _is_raised_in(error.__traceback__, hooks):
                raise
            # With real tensors it may do well; where it does not, eager raises the same.
            raise GraphBreak(f"a hook of {_name(module)} cannot be captured: {error}", module) from error

    def register_checked(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        # Modes that are active call it again.
        if threading.get_ident() != thread or isinstance(hook, _BreakingHook):
            return register(tensor, hook)
        reason = "it would stay on the tensor" if tensor.is_leaf else hook_effect(hook, in_backward=True)
        if reason is not None:
            raise GraphBreak(f"a hook of a tensor cannot be captured: {reason}")
        return register(tensor, _BreakingHook(hook))

    def refuse(tensor: torch.Tensor, *args: Any) -> Any:
        raise GraphBreak("a tensor is told to keep its gradient, or to tell of it, which a graph cannot")

    with (
        patch.object(torch.nn.Module, "_call_impl", call_checked),
        patch.object(torch.Tensor, "register_hook", register_checked),
        patch.object(torch.Tensor, "register_post_accumulate_grad_hook", refuse),
        patch.object(torch.Tensor, "retain_grad", refuse),
    ):
        yield


def _uncapturable(module: torch.nn.Module) -> str | None:
    """Why the hooks of a module have to run in Python; None if they can be captured."""
    if module._forward_hooks_always_called or module_hooks._global_forward_hooks_always_called:
        return "it is called also when the module fails"
    if torch.is_grad_enabled() and any(hooks_of(module, name) for name in BACKWARD_HOOKS):
        return "it is called in the backward"
    found = (hook_effect(hook, in_backward=False) for name in FORWARD_HOOKS for hook in hooks_of(module, name))
    return next((effect for effect in found if effect is not None), None)


@dataclass(frozen=True)
class _BreakingHook:
    """A hook of a tensor that ends the trace where it fails on the tensors of tracing."""

    hook: Callable[..., Any]

    def __call__(self, gradient: torch.Tensor) -> Any:
        try:
            return self.hook(gradient)
        except Exception as error:
            raise GraphBreak(f"a hook of a tensor cannot be captured: {error}") from error


def _is_raised_in(traceback: TracebackType | None, functions: list[Any]) -> bool:
    codes = {id(getattr(function, "__code__", None)) for function in functions}
    while traceback is not None:
        if id(traceback.tb_frame.f_code) in codes:
            return True
        traceback = traceback.tb_next
    return False


def _name(module: torch.nn.Module) -> str:
    return type(module).__qualname__
