"""Small modules as real projects write them, made of habits by a seed, and the calls that a user makes of them."""

import contextlib
import copy
import io
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import precast
from tests.autograd.stored_state import Shown, state_of
from tests.habits import deciding, storing, structuring, training
from tests.habits.storing import WIDTH

BLOCKS = {kind.__name__: kind for each in (storing, deciding, structuring, training) for kind in each.BLOCKS}
NESTINGS = ("flat", "nested", "residual", "repeated", "argument")
CALLS = ("train", "train", "train again", "eval", "no_grad", "other rows", "reset", "step")


@dataclass(frozen=True)
class Habits:
    """A program: which blocks, how they are put together, what it returns, and how it is called."""

    blocks: tuple[str, ...]
    nesting: str
    returns: str
    calls: tuple[str, ...]

    @classmethod
    def of(cls, seed: int) -> "Habits":
        chance = random.Random(seed)
        blocks = tuple(chance.choice([*BLOCKS]) for _ in range(chance.randint(1, 3)))
        calls = ("train", *(chance.choice(CALLS) for _ in range(chance.randint(2, 4))))
        return cls(blocks, chance.choice(NESTINGS), chance.choice([*structuring.RETURNS]), calls)


class Nested(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.first = blocks[0]
        self.rest = nn.Sequential(*blocks[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


class Residual(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Repeated(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.block = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(x).tanh())


class PassesModules(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.around = nn.ModuleList(structuring.Sublayer() for _ in blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for around, block in zip(self.around, self.blocks, strict=True):
            x = around(x, block)
        return x


_NESTINGS: dict[str, Callable[[list[nn.Module]], nn.Module]] = {
    "flat": lambda blocks: nn.Sequential(*blocks),
    "nested": Nested,
    "residual": Residual,
    "repeated": Repeated,
    "argument": PassesModules,
}


class Program(nn.Module):
    def __init__(self, habits: Habits) -> None:
        super().__init__()
        self.body = _NESTINGS[habits.nesting]([BLOCKS[name]() for name in habits.blocks])
        self.returns = habits.returns

    def forward(self, x: torch.Tensor) -> Any:
        return structuring.RETURNS[self.returns](self.body(x))


def _make(habits: Habits) -> nn.Module:
    torch.manual_seed(0)
    return Program(habits)


def _reset(module: nn.Module) -> None:
    for each in module.modules():
        if hasattr(each, "reset"):
            each.reset()


@dataclass(frozen=True)
class Seen:
    """What one call shows: the form of results and state, their tensors, gradients, and what was printed."""

    form: Any
    tensors: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    printed: str
    error: str | None = None


def call(module: nn.Module, owner: nn.Module, kind: str, number: int) -> Seen:
    """Call ``module`` once; ``owner`` has its state."""
    if kind == "reset":
        _reset(owner)
    module.train(kind not in ("eval", "no_grad"))
    rows = 3 if kind == "other rows" else 2
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(number if kind != "train again" else 0))
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)
    printed = io.StringIO()
    owner.zero_grad()
    with contextlib.redirect_stdout(printed), torch.set_grad_enabled(kind != "no_grad"):
        result = module(x)
    shown = Shown()
    form = shown.of((result, state_of(owner)))
    values = [each.detach().clone() for each in shown.tensors]
    losses = [each.double().pow(2).sum() for each in Shown.tensors_of(result) if each.requires_grad]
    if losses:
        sum(losses).backward()
    gradients = [None if each.grad is None else each.grad.clone() for each in owner.parameters()]
    if kind == "step":
        with torch.no_grad():
            for parameter in owner.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    shown = Shown()
    shown.of(state_of(owner))
    return Seen(form, [*values, *(each.detach().clone() for each in shown.tensors)], gradients, printed.getvalue())


def check(habits: Habits, backend: Any, **options: Any) -> None:
    """Run a program in eager and compiled; raise where anything differs."""
    eager, model = _make(habits), _make(habits)
    compiled = precast.compile(model, backend=backend, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, kind in enumerate(habits.calls):
            expected = call(eager, eager, kind, number)
            found = call(compiled, model, kind, number)
            where = f"call {number} ({kind}) of {habits}"
            assert found.form == expected.form, f"{where}: {found.form}\n{expected.form}"
            assert found.printed == expected.printed, f"{where}: {found.printed!r} {expected.printed!r}"
            pairs = [*zip(found.tensors, expected.tensors, strict=True)]
            for one, other in (*pairs, *zip(found.gradients, expected.gradients, strict=True)):
                is_close = (
                    torch.allclose(one, other, 1e-4, 1e-5, True) if one is not None and other is not None else None
                )
                assert one is other if is_close is None else is_close, f"{where}: {one}\n{other}"


def shrink(habits: Habits, fails: Callable[[Habits], bool]) -> Habits:
    """A smaller program that still fails."""
    found = True
    while found:
        found = False
        for smaller in _smaller(habits):
            if fails(smaller):
                habits, found = smaller, True
                break
    return copy.copy(habits)


def _smaller(habits: Habits) -> list[Habits]:
    def without(items: tuple[str, ...], index: int) -> tuple[str, ...]:
        return items[:index] + items[index + 1 :]

    fewer_blocks = [replace(habits, blocks=without(habits.blocks, i)) for i in range(len(habits.blocks))]
    fewer_calls = [replace(habits, calls=without(habits.calls, i)) for i in range(len(habits.calls))]
    plainer = [replace(habits, nesting="flat"), replace(habits, returns="tensor")]
    candidates = [*fewer_blocks, *fewer_calls, *plainer]
    return [each for each in candidates if each != habits and each.blocks and each.calls]
