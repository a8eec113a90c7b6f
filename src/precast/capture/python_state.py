"""Watches the Python state around a traced call, and puts it back.

A traced call runs once on fake tensors. What it assigns to module attributes, closure variables or containers in them
would stay behind as fake tensors, and would not happen again when the graph runs. So: a tensor assigned to a buffer
becomes an update of that buffer, any other tensor left behind is an error, and all else is restored.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

from precast.capture.module_state import root_modules
from precast.errors import StateMutationError
from precast.tracing.captured_tensors import is_real_tensor
from precast.tracing.provenance import innermost_users_line

_log = logging.getLogger("precast.capture")
_CONTAINERS = (list, dict, set)
_MISSING = object()


@dataclass
class Slot:
    """One place that holds Python state: a module's attribute or buffer, or a closure variable."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    before: Any
    contents: Any = field(init=False)

    def __post_init__(self) -> None:
        self.contents = self.before.copy() if type(self.before) in _CONTAINERS else None

    def left_behind(self) -> list[torch.Tensor]:
        """Traced tensors that are in this slot now."""
        now = self.read()
        same = now is self.before and (self.contents is None or _same_items(now, self.contents))
        return [] if same or now is _MISSING else _traced_tensors(now)

    def restore(self) -> bool:
        """Put back what was there; tells whether anything had changed."""
        changed = self.contents is not None and not _same_items(self.before, self.contents)
        if changed:
            _refill(self.before, self.contents)
        if self.read() is not self.before:
            self.write(self.before)
            changed = True
        return changed


@contextmanager
def watched_python_state(
    function: Callable[..., Any], update_buffer: Callable[[torch.Tensor, torch.Tensor], None]
) -> Iterator[None]:
    """Restore the state around ``function`` when the block ends; ``update_buffer(old, new)`` records assignments."""
    roots = root_modules(function)
    modules = {
        id(m): (".".join(filter(None, (prefix, path))), m)
        for prefix, root in roots.items()
        for path, m in root.named_modules()
    }
    attributes = [slot for path, module in modules.values() for slot in _attribute_slots(module, path)]
    attributes += _closure_slots(function)
    buffers = [slot for path, module in modules.values() for slot in _buffer_slots(module, path)]
    known = {id(module): set(vars(module)) for _, module in modules.values()}
    assigned_at: dict[str, str | None] = {}
    try:
        with _noted_assignments({key: path for key, (path, _) in modules.items()}, assigned_at):
            yield
        for slot in buffers:
            now = slot.read()
            if now is not slot.before and isinstance(now, torch.Tensor):
                update_buffer(slot.before, now)
        leaks = {slot.name for slot in attributes if slot.left_behind()} | set(_new_leaks(modules, known))
        if leaks:
            raise _leak_error(sorted(leaks), assigned_at)
    finally:
        for slot in (*buffers, *attributes):
            if slot.restore() and slot not in buffers:
                _log.info("%s changed while tracing; compiled calls will not repeat that", slot.name)
        for _, module in modules.values():
            for name in set(vars(module)) - known[id(module)]:
                delattr(module, name)


def _attribute_slots(module: torch.nn.Module, path: str) -> Iterator[Slot]:
    for name, value in vars(module).items():
        if name in ("_parameters", "_modules", "_buffers"):
            continue
        yield Slot(
            f"{path}.{name}" if path else name,
            lambda module=module, name=name: vars(module).get(name, _MISSING),  # type: ignore[misc]
            lambda value, module=module, name=name: module.__dict__.__setitem__(name, value),  # type: ignore[misc]
            value,
        )


def _buffer_slots(module: torch.nn.Module, path: str) -> Iterator[Slot]:
    for name, value in module._buffers.items():
        yield Slot(
            f"{path}.{name}" if path else name,
            lambda module=module, name=name: module._buffers.get(name, _MISSING),  # type: ignore[misc]
            lambda value, module=module, name=name: module._buffers.__setitem__(name, value),  # type: ignore[misc]
            value,
        )


def _closure_slots(function: Callable[..., Any]) -> Iterator[Slot]:
    if not isinstance(function, FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield Slot(
            f"the variable {name}",
            lambda cell=cell: cell.cell_contents,  # type: ignore[misc]
            lambda value, cell=cell: setattr(cell, "cell_contents", value),  # type: ignore[misc]
            value,
        )


def _new_leaks(modules: dict[int, tuple[str, torch.nn.Module]], known: dict[int, set[str]]) -> Iterator[str]:
    for path, module in modules.values():
        for name in set(vars(module)) - known[id(module)]:
            if _traced_tensors(vars(module)[name]):
                yield f"{path}.{name}" if path else name


@contextmanager
def _noted_assignments(paths: dict[int, str], assigned_at: dict[str, str | None]) -> Iterator[None]:
    """Note the user's line of every attribute assignment, so that an error can name it."""
    thread = threading.get_ident()
    original = torch.nn.Module.__setattr__

    def noting(module: torch.nn.Module, name: str, value: Any) -> None:
        if threading.get_ident() == thread and id(module) in paths:
            path = paths[id(module)]
            assigned_at[f"{path}.{name}" if path else name] = innermost_users_line()
        original(module, name, value)

    with patch.object(torch.nn.Module, "__setattr__", noting):
        yield


def _leak_error(names: list[str], assigned_at: dict[str, str | None]) -> StateMutationError:
    places = [line for name in names if (line := assigned_at.get(name))]
    return StateMutationError(
        f"The program stores a tensor in {', '.join(names)}.",
        at="; ".join(places) or None,
        why="the graph computes outputs only; Python state outside of it would keep a tensor without data",
        fix="Return the tensor, or register a buffer before tracing and update it with copy_().",
    )


def _traced_tensors(value: Any) -> list[torch.Tensor]:
    leaves = list(value) if isinstance(value, set) else pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not is_real_tensor(leaf)]


def _same_items(container: Any, contents: Any) -> bool:
    if len(container) != len(contents):
        return False
    if isinstance(container, set):
        return bool(container == contents)
    left = container.values() if isinstance(container, dict) else container
    right = contents.values() if isinstance(container, dict) else contents
    return all(a is b for a, b in zip(left, right, strict=True))


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)
