"""By which path a module is called, and for which time: one module may be reached by several paths.

``self.norm`` and ``self.layers[0]`` may be one object. Which of its names a call used is told by the attribute that was
read for it, else by where the caller is; a path that is called again counts its calls, as torch's keys do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

MAX_PATHS = 100_000
"""Modules that are shared in many places have many paths; beyond these, the first one stands for all."""


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
            # Made by the program itself: what it does is done by the module that made it.
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
        """Those of the paths that lead on from the module that runs; all, if none does."""
        start = f"{self.running[-1].path}." if self.running and self.running[-1].path else ""
        return [path for path in paths if path.startswith(start)] or paths

    def note_read(self, owner: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
        """Remember that an attribute was read, which is called next perhaps."""
        if len(self._paths.get(id(module), ())) > 1:
            home = self._below(self._paths.get(id(owner), [""]))[0]
            if self.running and self.running[-1].path in self._paths.get(id(owner), ()):
                home = self.running[-1].path
            self._read[id(module)] = f"{home}.{name}" if home else name

    @contextmanager
    def noting_reads(self) -> Iterator[None]:
        """While active, modules that are read off others are noted."""
        read: Any = torch.nn.Module.__getattr__

        def get(owner: torch.nn.Module, name: str) -> Any:
            value = read(owner, name)
            if isinstance(value, torch.nn.Module):
                self.note_read(owner, name, value)
            return value

        with patch.object(torch.nn.Module, "__getattr__", get):
            yield
