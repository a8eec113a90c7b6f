"""A program while it is made: every step is run eagerly at once, so that shapes and types are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from tests.fuzz.programs import Code, Leaf, Name, Step

LARGEST = 5000
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 17)
FLOATS = ("float32", "float64", "bfloat16", "float16")

Family = Callable[["Draft", Name], None]
FAMILIES: dict[Family, float] = {}
"""How often each family of steps is drawn."""


def family(weight: float) -> Callable[[Family], Family]:
    """Make the decorated function one of the families; it adds steps that begin with the value it is given."""

    def register(function: Family) -> Family:
        assert function not in FAMILIES
        FAMILIES[function] = weight
        return function

    return register


class NotTakenError(Exception):
    """Eager refuses the step, or its result is too large to go on with."""


@dataclass
class Draft:
    choose: random.Random
    dtype: str = "float32"
    leaves: list[Leaf] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """All that later steps may read, in order."""
    state: SimpleNamespace = field(default_factory=SimpleNamespace)
    count: int = 0

    def leaf(self, *shape: int, kind: str = "parameter", **facts: Any) -> Name:
        """A new tensor to begin with; one that has no scale is scaled so that products keep their magnitude."""
        facts.setdefault("dtype", self.dtype)
        facts.setdefault("scale", round(1 / math.sqrt(max(math.prod(shape[1:]), 1)), 3) if kind == "parameter" else 1.0)
        prefix = {"input": "x", "parameter": "w", "buffer": "b", "constant": "c"}[kind]
        leaf = Leaf(f"{prefix}{self.fresh()}", kind, tuple(shape), **facts)  # type: ignore[arg-type]
        value = eval(leaf.expression, {"torch": torch})
        self.leaves.append(leaf)
        if kind == "input":
            self.values[leaf.name] = value
        else:
            setattr(self.state, leaf.name, value)
        return Name(leaf.reference)

    def add(self, function: str, *operands: Any, results: int = 1, **keywords: Any) -> Any:
        """Add a step; the name of its result, or a tuple of names if there are several."""
        names = tuple(f"v{self.fresh()}" for _ in range(results))
        step = Step(names, function, operands, tuple(keywords.items()))
        found = {"torch": torch, "F": F, "math": math, "self": self.state, **self.values}
        try:
            if results:
                value = eval(step.expression, found)
            else:
                exec(step.expression, found)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            raise NotTakenError(str(error)) from None
        self.steps.append(step)
        if not results:
            return None
        values = value if isinstance(value, tuple | list) else (value,)
        if len(values) != results or any(each.numel() > LARGEST or each.dim() > 6 for each in values):
            raise NotTakenError(f"{results} results of at most {LARGEST} elements")
        self.values.update(zip(names, values, strict=True))
        return Name(names[0]) if results == 1 else tuple(map(Name, names))

    def fresh(self) -> int:
        self.count += 1
        return self.count - 1

    def value(self, name: Name) -> torch.Tensor:
        if name.text.startswith("self."):
            found: torch.Tensor = getattr(self.state, name.text.removeprefix("self."))
            return found
        tensor: torch.Tensor = self.values[name.text]
        return tensor

    def shape(self, name: Name) -> tuple[int, ...]:
        return tuple(self.value(name).shape)

    def dtype_of(self, name: Name) -> str:
        return str(self.value(name).dtype).removeprefix("torch.")

    def is_float(self, name: Name) -> bool:
        return self.dtype_of(name) in FLOATS

    def floating(self, name: Name) -> Name:
        """The value, made a float if it is none."""
        return name if self.is_float(name) else self.add(".to", name, Code(f"torch.{self.dtype}"))

    def earlier(self, *, last: int | None = None) -> Name:
        """Some value, mostly one of the last, so that long chains come about."""
        names = [name for name, value in self.values.items() if isinstance(value, torch.Tensor)]
        if last is not None or self.choose.random() < 0.8:
            names = names[-(last or 3) :]
        return Name(self.choose.choice(names))

    def with_rank(self, name: Name, rank: int) -> Name:
        """The value with that many dimensions, by views."""
        shape = self.shape(name)
        while len(shape) < rank:
            name = self.add(".unsqueeze", name, self.choose.choice([0, -1]))
            shape = self.shape(name)
        while len(shape) > rank:
            name = self.add(".flatten", name, 0, 1)
            shape = self.shape(name)
        return name

    def dim(self, name: Name) -> int:
        rank = len(self.shape(name))
        if rank == 0:
            raise NotTakenError("a number has no dimensions")
        return self.choose.randrange(-rank, rank) if self.choose.random() < 0.5 else -1

    def matching(self, name: Name, *shape: int, kind: str = "parameter", **facts: Any) -> Name:
        """A new tensor of the same type as the value."""
        return self.leaf(*shape, kind=kind, dtype=self.dtype_of(name), **facts)

    def maybe(self, chance: float = 0.5) -> bool:
        return self.choose.random() < chance

    def one_of(self, *choices: Any) -> Any:
        return self.choose.choice(choices)
