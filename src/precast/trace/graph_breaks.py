"""Graph breaks at hooks that do more than compute on tensors.

Before: ``model(x)`` with a hook that prints, deep inside
After:  ``GraphBreak``, raised before the hook runs; the program then runs in pieces

Whether a hook only computes on tensors is decided by its code; such a hook can be part of a graph.

Before: ``lambda module, args, output: output * scale``, ``lambda grad: grads.append(grad.norm().item())``
After:  ``None``, ``"it calls item"``

Everything that is not known to be harmless is an effect: the hook then runs in Python, on real tensors. Writes of a
forward hook to lists, dicts, attributes and closure variables are allowed, since they are repeated after each call, as
are prints; making a text of a tensor ends the trace.
"""

import builtins
import dis
import math
import operator
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.nn.parallel import DistributedDataParallel

_PURE_BUILTINS = frozenset({
    "abs", "all", "any", "dict", "enumerate", "frozenset", "getattr", "hasattr", "isinstance", "issubclass", "len",
    "list", "map", "max", "min", "object", "range", "reversed", "round", "set", "slice", "sorted", "sum", "super",
    "tuple", "zip",
})  # fmt: skip
_PURE_MODULES = (torch, torch.nn, functional, torch.linalg, torch.special, torch.fft, math, operator)
_READING = frozenset(
    {"get", "items", "keys", "values", "copy", "index", "count", "training", "nn", "functional", "no_grad"}
)
_WRITING = frozenset({"append", "extend", "setdefault", "update", "pop", "clear", "insert", "__setitem__"})
# What reads data or autograd's graph, or changes it.
_UNSAFE = frozenset({
    "item", "tolist", "numpy", "data_ptr", "backward", "register_hook", "register_post_accumulate_grad_hook",
    "retain_grad", "retains_grad", "grad", "grad_fn", "is_leaf", "data", "storage", "untyped_storage", "is_shared",
    "share_memory_", "pin_memory", "type", "apply_", "map_", "map2_", "save", "load", "manual_seed", "seed", "compile",
    "requires_grad_", "set_", "resize_", "output_nr", "allclose", "equal", "is_nonzero", "names", "to_dense", "layout",
})  # fmt: skip
_TENSOR_WORDS = frozenset(
    name for owner in (torch.Tensor, *_PURE_MODULES) for name in dir(owner) if not name.startswith("_")
) - frozenset(name for name in dir(torch) if name.startswith(("set_", "use_", "get_")))
_MOST_VALUES = 10_000
_IN_PLACE = 13
"""From this argument on, a ``BINARY_OP`` is in place."""


def hook_effect(hook: Any, *, in_backward: bool, module: torch.nn.Module | None = None) -> str | None:
    """What ``hook``, which is called with ``module``, does besides computing on tensors; None if nothing."""
    return next(_Scan(in_backward).effects(hook, module), None)


