"""Modules among the arguments of an exported program, as pytree nodes of their parameters and buffers.

Before: ``model(x, head)``, where ``head`` is a module
After:  ``model(x, ModuleArgument(head))``: its leaves are ``head``'s tensors; unflattening returns a module over them
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


class ModuleArgument:
    """A module, seen as a container of its parameters and buffers."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


class _Names(tuple[str, ...]):
    """The names of a module's tensors, and the module itself; equal if the names are equal."""

    module: torch.nn.Module


def with_module_arguments(value: Any) -> Any:
    """``value`` with ``ModuleArgument`` around the modules in it; ``value`` itself where there are none."""
    if not any(isinstance(leaf, torch.nn.Module) for leaf in pytree.tree_leaves(value)):
        return value
    return pytree.tree_map(lambda leaf: ModuleArgument(leaf) if isinstance(leaf, torch.nn.Module) else leaf, value)


def _tensors(module: Any) -> dict[str, torch.Tensor]:
    if isinstance(module, dict):
        return module
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(module.named_buffers(remove_duplicate=False))


def _flatten(argument: Any) -> tuple[list[Any], _Names]:
    """Flatten a module argument, or what ``_unflatten`` returned for one."""
    module = argument.module if isinstance(argument, ModuleArgument) else argument
    tensors = _tensors(module)
    names = _Names(tensors)
    names.module = module
    return list(tensors.values()), names


def _flatten_with_keys(argument: Any) -> tuple[list[tuple[Any, Any]], _Names]:
    children, names = _flatten(argument)
    return [(pytree.MappingKey(name), child) for name, child in zip(names, children, strict=True)], names


def _unflatten(children: Iterable[Any], names: _Names) -> Any:
    values = dict(zip(names, children, strict=True))
    # A tree from a file has no module; its dict is only ever flattened again.
    module = getattr(names, "module", None)
    return values if module is None else module_over(module, values)


def module_over(module: torch.nn.Module, values: Mapping[str, Any]) -> Any:
    """A copy of the module over other tensors; the module itself is unchanged."""
    return _module_over(module, values, "", {})


def _module_over(module: Any, values: Mapping[str, Any], path: str, made: dict[int, Any]) -> Any:
    if id(module) in made:
        return made[id(module)]
    made[id(module)] = copy = module.__new__(type(module))
    copy.__dict__ = dict(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        own = getattr(module, kind)
        copy.__dict__[kind] = {name: values.get(f"{path}{name}", value) for name, value in own.items()}
    copy.__dict__["_modules"] = {
        name: child if child is None else _module_over(child, values, f"{path}{name}.", made)
        for name, child in module._modules.items()
    }
    return copy


pytree.register_pytree_node(
    ModuleArgument,
    _flatten,
    _unflatten,
    serialized_type_name="precast.ModuleArgument",
    flatten_with_keys_fn=_flatten_with_keys,
)
