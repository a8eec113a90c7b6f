"""Determines the path by which a module is called, and numbers its calls: a shared module has several paths.

``self.norm`` and ``self.layers[0]`` may be one object. The path of a call is that of the attribute that was read for
it, or else it is found from the calling module; repeated calls of a path are numbered, as in torch's keys.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

MAX_PATHS = 100_000
"""A module that is shared in many places has many paths; beyond this number, further ones are ignored."""


class ModuleCall(NamedTuple):
    """A running call: which one it is (``L__self__layers.0@1``), the module's path and its class."""

    key: str
    path: str
    kind: str


class ModulePaths:
    """The calls that run now, outermost first."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._paths: dict[int, list[str]] = {}
        self._calls: Counter[str] = Counter()
        self._read: dict[int, str] = {}
        self.running: list[ModuleCall] = []

    @contextmanager
    def called(self, module: torch.nn.Module) -> Iterator[None]:
        """While active, ``module`` runs."""
        if not self.running:
            self._find_paths(module)
        elif id(module) not in self._paths and id(module) not in self._names:
            # Created by the program itself: its nodes are attributed to the calling module.
            yield
            return
        path = self._path_of(module)
        number = self._calls[path]
        self._calls[path] += 1
        again = f"@{number}" if number else ""
        kind = type(module)
        self.running.append(ModuleCall(f"L__self__{path}{again}", path, f"{kind.__module__}.{kind.__qualname__}"))
        try:
            yield
        finally:
            self.running.pop()

    def _find_paths(self, root: torch.nn.Module) -> None:
        start = self._names.get(id(root), "")
        for number, (name, module) in enumerate(root.named_modules(prefix=start, remove_duplicate=False)):
            if number < MAX_PATHS:
                self._paths.setdefault(id(module), []).append(name)

    def _path_of(self, module: torch.nn.Module) -> str:
        known = self._paths.get(id(module)) or [self._names.get(id(module), "")]
        if len(known) == 1:
            return known[0]
        below = self._below(known)
        read = self._read.pop(id(module), None)
        return read if read in below else min(below, key=lambda path: (path.count("."), self._calls[path]))

    def _below(self, paths: list[str]) -> list[str]:
        """The paths below the running module; all, if there are none."""
        start = f"{self.running[-1].path}." if self.running and self.running[-1].path else ""
        return [path for path in paths if path.startswith(start)] or paths

    def note_read(self, owner: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
        """Record that a module was read from an attribute, since it may be called next."""
        if len(self._paths.get(id(module), ())) > 1:
            home = self._below(self._paths.get(id(owner), [""]))[0]
            if self.running and self.running[-1].path in self._paths.get(id(owner), ()):
                home = self.running[-1].path
            self._read[id(module)] = f"{home}.{name}" if home else name

    @contextmanager
    def noting_reads(self) -> Iterator[None]:
        """While active, record modules that are read from attributes."""
        read: Any = torch.nn.Module.__getattr__

        def get(owner: torch.nn.Module, name: str) -> Any:
            value = read(owner, name)
            if isinstance(value, torch.nn.Module):
                self.note_read(owner, name, value)
            return value

        with patch.object(torch.nn.Module, "__getattr__", get):
            yield
