"""Programs as plain data: tensors to begin with, steps over named values, and the Python text that they are.

    Program(leaves=(Leaf("x0", "input", (2, 4)),), steps=(Step(("v0",), "F.relu", (Name("x0"),)),), outputs=("v0",))

is, as text::

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, x0):
            v0 = F.relu(x0)
            return (v0,)

    def inputs():
        return [torch.randn((2, 4))]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F

Kind = Literal["input", "parameter", "buffer", "constant"]
Layout = Literal["contiguous", "channels_last", "transposed", "sliced", "expanded"]
INTEGERS = ("int64", "int32", "int16", "uint8", "bool")
PREFIX = ("~",)
INFIX = ("+", "-", "*", "**", "/", "//", "%", "@", ">", "<", ">=", "<=", "==", "!=", "&", "|", "^", "<<", ">>")


class Compact:
    """Shows a dataclass as the call that makes it, without what is so by default."""

    def __repr__(self) -> str:
        values = [(each, getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        shown = [repr(value) if each.default is MISSING else f"{each.name}={value!r}"
                 for each, value in values if value != each.default]  # fmt: skip
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Name(Compact):
    """An argument that is a value of the program."""

    text: str


@dataclass(frozen=True, repr=False)
class Code(Compact):
    """An argument that is written as it stands: ``torch.float32``."""

    text: str


@dataclass(frozen=True, repr=False)
class Leaf(Compact):
    """A tensor that the program begins with; `high` bounds the numbers of one that holds integers."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    high: int = 4
    layout: Layout = "contiguous"
    grows: bool = False
    """Whether the first dimension is the one that changes from call to call."""

    @property
    def reference(self) -> str:
        return self.name if self.kind == "input" else f"self.{self.name}"

    @property
    def expression(self) -> str:
        shape, view = self.shape, ""
        match self.layout:
            case "channels_last":
                view = f".to(memory_format=torch.channels_last{'_3d' if len(shape) == 5 else ''})"
            case "transposed":
                shape, view = (*shape[:-2], shape[-1], shape[-2]), ".mT"
            case "sliced":
                shape, view = (*shape[:-1], 2 * shape[-1]), "[..., ::2]"
            case "expanded":
                shape, view = (1, *shape[1:]), f".expand{shape}"
        if self.dtype in INTEGERS:
            made = f"torch.randint(0, {max(self.high, 1)}, {shape})"
            made += "" if self.dtype == "int64" else f".to(torch.{self.dtype})"
        else:
            made = f"torch.randn({shape})" + ("" if self.scale == 1 else f".mul({self.scale})")
            made += "" if self.dtype == "float32" else f".to(torch.{self.dtype})"
        return made + view


@dataclass(frozen=True, repr=False)
class Step(Compact):
    """One line: ``results = function(operands)``; without results it is run for its effect.

    A function that begins with a dot is a method of the first operand; ``[]`` takes a part, ``[]=`` writes one. An
    operand that is a step is a call in the same line.
    """

    results: tuple[str, ...]
    function: str
    operands: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def expression(self) -> str:
        first, *others = map(written, self.operands)
        named = [f"{name}={written(value)}" for name, value in self.keywords]
        if self.function in PREFIX:
            return f"{self.function}{first}"
        if self.function in INFIX:
            return f"{first} {self.function} {others[0]}"
        if self.function == "[]":
            return f"{first}[{', '.join(others)}]"
        if self.function == "[]=":
            return f"{first}[{', '.join(others[:-1])}] = {others[-1]}"
        if self.function.startswith("."):
            return f"{first}{self.function}({', '.join([*others, *named])})"
        return f"{self.function}({', '.join([first, *others, *named])})"

    @property
    def reads(self) -> tuple[str, ...]:
        """The values among its arguments."""
        return tuple(names_in((self.operands, tuple(value for _, value in self.keywords))))


