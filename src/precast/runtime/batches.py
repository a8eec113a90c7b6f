"""Batches out of files: ``.npz``, or folders of ``.npy`` and ``.npz``. Nothing in them is run.

Arrays that have one dimension more than the entry takes hold one batch after the other along their first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precast.artifact.calls import CallDescription, ConstantLeaf, TensorLeaf
from precast.errors import InputValueError
from precast.runtime.model import ModelEntry
from precast.runtime.trees import flatten, unflatten

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Batch:
    """One call's arguments, and what to call it in errors."""

    name: str
    arguments: tuple[Any, ...]
    arrays: Mapping[str, Array]

    def check_numbers(self) -> None:
        """Refuse a batch with numbers that are infinite or none."""
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                kind = "NaN" if np.isnan(array).any() else "infinite"
                raise InputValueError(
                    f"{self.name}: {name} has {kind} elements.",
                    why="a step on it would make all parameters so",
                    fix="Mend or leave out that batch.",
                )


class BatchFiles(Sequence[Batch]):
    """All batches of a file or folder, in order; read when asked for."""

    def __init__(self, path: Path, entry: ModelEntry) -> None:
        self._call, self._path = entry.call, path
        self._names = leaf_names(entry.call)
        self._parts = [_Part(file, arrays) for file, arrays in _files(path)]
        self._places = [(part, number) for part in self._parts for number in range(self._count(part))]
        if not self._places:
            raise InputValueError(
                f"There are no batches in {path}.", why="it holds no arrays", fix="Write them with numpy.savez."
            )

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        part, position = self._places[number]
        arrays = {
            name: array[position] if self._is_stacked(part) else array for name, array in self._ordered(part).items()
        }
        name = f"batch {position} of {part.name}" if self._is_stacked(part) else part.name
        return Batch(name, _arguments(self._call, list(arrays.values())), arrays)

    def _leaves(self) -> list[TensorLeaf]:
        return [leaf for leaf in self._call.leaves if isinstance(leaf, TensorLeaf)]

    def _count(self, part: _Part) -> int:
        if not self._is_stacked(part):
            return 1
        counts = {name: array.shape[0] for name, array in self._ordered(part).items()}
        if len(set(counts.values())) > 1:
            raise InputValueError(
                f"{part.name} has {' and '.join(f'{count} of {name}' for name, count in counts.items())}.",
                why="the first dimension of each array counts the batches",
                fix="Write as many of each.",
            )
        return next(iter(counts.values()), 0)

    def _is_stacked(self, part: _Part) -> bool:
        ordered = self._ordered(part).values()
        return all(array.ndim == len(leaf.shape) + 1 for array, leaf in zip(ordered, self._leaves(), strict=True))

    def _ordered(self, part: _Part) -> dict[str, Array]:
        """The arrays in the order of the entry's tensors: by their names, or as they come."""
        wanted = self._names
        if set(part.arrays) == set(wanted):
            return {name: part.arrays[name] for name in wanted}
        if len(part.arrays) != len(wanted) or (len(wanted) > 1 and not _are_numbered(part.arrays)):
            raise InputValueError(
                f"{part.name} holds {', '.join(part.arrays) or 'nothing'}.",
                why=f"the entry takes {', '.join(wanted)}",
                fix="Name the arrays so: numpy.savez(path, " + ", ".join(f"{name}=…" for name in wanted) + ").",
            )
        return dict(part.arrays)


@dataclass(frozen=True, eq=False)
class _Part:
    """Arrays that belong together."""

    name: str
    arrays: Mapping[str, Array]


def _are_numbered(arrays: Mapping[str, Array]) -> bool:
    """Whether numpy made up the names, so that the order is all there is."""
    return all(name.startswith("arr_") for name in arrays)


def _files(path: Path) -> Iterator[tuple[str, dict[str, Array]]]:
    if not path.is_dir():
        yield path.name, _read(path)
        return
    arrays = {file.stem: _read(file)[file.stem] for file in sorted(path.glob("*.npy"))}
    if arrays:
        yield path.name, arrays
    for file in sorted(path.glob("*.npz")):
        yield file.name, _read(file)


def _read(path: Path) -> dict[str, Array]:
    try:
        if path.suffix == ".npy":
            return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False)}
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, AttributeError) as problem:
        raise InputValueError(
            f"{path} cannot be read as batches.",
            why=str(problem),
            fix="Write it with numpy.savez(path, x=…, y=…), without objects.",
        ) from problem


def leaf_names(call: CallDescription) -> list[str]:
    """The names of a batch's tensors in files: ``x`` for ``batch["x"]``, ``1`` for ``batch[1]``, or ``batch``."""
    args, _ = unflatten(call.in_tree, iter(range(len(call.leaves))))
    positional, _ = call.in_tree.children
    paths = [path for path, _ in flatten(positional, tuple(args), "")]
    keys = [re.findall(r"[^\[\]'\"]+", path.partition("]")[2]) for path in paths]
    names = [".".join(key) or "batch" for key in keys]
    return [name for name, leaf in zip(names, call.leaves, strict=True) if isinstance(leaf, TensorLeaf)]


def _arguments(call: CallDescription, arrays: Sequence[Array]) -> tuple[Any, ...]:
    given = iter(arrays)
    leaves = [leaf.value if isinstance(leaf, ConstantLeaf) else next(given) for leaf in call.leaves]
    args, _ = unflatten(call.in_tree, iter(leaves))
    return tuple(args)
