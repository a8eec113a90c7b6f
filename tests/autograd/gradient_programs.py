"""Random programs of views, writes, no_grad blocks and detached values over inputs that may overlap, as data."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies

from tests.autograd.like_eager import Inputs, leaf

Operation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor | None]


def _slice(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x[number % x.shape[0] :] if x.dim() else None


def _select(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x[number % x.shape[0]] if x.dim() else None


def _transpose(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x.transpose(0, -1) if x.dim() else None


def _flatten(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x.view(-1) if x.is_contiguous() else None


def _expand(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x.expand(2, *x.shape)


def _write_under_no_grad(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor | None:
    with torch.no_grad():
        x.add_(y.mean() + number)
    return None


def _compute_under_no_grad(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor | None:
    with torch.no_grad():
        return x * y.mean()


def _write(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor | None:
    x.mul_(y.mean() + number)
    return None


def _overwrite(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor | None:
    x.copy_(y.sum() * number)
    return None


def _write_itself(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    x.sin_()
    return None


def _multiply(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor | None:
    return x * y.sin().mean()


def _sine(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x.sin()


def _detach(x: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor | None:
    return x.detach()


VIEWS = (_slice, _select, _transpose, _flatten, _expand)
WRITES = (_write, _overwrite, _write_itself, _write_under_no_grad)
OTHERS = (_multiply, _sine, _detach, _compute_under_no_grad)


@dataclass(frozen=True)
class Step:
    """One operation on two of the tensors made up to now; what does not fit its shape does nothing."""

    operation: Operation
    first: int
    second: int
    number: int


class InputKind:
    """How an input of a program comes about."""

    LEAF = "a leaf that requires grad"
    RESULT = "the result of a leaf"
    CONSTANT = "without gradient"
    REPEATED = "an earlier input again"
    VIEW = "a view of an earlier input"

    ALL = (LEAF, RESULT, RESULT, CONSTANT, REPEATED, VIEW)


@dataclass(frozen=True)
class GradientProgram:
    """Kinds of inputs, steps over them, and which of all tensors are returned."""

    kinds: tuple[str, ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]

    def inputs(self) -> Inputs:
        leaves: list[torch.Tensor] = []
        args: list[torch.Tensor] = []
        for number, kind in enumerate(self.kinds):
            if args and kind == InputKind.REPEATED:
                args.append(args[number // 2])
            elif args and kind == InputKind.VIEW:
                args.append(args[number // 2][: 1 + number % 2])
            else:
                leaves.append(leaf(3, 3))
                args.append(leaves[-1] * 1 if kind == InputKind.RESULT else leaves[-1])
                if kind == InputKind.CONSTANT:
                    args[-1] = args[-1].detach().clone()
        return leaves, args

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        tensors = list(inputs)
        for step in self.steps:
            first, second = (tensors[number % len(tensors)] for number in (step.first, step.second))
            result = step.operation(first, second, step.number)
            if result is not None:
                tensors.append(result)
        return [tensors[number % len(tensors)] for number in self.returned]


def gradient_programs() -> strategies.SearchStrategy[GradientProgram]:
    number = strategies.integers(0, 7)
    operation = strategies.sampled_from((*VIEWS, *WRITES, *WRITES, *OTHERS))
    return strategies.builds(
        GradientProgram,
        strategies.lists(strategies.sampled_from(InputKind.ALL), min_size=1, max_size=3).map(tuple),
        strategies.lists(strategies.builds(Step, operation, number, number, number), min_size=1, max_size=6).map(tuple),
        strategies.lists(strategies.integers(0, 9), min_size=1, max_size=3).map(tuple),
    )
