"""Plain values as JSON, in files and in caches. Never imports torch.

Numbers, booleans, null and lists represent themselves; the rest is tagged: ``{"str": "x"}``, ``{"tuple": [1, 2]}``.
Bare text is a reference, for example to a node, where references are possible. For further kinds of values (torch's
dtypes, classes, …), make a codec with a table of them: ``graph.constants`` has torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from precast.artifact.schema import Json, brief, damaged
from precast.errors import ArtifactError, ExportError

MAX_DEPTH = 50
Reference = Callable[[object], str | None]
"""Returns the name of an object that is stored elsewhere, or ``None``."""
Resolve = Callable[[str], Any]
"""Returns the object that has a name."""


@dataclass(frozen=True)
class Named:
    """A value of torch's, represented by its name: ``dtype float32``. Equal to torch's own object of that name."""

    kind: str
    name: str

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Named):
            return (self.kind, self.name) == (other.kind, other.name)
        return type(other).__module__.partition(".")[0] == "torch" and str(other).removeprefix("torch.") == self.name

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        return self.name


def is_same_constant(expected: object, value: object) -> bool:
    """Whether a value equals the one that a program was captured with.

    True == 1 == 1.0 in Python, but not for the program; 0.0 and -0.0 differ too, but NaN equals itself.
    """
    if isinstance(expected, Named):
        return expected == value
    if type(value) is not type(expected):
        return False
    return repr(value) == repr(expected) if isinstance(value, float | complex) else bool(expected == value)


class Kind(NamedTuple):
    """Further kinds of values: their types, and the text or plain value that represents them."""

    types: tuple[type, ...]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    content: type = str


class ConstantCodec:
    """Writes and reads plain values, and those of further kinds by their tags; files can make it do nothing else."""

    def __init__(self, kinds: Mapping[str, Kind], tuples: tuple[type, ...] = (tuple,)):
        self.kinds, self._tuples = kinds, tuples

    def write(self, value: Any, reference: Reference = lambda value: None) -> Json:
        """The JSON form of a constant; ``reference`` names objects that are stored elsewhere."""
        if (name := reference(value)) is not None:
            return name
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, str):
            return {"str": value}
        if isinstance(value, list):
            return [self.write(item, reference) for item in value]
        if type(value) in self._tuples:
            return {"tuple": [self.write(item, reference) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.write(key), self.write(item, reference)] for key, item in value.items()]}
        if isinstance(value, slice):
            return {"slice": [self.write(part, reference) for part in (value.start, value.stop, value.step)]}
        return self._write_tagged(value, reference)

    def _write_tagged(self, value: Any, reference: Reference) -> Json:
        if isinstance(value, complex):
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if value is ...:
            return {"ellipsis": True}
        for tag, kind in self.kinds.items():
            if isinstance(value, kind.types):
                content = kind.write(value)
                return {tag: content if isinstance(content, str) else self.write(content, reference)}
        raise ExportError(
            f"A {type(value).__name__} cannot be saved.",
            why="a program's file holds tensors, numbers, text, containers of them, and torch's dtypes and devices",
            fix="Turn it into one of these, or keep it out of the arguments and results.",
        )

    def read(self, content: Json, resolve: Resolve | None = None, depth: int = 0) -> Any:
        """Read a value; ``resolve`` finds the object of a reference. Anything unknown means a damaged file."""
        if depth > MAX_DEPTH:
            raise damaged("a value is nested too deeply", f"more than {MAX_DEPTH} levels")
        if content is None or isinstance(content, bool | int | float):
            return content
        if isinstance(content, str):
            if resolve is None:
                raise damaged(f"a value refers to {content[:80]!r}", "nothing can be referred to here")
            return resolve(content)
        if isinstance(content, list):
            return [self.read(item, resolve, depth + 1) for item in content]
        if len(content) != 1:
            raise damaged("a value has no single tag", f"it is {brief(content)}")
        ((tag, inside),) = content.items()
        try:
            return self._read_tagged(tag, inside, resolve, depth + 1)
        except ArtifactError:
            raise
        except (ValueError, LookupError, RuntimeError, TypeError, OverflowError) as problem:
            raise damaged(f"the {tag[:80]} {brief(inside)!r} is unknown", str(problem)) from problem

    def _read_tagged(self, tag: str, inside: Any, resolve: Resolve | None, depth: int) -> Any:
        match tag, inside:
            case "str", str():
                return inside
            case "float", ("nan" | "inf" | "-inf"):
                return float(inside)
            case "bytes", str():
                return bytes.fromhex(inside)
            case "complex", [str(real), str(imaginary)]:
                return complex(float.fromhex(real), float.fromhex(imaginary))
            case "tuple", [*items]:
                return tuple(self.read(item, resolve, depth) for item in items)
            case "slice", [_, _, _]:
                return slice(*(self.read(part, resolve, depth) for part in inside))
            case "dict", [*pairs] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                return {self.read(key, None, depth): self.read(value, resolve, depth) for key, value in pairs}
            case "ellipsis", _:
                return ...
        kind = self.kinds.get(tag)
        value = inside if kind is None or isinstance(inside, str) else self.read(inside, resolve, depth)
        if kind is None or not isinstance(value, kind.content):
            raise damaged(f"a value has the tag {tag[:80]!r}", "no such kind of value is known")
        return kind.read(value)


def _named(kind: str, name: str) -> Named:
    if len(name) > 200:
        raise ValueError("that is not a known name")
    return Named(kind, name)


NAMED = ConstantCodec(
    {kind: Kind((), str, partial(_named, kind)) for kind in ("dtype", "layout", "format", "device", "operator")}
)
"""Represents torch's values by their names."""
