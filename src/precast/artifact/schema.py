"""JSON checked against a table before anything uses it.

A shape is `Text`, `Count` or `Real` with limits, `ListOf`, `MapOf` for an object with free keys, `OneOf` for
alternatives, or a dict for an object with exactly these keys. They are named tuples, like most plain data here:
creating dataclasses would take a sixth of a small model's start.
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

from precast.errors import ArtifactError

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


class Text(NamedTuple):
    """A string that matches `pattern` as a whole."""

    pattern: str


class Count(NamedTuple):
    """An integer from 0 to `limit`."""

    limit: int = 2**62


class Real(NamedTuple):
    """A non-negative number, finite like all of JSON's."""


class MapOf(NamedTuple):
    """An object whose keys match `keys` and whose values have the shape `values`."""

    keys: Text
    values: Shape
    limit: int


class ListOf(NamedTuple):
    """A list of at most `limit` members."""

    members: Shape
    limit: int


class OneOf(NamedTuple):
    """Any of several shapes."""

    shapes: tuple[Shape, ...]


class Anything(NamedTuple):
    """Any value, for the parts of another version's file that are not read."""


class Nothing(NamedTuple):
    """``null``."""


ANYTHING, NOTHING = Anything(), Nothing()
_LARGEST = 10**300
"""Larger integers are not floats."""

Shape = Text | Count | Real | MapOf | ListOf | OneOf | Anything | Nothing | dict[str, "Shape"]


def damaged(what: str, why: str) -> ArtifactError:
    return ArtifactError(what, why=why, fix="get the file again from where it was made")


def brief(content: object) -> str:
    """An excerpt of some content, for a message; it may be nested too deeply to print."""
    try:
        return str(content)[:80]
    except RecursionError:
        return "something nested very deeply"


def parse_json(text: bytes | str, shape: Shape, *, name: str) -> Json:
    """Parse and check; any fault is an ``ArtifactError`` that names the place."""
    try:
        value: Json = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as problem:
        raise damaged(f"{name} is not valid JSON", str(problem) or type(problem).__name__) from problem
    check_shape(value, shape, name)
    return value


def check_shape(value: Json, shape: Shape, at: str) -> None:
    """Raise unless `value` has the shape; `at` is the path to it."""
    match shape:
        case Text(pattern):
            _require(isinstance(value, str) and re.fullmatch(pattern, value) is not None, at, f"text like {pattern}")
        case Count(limit):
            is_number = isinstance(value, int) and not isinstance(value, bool)
            _require(is_number and 0 <= value <= limit, at, f"a whole number up to {limit}")  # type: ignore[operator]
        case Real():
            is_real = isinstance(value, int | float) and not isinstance(value, bool)
            _require(is_real and 0 <= value <= _LARGEST, at, "a number, not negative")  # type: ignore[operator]
        case ListOf(members, limit):
            _require(isinstance(value, list) and len(value) <= limit, at, f"a list of at most {limit}")
            for position, member in enumerate(value):  # type: ignore[arg-type]
                check_shape(member, members, f"{at}[{position}]")
        case MapOf(keys, values, limit):
            _require(isinstance(value, dict) and len(value) <= limit, at, f"an object of at most {limit} keys")
            for key, member in value.items():  # type: ignore[union-attr]
                check_shape(key, keys, f"the keys of {at}")
                check_shape(member, values, f"{at}.{key}")
        case OneOf(shapes):
            _require(any(_fits(value, each) for each in shapes), at, "one of the allowed forms")
        case Anything():
            pass
        case Nothing():
            _require(value is None, at, "null")
        case _:
            _require(
                isinstance(value, dict) and set(value) == set(shape), at, f"an object with {', '.join(sorted(shape))}"
            )
            for key, member_shape in shape.items():
                check_shape(value[key], member_shape, f"{at}.{key}")  # type: ignore[index,call-overload]


def _fits(value: Json, shape: Shape) -> bool:
    try:
        check_shape(value, shape, "")
    except ArtifactError:
        return False
    return True


def _require(is_right: bool, at: str, expected: str) -> None:
    if not is_right:
        raise damaged(f"{at} is malformed", f"expected {expected}")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("an object has the same key twice")
    return keys


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")
