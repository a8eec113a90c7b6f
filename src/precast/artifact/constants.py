"""Plain values as they stand in files, read without torch. The form is that of ``precast.export``.

Numbers, booleans, null and lists stand for themselves; the rest is tagged: ``{"str": "x"}``, ``{"tuple": [1, 2]}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from precast.artifact.schema import Json, brief, damaged

MAX_DEPTH = 50
_NAMED = ("dtype", "layout", "format", "device", "operator")


@dataclass(frozen=True)
class Named:
    """Something of torch's that only has a name here: ``dtype float32``. Equal to torch's own object of that name."""

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
    """Whether a value is the one that a program was captured with.

    True == 1 == 1.0 for Python, but not for the program; nor are 0.0 and -0.0 one number, but NaN is itself.
    """
    if isinstance(expected, Named):
        return expected == value
    if type(value) is not type(expected):
        return False
    return repr(value) == repr(expected) if isinstance(value, float | complex) else bool(expected == value)


def read_constant(content: Json, depth: int = 0) -> Any:
    """The value; whatever is unknown in it is a damaged file."""
    if depth > MAX_DEPTH:
        raise damaged("a value is nested too deeply", f"more than {MAX_DEPTH} levels")
    if content is None or isinstance(content, bool | int | float):
        return content
    if isinstance(content, list):
        return [read_constant(item, depth + 1) for item in content]
    if not isinstance(content, dict) or len(content) != 1:
        raise damaged("a value is not as it should be", f"it is {brief(content)}")
    ((tag, inside),) = content.items()
    if isinstance(inside, list):
        return _container(tag, inside, depth)
    return _tagged(tag, inside)


def _container(tag: str, inside: list[Json], depth: int) -> Any:
    if tag == "complex":
        real, imaginary = (_number_from_text(part) for part in [*inside, None, None][:2])
        return complex(real, imaginary)
    if tag == "dict":
        pairs = [item for item in inside if isinstance(item, list) and len(item) == 2]
        if len(pairs) == len(inside):
            return {_key(read_constant(key, depth + 1)): read_constant(value, depth + 1) for key, value in pairs}
    items = [read_constant(item, depth + 1) for item in inside]
    if tag == "tuple":
        return tuple(items)
    if tag == "slice" and len(items) == 3:
        return slice(*items)
    raise damaged(f"a value has the tag {tag[:80]!r}", "no such kind of value is known")


def _key(key: Any) -> Any:
    try:
        hash(key)
    except TypeError as problem:
        raise damaged("a dict has a key that cannot be one", str(problem)) from problem
    return key


def _number_from_text(text: Json) -> float:
    try:
        return float.fromhex(text) if isinstance(text, str) else float("nan")
    except (ValueError, OverflowError) as problem:
        raise damaged(f"{str(text)[:80]!r} is no number", str(problem)) from problem


def _tagged(tag: str, inside: Json) -> Any:
    if tag == "ellipsis":
        return ...
    if isinstance(inside, str):
        if tag == "str":
            return inside
        if tag == "float" and inside in ("nan", "inf", "-inf"):
            return float(inside)
        if tag == "bytes":
            try:
                return bytes.fromhex(inside)
            except ValueError as problem:
                raise damaged("bytes are not as they should be", str(problem)) from problem
        if tag in _NAMED and len(inside) <= 200:
            return Named(tag, inside)
    raise damaged(f"a value has the tag {tag[:80]!r}", "no such kind of value is known")
