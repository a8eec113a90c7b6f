"""Reads batches from files: ``.npz``, or folders of ``.npy`` and ``.npz``. No code in them is executed.

Arrays with one dimension more than the entry's inputs hold a batch for each element of the first dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """One call's arguments, and its name in errors."""

    name: str
    arguments: tuple[Any, ...]
    arrays: Mapping[str, Array]


def check_finite(arrays: Iterable[tuple[str, Any]]) -> None:
    """Refuse a batch with infinite or NaN elements."""
    for path, array in arrays:
        if not _is_finite(array):
            kind = "NaN" if bool((array != array).any()) else "infinite"
            raise InputValueError(
                f"{path} has {kind} elements.",
                why="a step on it would spread them to all parameters",
                fix="Correct or leave out that batch.",
            )


def _is_finite(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return array.dtype.kind != "f" or bool(np.isfinite(array).all())
    # Tensors of torch tell it themselves.
    return not hasattr(array, "isfinite") or bool(array.isfinite().all())


class BatchFiles(Sequence[Batch]):
    """All batches of a file or folder, in order; read on demand."""

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
        """The arrays in the order of the entry's tensors: by name, or by position."""
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
    """The arrays of one file or batch."""

    name: str
    arrays: Mapping[str, Array]


def _are_numbered(arrays: Mapping[str, Array]) -> bool:
    """Whether numpy generated the names, so that only the order is known."""
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
            why=getattr(problem, "strerror", None) or "it is not a .npy or .npz file of numbers",
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
