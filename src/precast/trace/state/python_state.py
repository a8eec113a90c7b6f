"""Watches the Python state around a traced call, and restores it.

A traced call runs once on fake tensors. What it assigns to module attributes, closure variables or containers in them
would remain there as fake tensors, and would not happen again when the graph runs. So all of it is restored, and
returned to the caller, who may repeat the writes after each call. If the caller does not, a tensor assigned to a buffer
becomes an update of that buffer, and any other tensor left in the state is an error.
"""

import dis
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch

from precast.errors import StateMutationError
from precast.trace.capture.module_state import root_modules
from precast.trace.executed_code import code_being_noted
from precast.trace.provenance import innermost_users_line, is_users_file
from precast.trace.state.places import Place, Sized
from precast.trace.state.reachable import join_path
from precast.trace.state.snapshot import StateSnapshot, Write, traced_tensors

_log = logging.getLogger("precast.capture")


@dataclass
class Written:
    """What a run wrote into Python state, and the places of all containers and objects that it found there."""

    homes: Mapping[int, Place]
    writes: list[Write] = field(default_factory=list)


@contextmanager
def watched_python_state(
    function: Callable[..., Any],
    update_buffer: Callable[[torch.Tensor, torch.Tensor], None],
    *,
    returns_writes: bool,
    allows_leaks: bool = False,
) -> Iterator[Written]:
    """Restore the state around ``function`` when the block ends.

    Afterwards, ``Written`` describes what was written. Without ``returns_writes``, ``update_buffer(old, new)`` is
    called for replaced buffers, and tensors left elsewhere are an error unless ``allows_leaks``.
    """
    modules = {
        id(m): (".".join(filter(None, (prefix, path))), m)
        for prefix, root in root_modules(function).items()
        for path, m in root.named_modules()
        if not isinstance(m, torch.jit.ScriptModule)  # whose state is not in Python
    }
    snapshot = StateSnapshot(function, code_being_noted())
    owned = [
        (path, held, dict(held)) for path, module in modules.values() for held in (module._parameters, module._modules)
    ]
    buffers = [(path, module._buffers, dict(module._buffers)) for path, module in modules.values()]
    if returns_writes:
        snapshot.add(Sized(path, held, bool, is_module=True) for path, held, _ in (*buffers, *owned))
    assigned_at: dict[str, str | None] = {}
    written = Written(snapshot.homes)
    try:
        with _noted_assignments({key: path for key, (path, _) in modules.items()}, assigned_at):
            yield written
        if not returns_writes:
            unset = list(_update_buffers(buffers, update_buffer))
            if unset:
                raise _leak_error(unset, assigned_at)
        written.homes, written.writes = snapshot.homes, snapshot.writes()
        leaks = (
            set()
            if returns_writes or allows_leaks
            else {each.path for each in written.writes if traced_tensors(each.values)}
        )
        if leaks:
            raise _leak_error(sorted(leaks), assigned_at)
        known = {id(each) for _, _, before in owned for each in before.values()} if returns_writes else set()
        exchanged = [
            join_path(path, name)
            for path, held, before in owned
            for name in _differing(held, before)
            if id(held.get(name)) not in known
        ]
        if exchanged:
            raise _exchange_error(exchanged, assigned_at)
    finally:
        for _, held, before in (*buffers, *owned):
            if _differing(held, before):
                held.clear()
                held.update(before)
        for path in snapshot.restore():
            _log.debug("%s changed while tracing", path)


def _update_buffers(
    buffers: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
    update_buffer: Callable[[torch.Tensor, torch.Tensor], None],
) -> Iterator[str]:
    """Update replaced buffers; yields the paths of those that were None before."""
    for path, held, before in buffers:
        for name, old in before.items():
            if isinstance(now := held.get(name), torch.Tensor) and now is not old:
                if old is None:
                    yield join_path(path, name)
                else:
                    update_buffer(old, now)


@contextmanager
def _noted_assignments(paths: dict[int, str], assigned_at: dict[str, str | None]) -> Iterator[None]:
    """Record the user's line of every attribute assignment, so that an error can name it."""
    thread = threading.get_ident()
    original = torch.nn.Module.__setattr__

    def noting(module: torch.nn.Module, name: str, value: Any) -> None:
        if threading.get_ident() == thread and id(module) in paths:
            path = paths[id(module)]
            assigned_at[f"{path}.{name}" if path else name] = innermost_users_line()
        original(module, name, value)

    with patch.object(torch.nn.Module, "__setattr__", noting):
        yield


def _line_naming(path: str) -> str | None:
    """The first line of the user's program that loads the last name in ``path``, or else an earlier name."""
    executed = code_being_noted()
    codes = [] if executed is None else [each.code for each in executed.seen.values()]
    own = [code for code in codes if is_users_file(code.co_filename)]
    for word in reversed(re.findall(r"[^\W\d]\w*", path)):
        for code in own:
            for line, instruction in _lines(code):
                if instruction.argval == word and instruction.opname.startswith("LOAD_"):
                    return f"{code.co_filename}:{line}, in {code.co_name}"
    return None


def _lines(code: CodeType) -> Iterator[tuple[int, dis.Instruction]]:
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None:
            line = instruction.positions.lineno or line
        yield line, instruction


def _differing(held: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The names whose values were added, removed or replaced."""
    return [name for name in dict.fromkeys((*before, *held)) if held.get(name) is not before.get(name)]


def _exchange_error(names: list[str], assigned_at: dict[str, str | None]) -> StateMutationError:
    places = [line for name in names if (line := assigned_at.get(name) or _line_naming(name))]
    return StateMutationError(
        f"The program replaces parameters or submodules: {', '.join(names)}.",
        at="; ".join(places) or None,
        why="a captured program has the modules and parameters that were there before",
        fix="Add, replace and remove them outside of the forward.",
    )


class StoredTensorError(StateMutationError):
    """A tensor would be left in Python state, which callers of the graph never see."""


def _leak_error(names: list[str], assigned_at: dict[str, str | None]) -> StoredTensorError:
    places = [line for name in names if (line := assigned_at.get(name) or _line_naming(name))]
    return StoredTensorError(
        f"The program stores a tensor in {', '.join(names)}.",
        at="; ".join(places) or None,
        why="the graph computes outputs only; Python state outside of it would keep a tensor without data",
        fix="Return the tensor, or register a buffer before tracing and update it with copy_(). precast.compile keeps "
        "such tensors where the program puts them.",
    )