class _Scan:
    def __init__(self, in_backward: bool) -> None:
        self._in_backward = in_backward
        self._visited: set[int] = set()
        self._known: set[str] = set()
        self._used: set[str] = set()
        self._methods: dict[str, list[FunctionType]] = {}
        self._attributes: dict[str, list[Any]] = {}
        allowed = (_TENSOR_WORDS | _READING) - _UNSAFE
        if in_backward:
            self._words = frozenset(name for name in allowed if not name.endswith("_"))
        else:
            self._words = allowed | _WRITING

    def effects(self, hook: Any, module: torch.nn.Module | None) -> Iterator[str]:
        """All effects of a hook, including those of methods whose names it uses."""
        yield from self.held(module)
        yield from self.called(hook)
        scanned = 0
        while scanned != len(self._visited):
            scanned = len(self._visited)
            for method in [each for name in self._used for each in self._methods.get(name, ())]:
                yield from self._function(method)
            yield from self._each([each for name in self._used for each in self._attributes.get(name, ())])

    def called(self, function: Any) -> Iterator[str]:
        """The effects of calling ``function``."""
        if isinstance(function, MethodType):
            yield from self.held(function.__self__)
            yield from self.called(function.__func__)
        elif isinstance(function, partial):
            yield from self.held((*function.args, *function.keywords.values()))
            yield from self.called(function.func)
        elif isinstance(function, FunctionType):
            yield from self._function(function)
        elif not isinstance(function, torch.nn.Module) and isinstance(
            call := _method(function, "__call__"), FunctionType
        ):
            yield from self.held(function)
            yield from self._function(call)
        else:
            yield f"it is a {type(function).__name__}"

    def held(self, value: Any) -> Iterator[str]:
        """The effects of having access to ``value``, and to everything that can be called through it."""
        if id(value) in self._visited or value is None or isinstance(value, _PLAIN):
            return
        self._visited.add(id(value))
        if len(self._visited) > _MOST_VALUES:
            yield "it can reach too much"
        elif isinstance(value, torch.Tensor):
            if self._in_backward:
                yield "it reads a tensor from outside"
        elif type(value) in _CONTAINERS:
            if self._in_backward and not isinstance(value, tuple):
                yield f"it can reach a {type(value).__name__}"
            yield from self._each(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, ContextVar):
            yield from self.held(value.get(None))
        elif isinstance(value, (FunctionType, MethodType, partial)):
            if not _is_pure_of_torch(value):
                yield from self.called(value)
        elif isinstance(value, (ModuleType, type, BuiltinFunctionType)):
            if not _is_pure_of_library(value):
                yield f"it can reach {getattr(value, '__name__', value)}"
        elif isinstance(value, torch.nn.Module) and not self._in_backward:
            self._module(value)
        elif isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
            yield f"it can reach a {type(value).__name__}"
        else:
            yield from self._object(value)

    def _each(self, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            yield from self.held(value)

    def _object(self, value: Any) -> Iterator[str]:
        self._known.update(vars(value))
        yield from self._each(vars(value).values())
        self._methods_of(type(value).__mro__[:-1])

    def _module(self, module: torch.nn.Module) -> None:
        """Record the module's attributes, which count if their name is used; calls of it are checked when made."""
        for name, value in (*vars(module).items(), *module._buffers.items(), *module._modules.items()):
            self._attributes.setdefault(name, []).append(value)
        self._known.update(self._attributes, module._parameters)
        kinds = type(module).__mro__
        self._methods_of(kinds[: kinds.index(torch.nn.Module)])

    def _methods_of(self, kinds: Iterable[type]) -> None:
        for base in kinds:
            for name, attribute in vars(base).items():
                found = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
                if isinstance(found, FunctionType):
                    self._known.add(name)
                    self._methods.setdefault(name, []).append(found)

    def _function(self, function: FunctionType) -> Iterator[str]:
        if id(function.__code__) in self._visited:
            return
        self._visited.add(id(function.__code__))
        for cell in function.__closure__ or ():
            try:
                yield from self.held(cell.cell_contents)
            except ValueError:
                continue
        yield from self.held(function.__defaults__)
        yield from self._each((function.__kwdefaults__ or {}).values())
        yield from self._code(function.__code__, function.__globals__)

    def _code(self, code: CodeType, variables: dict[str, Any]) -> Iterator[str]:
        for instruction in dis.get_instructions(code):
            yield from self._instruction(instruction, code, variables)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._code(constant, variables)

    def _instruction(self, instruction: dis.Instruction, code: CodeType, variables: dict[str, Any]) -> Iterator[str]:
        kind, name = instruction.opname, instruction.argval
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            if name in variables:
                yield from self.held(variables[name])
            elif name not in _PURE_BUILTINS and (self._in_backward or name not in _DONE_AGAIN):
                yield f"it calls {name}"
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            self._used.add(name)
            if name not in self._words and name not in self._known:
                yield f"it uses {name}"
        elif kind in _ALWAYS_EFFECTS:
            yield f"it {_ALWAYS_EFFECTS[kind]}"
        elif self._in_backward and (kind in _WRITTEN_AGAIN or kind.startswith("FORMAT_")):
            yield f"it {_WRITTEN_AGAIN.get(kind, 'makes a text')}"
        elif self._in_backward and (
            kind in ("STORE_SUBSCR", "DELETE_SUBSCR")
            or (kind == "STORE_DEREF" and name in code.co_freevars)
            or (kind == "BINARY_OP" and (instruction.arg or 0) >= _IN_PLACE)
        ):
            yield "it writes"


_ALWAYS_EFFECTS = {
    "STORE_GLOBAL": "assigns a global", "DELETE_GLOBAL": "deletes a global", "IMPORT_NAME": "imports a module",
    "IMPORT_FROM": "imports a module",
}  # fmt: skip
_WRITTEN_AGAIN = {"STORE_ATTR": "assigns an attribute", "DELETE_ATTR": "deletes an attribute"}
_DONE_AGAIN = frozenset({"setattr", "delattr", "print"})
_CONTAINERS = (list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict)
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
_PURE_TYPES = (torch.Tensor, torch.nn.Module, *_CONTAINERS, object)


def _method(value: Any, name: str) -> Any:
    return getattr(type(value), name, None)


def _is_pure_of_torch(function: Callable[..., Any]) -> bool:
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    is_functional = module in ("torch.nn.functional", "torch.functional", "torch._jit_internal")
    return is_functional and name in _TENSOR_WORDS - _UNSAFE


def _is_pure_of_library(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value in _PURE_MODULES
    if isinstance(value, type):
        return value in _PURE_TYPES
    name = value.__name__
    owner = getattr(value, "__self__", None)
    if owner is builtins:
        return name in _PURE_BUILTINS
    if getattr(torch._C._VariableFunctions, name, None) is value:
        return name not in _UNSAFE
    home = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None) or ""
    return home.startswith(("torch", "math", "_operator")) and name in _TENSOR_WORDS - _UNSAFE


FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")
ALL_HOOKS = (*FORWARD_HOOKS, *BACKWARD_HOOKS)


class GraphBreak(BaseException):
    """A program cannot be one graph. ``module`` is the one whose hooks are the reason, if it is hooks of a module.

    Not an ``Exception``, so that the user's handlers do not catch it.
    """

    def __init__(self, reason: str, module: torch.nn.Module | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.module = module


def global_hooks(name: str) -> dict[int, Any]:
    """The global hooks of the kind that modules keep under ``name``."""
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
    """While active, hooks that cannot be captured end the trace before any of them runs, if breaks are allowed."""
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
            # With real tensors it may succeed; if not, eager raises the same error.
            raise GraphBreak(f"a hook of {_name(module)} cannot be captured: {error}", module) from error

    def register_checked(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        # Active modes call it again.
        if threading.get_ident() != thread or isinstance(hook, _BreakingHook):
            return register(tensor, hook)
        reason = "it would stay on the tensor" if tensor.is_leaf else hook_effect(hook, in_backward=True)
        if reason is not None:
            raise GraphBreak(f"a hook of a tensor cannot be captured: {reason}")
        return register(tensor, _BreakingHook(hook))

    def refuse(tensor: torch.Tensor, *args: Any) -> Any:
        raise GraphBreak("retain_grad() or register_post_accumulate_grad_hook() is called, which a graph cannot do")

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
    hooks = [hook for name in FORWARD_HOOKS for hook in hooks_of(module, name)]
    found = (hook_effect(hook, in_backward=False, module=module) for hook in hooks)
    return next((effect for effect in found if effect is not None), None)


@dataclass(frozen=True)
class _BreakingHook:
    """A tensor hook that ends the trace if it fails on traced tensors."""

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
