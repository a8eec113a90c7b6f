"""Random programs of views and writes, as data: hypothesis draws them, Python and the tracer run them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies

Numbers = tuple[int, int, int]


def _view(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.view(-1) if tensor.is_contiguous() else None


def _reshape(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    size = tensor.numel()
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return tensor.reshape(divisors[numbers[0] % len(divisors)], -1) if divisors else None


def _transpose(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    if tensor.dim() < 2:
        return None
    return tensor.transpose(numbers[0] % tensor.dim(), numbers[1] % tensor.dim())


def _slice(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    if not tensor.dim():
        return None
    dim = numbers[0] % tensor.dim()
    index = [slice(None)] * tensor.dim()
    index[dim] = slice(numbers[1] % (tensor.shape[dim] + 1), None, 1 + numbers[2] % 2)
    return tensor[tuple(index)]


def _select(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    dim = numbers[0] % max(tensor.dim(), 1)
    return tensor.select(dim, numbers[1] % tensor.shape[dim]) if tensor.dim() and tensor.shape[dim] else None


def _expand(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.expand(2, *tensor.shape)


def _unsqueeze(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.unsqueeze(numbers[0] % (tensor.dim() + 1))


def _diagonal(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.diagonal(numbers[0] % 3 - 1) if tensor.dim() >= 2 else None


def _unfold(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.unfold(0, 2, 1) if tensor.dim() and tensor.shape[0] >= 2 else None


def _transpose_in_place(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.t_() if tensor.dim() == 2 else None


def _swap_in_place(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.transpose_(0, -1) if tensor.dim() >= 2 else None


def _copy_reversed(tensor: torch.Tensor, numbers: Numbers) -> torch.Tensor | None:
    return tensor.copy_(tensor.flip(0)) if tensor.dim() else None


VIEWS = (_view, _reshape, _transpose, _slice, _select, _unsqueeze, _diagonal)
OVERLAPPING = (_expand, _unfold)
RESHAPES_IN_PLACE = (_transpose_in_place, _swap_in_place, lambda tensor, numbers: tensor.unsqueeze_(0))
WRITES = (
    lambda tensor, numbers: tensor.add_(numbers[0]),
    lambda tensor, numbers: tensor.mul_(numbers[0]),
    lambda tensor, numbers: tensor.fill_(numbers[0]),
    lambda tensor, numbers: tensor.zero_(),
    lambda tensor, numbers: tensor.neg_(),
    lambda tensor, numbers: tensor.clamp_(max=numbers[0]),
    _copy_reversed,
)
FRESH = (lambda tensor, numbers: tensor + numbers[0], lambda tensor, numbers: tensor.clone())
Operation = Callable[[torch.Tensor, Numbers], torch.Tensor | None]
OPERATIONS: tuple[Operation, ...] = (*VIEWS, *OVERLAPPING, *RESHAPES_IN_PLACE, *WRITES, *WRITES, *FRESH)


@dataclass(frozen=True)
class Step:
    """Apply one operation to one tensor of those made up to now; what does not fit its shape does nothing."""

    operation: Operation
    source: int
    numbers: Numbers


@dataclass(frozen=True)
class ViewProgram:
    """Steps over the inputs, and which of all tensors are returned."""

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]

    def inputs(self) -> list[torch.Tensor]:
        return [torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 1 for shape in self.shapes]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        run = _Run(list(inputs), [True] * len(inputs))
        for step in self.steps:
            run.apply(step)
        return [run.tensors[number % len(run.tensors)] for number in self.returned]


@dataclass
class _Run:
    tensors: list[torch.Tensor]
    writable: list[bool] = field(default_factory=list)

    def apply(self, step: Step) -> None:
        number = step.source % len(self.tensors)
        # Writes through memory that overlaps itself are errors or undefined in eager.
        if step.operation in WRITES and not self.writable[number]:
            return
        result = step.operation(self.tensors[number], step.numbers)
        if result is not None and all(result is not tensor for tensor in self.tensors):
            self.tensors.append(result)
            self.writable.append(
                step.operation in FRESH or (self.writable[number] and step.operation not in OVERLAPPING)
            )


def view_programs() -> strategies.SearchStrategy[ViewProgram]:
    number = strategies.integers(0, 7)
    step = strategies.builds(
        Step, strategies.sampled_from(OPERATIONS), number, strategies.tuples(number, number, number)
    )
    shape = strategies.sampled_from([(6,), (2, 3), (4, 4), (2, 3, 2), (1, 5)])
    return strategies.builds(
        ViewProgram,
        strategies.lists(shape, min_size=1, max_size=2).map(tuple),
        strategies.lists(step, min_size=1, max_size=7).map(tuple),
        strategies.lists(strategies.integers(0, 9), min_size=1, max_size=4).map(tuple),
    )
