"""Whether a hook only computes on tensors, told by its code: such a hook can be a part of a graph.

Before: ``lambda module, args, output: output * scale``, ``lambda grad: grads.append(grad.norm().item())``
After:  ``None``, ``"it calls item"``

What is not known to be harmless is an effect: the hook then runs in Python, on real tensors. What a hook of the forward
puts into lists, dicts and closure variables is none, since such writes are done again after each call.
"""

import builtins
import dis
import math
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import functional

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
# What tells of data, of autograd's graph, or that a tensor is not a plain one.
_TELLING = frozenset({
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
"""From this number on, the operator of a ``BINARY_OP`` writes into its left operand."""


def hook_effect(hook: Any, *, in_backward: bool) -> str | None:
    """What ``hook`` does beside computing on tensors, in words; None if nothing."""
    return next(_Scan(in_backward).effects(hook), None)


class _Scan:
    def __init__(self, in_backward: bool) -> None:
        self._in_backward = in_backward
        self._visited: set[int] = set()
        self._known: set[str] = set()
        self._used: set[str] = set()
        self._methods: dict[str, list[FunctionType]] = {}
        allowed = (_TENSOR_WORDS | _READING) - _TELLING
        if in_backward:
            self._words = frozenset(name for name in allowed if not name.endswith("_"))
        else:
            self._words = allowed | _WRITING

    def effects(self, hook: Any) -> Iterator[str]:
        """All effects of a hook, those of methods included that have a name which it uses."""
        yield from self.called(hook)
        scanned = 0
        while scanned != len(self._visited):
            scanned = len(self._visited)
            for method in [each for name in self._used for each in self._methods.get(name, ())]:
                yield from self._function(method)

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
        """The effects of having ``value`` at hand: what can be called through it is looked at, too."""
        if id(value) in self._visited or value is None or isinstance(value, _PLAIN):
            return
        self._visited.add(id(value))
        if len(self._visited) > _MOST_VALUES:
            yield "it can reach too much"
        elif isinstance(value, torch.Tensor):
            if self._in_backward:
                yield "it reads a tensor of its surroundings"
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
        for base in type(value).__mro__[:-1]:
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
            elif name not in _PURE_BUILTINS:
                yield f"it calls {name}"
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            self._used.add(name)
            if name not in self._words and name not in self._known:
                yield f"it uses {name}"
        elif kind in _ALWAYS_EFFECTS or kind.startswith("FORMAT_"):
            yield f"it {_ALWAYS_EFFECTS.get(kind, 'makes a text')}"
        elif self._in_backward and (
            kind in ("STORE_SUBSCR", "DELETE_SUBSCR")
            or (kind == "STORE_DEREF" and name in code.co_freevars)
            or (kind == "BINARY_OP" and (instruction.arg or 0) >= _IN_PLACE)
        ):
            yield "it writes"


_ALWAYS_EFFECTS = {
    "STORE_ATTR": "assigns an attribute", "DELETE_ATTR": "deletes an attribute", "STORE_GLOBAL": "assigns a global",
    "DELETE_GLOBAL": "deletes a global", "IMPORT_NAME": "imports a module", "IMPORT_FROM": "imports a module",
}  # fmt: skip
_CONTAINERS = (list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict)
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
_PURE_TYPES = (torch.Tensor, torch.nn.Module, *_CONTAINERS, object)


def _method(value: Any, name: str) -> Any:
    return getattr(type(value), name, None)


def _is_pure_of_torch(function: Callable[..., Any]) -> bool:
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    is_functional = module in ("torch.nn.functional", "torch.functional", "torch._jit_internal")
    return is_functional and name in _TENSOR_WORDS - _TELLING


def _is_pure_of_library(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value in _PURE_MODULES
    if isinstance(value, type):
        return value in _PURE_TYPES
    name = value.__name__
    owner = getattr(value, "__self__", None)
    if owner is builtins:
        return name in _PURE_BUILTINS
    home = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None) or ""
    return home.startswith(("torch", "math", "_operator")) and name in _TENSOR_WORDS - _TELLING