@dataclass(frozen=True, repr=False)
class Program(Compact):
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    other_size: int | None = None
    """What the size that grows is in a second call."""

    @property
    def inputs(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "input")

    def grown(self) -> Program:
        """The program as its second call finds it."""
        assert self.other_size is not None
        leaves = (
            replace(each, shape=(self.other_size, *each.shape[1:])) if each.grows else each for each in self.leaves
        )
        return replace(self, leaves=tuple(leaves), other_size=None)

    def text(self, *, is_watched: bool = False, is_exact: bool = False) -> str:
        """A module and a function that makes its inputs.

        Watched, each result goes through ``watch(names, value)``; exact, all numbers are float64 but those it
        begins with.
        """
        exact = ".double()" if is_exact else ""
        made = {each.name: each.expression + ("" if each.dtype in INTEGERS else exact) for each in self.leaves}
        state = [_state_line(each, made[each.name]) for each in self.leaves if each.kind != "input"]
        body = [_line(step, is_watched, is_exact) for step in self.steps]
        lines = [
            "class Program(torch.nn.Module):",
            *(["    def __init__(self):", "        super().__init__()", *state, ""] if state else []),
            f"    def forward({', '.join(['self', *(each.name for each in self.inputs)])}):",
            *(f"        {line}" for line in body),
            f"        return ({', '.join(self.outputs)},)",
            "",
            "",
            "def inputs():",
            f"    return [{', '.join(made[each.name] for each in self.inputs)}]",
        ]
        return "\n".join(lines)

    def made(
        self, seed: int, *, watch: Callable[[str, Any], Any] | None = None, is_exact: bool = False
    ) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        """The module, and inputs for it; of one seed, always of the same numbers."""
        names: dict[str, Any] = {"torch": torch, "F": F, "math": math, "watch": watch}
        exec(self.text(is_watched=watch is not None, is_exact=is_exact), names)
        torch.manual_seed(seed)
        return names["Program"](), names["inputs"]()


def _state_line(leaf: Leaf, made: str) -> str:
    match leaf.kind:
        case "parameter" if leaf.dtype not in INTEGERS:
            return f"        self.{leaf.name} = torch.nn.Parameter({made})"
        case "buffer":
            return f'        self.register_buffer("{leaf.name}", {made})'
    return f"        self.{leaf.name} = {made}"


def _line(step: Step, is_watched: bool, is_exact: bool) -> str:
    expression = step.expression
    if is_exact:
        for coarse in ("float32", "bfloat16", "float16"):
            expression = expression.replace(f"torch.{coarse}", "torch.float64")
    if not step.results:
        return expression
    results = ", ".join(step.results)
    return f'{results} = watch("{results}", {expression})' if is_watched else f"{results} = {expression}"


def written(argument: Any) -> str:
    """An argument as Python text."""
    match argument:
        case Name(text) | Code(text):
            return text
        case Step():
            return f"({argument.expression})"
        case slice(start=start, stop=stop, step=step):
            ends = ["" if end is None else str(end) for end in (start, stop)]
            return ":".join([*ends, *([] if step is None else [str(step)])])
        case list():
            return f"[{', '.join(map(written, argument))}]"
        case tuple():
            return f"({', '.join(map(written, argument))}{',' if len(argument) == 1 else ''})"
    return "..." if argument is Ellipsis else repr(argument)


def names_in(argument: Any) -> Iterator[str]:
    """The values that an argument speaks of."""
    if isinstance(argument, Name):
        yield argument.text
    elif isinstance(argument, Step):
        yield from argument.reads
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from names_in(each)


def renamed(argument: Any, names: Mapping[str, str]) -> Any:
    """The argument with other values in place of these."""
    if isinstance(argument, Name):
        return Name(names.get(argument.text, argument.text))
    if isinstance(argument, Step):
        return replace(argument, operands=renamed(argument.operands, names))
    if isinstance(argument, tuple | list):
        return type(argument)(renamed(each, names) for each in argument)
    return argument
