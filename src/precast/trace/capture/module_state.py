"""Finds the tensors that a callable owns, without running it: parameters and buffers of its modules."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from precast.graph.signature import InputKind


@dataclass(frozen=True, eq=False)
class StateTensor:
    """A tensor that outlives a call, with its name in its owner."""

    target: str
    kind: InputKind
    tensor: torch.Tensor
    persistent: bool | None = None


class WithModules:
    """A function with those of its arguments bound that are modules, by position or by name."""

    def __init__(self, function: Callable[..., Any], modules: Mapping[int | str, torch.nn.Module]) -> None:
        self.function, self.modules = function, modules
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for place, module in self.modules.items():
            if isinstance(place, int):
                given.insert(place, module)
            else:
                kwargs[place] = module
        return self.function(*given, **kwargs)


def root_modules(function: Callable[..., Any]) -> dict[str, torch.nn.Module]:
    """The modules that a callable is, is bound to, or closes over, by the prefix of their state's names."""
    if isinstance(function, torch.nn.Module):
        return {"": function}
    if isinstance(function, partial):
        held = {f"argument{i}": value for i, value in enumerate(function.args)} | function.keywords
        return root_modules(function.func) | _modules_in(held)
    if isinstance(function, WithModules):
        return root_modules(function.function) | {f"argument_{place}": each for place, each in function.modules.items()}
    if isinstance(function, MethodType):
        owner = function.__self__
        return {"": owner} if isinstance(owner, torch.nn.Module) else root_modules(function.__func__)
    if isinstance(function, FunctionType):
        return _modules_in(closure_variables(function))
    return {}


def closure_variables(function: FunctionType) -> dict[str, Any]:
    """The current values of the function's free variables; unbound ones are left out."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _modules_in(values: dict[str, Any]) -> dict[str, torch.nn.Module]:
    return {name: value for name, value in values.items() if isinstance(value, torch.nn.Module)}


def module_names(roots: dict[str, torch.nn.Module]) -> dict[int, str]:
    """The dotted path of every submodule, by its id; for a shared one, its first path."""
    names: dict[int, str] = {}
    for prefix, root in roots.items():
        for path, module in root.named_modules():
            names.setdefault(id(module), _join(prefix, path))
    return names


def module_state(roots: dict[str, torch.nn.Module]) -> list[StateTensor]:
    """Parameters, then buffers, each tensor once under its first name."""
    found: dict[int, StateTensor] = {}
    for state in (*_parameters(roots), *_buffers(roots)):
        found.setdefault(id(state.tensor), state)
    return list(found.values())


def _parameters(roots: dict[str, torch.nn.Module]) -> Iterator[StateTensor]:
    for prefix, root in roots.items():
        for name, parameter in root.named_parameters():
            yield StateTensor(_join(prefix, name), InputKind.PARAMETER, parameter)


def _buffers(roots: dict[str, torch.nn.Module]) -> Iterator[StateTensor]:
    for prefix, root in roots.items():
        for path, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    persistent = name not in module._non_persistent_buffers_set
                    yield StateTensor(_join(prefix, path, name), InputKind.BUFFER, buffer, persistent)


def unsaved_tensors(roots: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that no ``state_dict`` has: non-persistent buffers, and plain attributes of modules."""
    for prefix, root in roots.items():
        for path, module in root.named_modules():
            buffers = {name: module._buffers.get(name) for name in module._non_persistent_buffers_set}
            for name, value in (*buffers.items(), *vars(module).items()):
                if isinstance(value, torch.Tensor):
                    yield _join(prefix, path, name), value


def constant_names(roots: dict[str, torch.nn.Module], function: Callable[..., Any]) -> dict[int, str]:
    """Names for tensors that are neither parameters nor buffers: plain attributes and closure variables, by id."""
    names: dict[int, str] = {}
    for prefix, root in roots.items():
        for path, module in root.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    names.setdefault(id(value), _join(prefix, path, name))
    if isinstance(function, FunctionType):
        variables = closure_variables(function)
        variables |= {name: function.__globals__.get(name) for name in _global_names(function.__code__)}
        names |= {id(value): name for name, value in variables.items() if isinstance(value, torch.Tensor)}
    return names


def _global_names(code: CodeType) -> set[str]:
    """The globals that a function and its nested functions may refer to."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for nested in inner for name in _global_names(nested))}


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
