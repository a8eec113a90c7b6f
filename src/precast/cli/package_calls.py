"""Calls an entry of a ``.precast`` file from the command line: with arrays from files, or with its own sample."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from precast.artifact.calls import CallDescription, ConstantLeaf, TensorLeaf
from precast.artifact.manifest import PackedEntry
from precast.artifact.package import SAMPLES, Package
from precast.artifact.weights import Weight
from precast.cli.progress import counted
from precast.errors import InputValueError
from precast.runtime import Model
from precast.runtime.trees import unflatten

Array = numpy.ndarray[Any, Any]
Call = Callable[[], Any]


def packed_entry(package: Package, name: str | None) -> PackedEntry:
    """The entry of that name; by default ``forward``, or the first."""
    entries = {entry.name: entry for entry in package.manifest.entries}
    if not entries:
        raise InputValueError(
            "the file has no entry to call",
            why="it is an exported program, not a package",
            fix="make one from it: precast package program.pt2 -o model.precast",
        )
    chosen = name or ("forward" if "forward" in entries else next(iter(entries)))
    if chosen not in entries:
        raise InputValueError(
            f"the file has no entry {chosen!r}", why=f"its entries are {', '.join(entries)}", fix="name one of these"
        )
    return entries[chosen]


def call_with_arrays(model: Model, entry: PackedEntry, arrays: Sequence[Array]) -> Call:
    """A call in the original signature; arrays are its tensors, in order."""
    callee: Any = model[entry.name]
    if entry.call is None:
        return lambda: callee(*arrays)
    args, kwargs = arguments_of(entry.call, arrays)
    return lambda: callee(*args, **kwargs)


def arguments_of(call: CallDescription, arrays: Sequence[Array]) -> tuple[Any, Any]:
    """Arguments with these arrays as tensors, and the captured values for everything else."""
    wanted = sum(isinstance(leaf, TensorLeaf) for leaf in call.leaves)
    if len(arrays) != wanted:
        raise InputValueError(
            f"the entry takes {counted(wanted, 'tensor')}, got {len(arrays)}",
            why="every tensor of the original call needs an array",
            fix="`precast inspect` lists them",
        )
    return tuple(unflatten(call.in_tree, _leaves(call, iter(arrays))))


def _leaves(call: CallDescription, arrays: Iterator[Array]) -> Iterator[Any]:
    for leaf in call.leaves:
        match leaf:
            case TensorLeaf():
                yield next(arrays)
            case ConstantLeaf(value):
                yield value
            case _:
                raise InputValueError(
                    "this entry takes a size as an argument of its own",
                    why="the command line can pass tensors only",
                    fix="call it from Python: precast.runtime.load(file)(…)",
                )


def call_with_sample(model: Model, package: Package, entry: PackedEntry) -> Call:
    """A call with the first sample in the file."""
    if not entry.samples:
        raise InputValueError(
            f"the entry {entry.name!r} has no sample to run",
            why="it was packaged with samples=False",
            fix="pass arrays: --input x.npy, once for each tensor",
        )
    stored = package.tensors(SAMPLES)
    inputs = [
        Weight("i64", numpy.asarray(each, numpy.int64)) if isinstance(each, int) else stored[each]
        for each in entry.samples[0].inputs
    ]
    callee: Any = model[entry.name]
    runnable = callee if entry.call is None else callee.runnable
    names = [each.name for each in entry.interface.outputs]
    return lambda: dict(zip(names, runnable.run_bits(inputs), strict=True))


def read_arrays(files: Sequence[Path]) -> list[Array]:
    """The arrays of ``.npy`` and ``.npz`` files, in order. No code in them is executed."""
    arrays: list[Array] = []
    for file in files:
        try:
            content = numpy.load(file, allow_pickle=False)
            arrays += [content] if isinstance(content, numpy.ndarray) else [content[name] for name in content.files]
        except (ValueError, EOFError, OSError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else None
            raise InputValueError(
                f"{file} cannot be read",
                why=why or "it is not a .npy or .npz file of numbers",
                fix="check the path; numpy.save and numpy.savez write such files",
            ) from problem
    return arrays


def named_arrays(result: Any, path: tuple[str, ...] = ()) -> dict[str, Array]:
    """The arrays in a result of any structure, each named after its path: ``logits``, ``output_0``."""
    if isinstance(result, Weight):
        return {_name(path): result.carrier}
    if isinstance(result, Mapping):
        parts = result.items()
    elif isinstance(result, tuple | list):
        parts = dict(enumerate(result)).items()
    elif hasattr(result, "keys"):
        parts = {key: result[key] for key in result.keys()}.items()  # noqa: SIM118
    else:
        return {} if result is None else {_name(path): numpy.asarray(result)}
    found: dict[str, Array] = {}
    for key, value in parts:
        found |= named_arrays(value, (*path, str(key)))
    return found


def _name(path: tuple[str, ...]) -> str:
    return "_".join(path if path and not path[0].isdigit() else ("output", *path))
