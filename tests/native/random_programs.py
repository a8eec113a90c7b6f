"""Small programs made at random, of operators that the native backend fuses with one another and with library calls."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Operation = Callable[..., torch.Tensor]

_TYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LARGEST = 6000
_UNARY: list[Operation] = [
    F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.leaky_relu, F.hardtanh, torch.tanh,
    torch.sigmoid, torch.neg, torch.abs, lambda x: F.hardtanh(x, -3, 3).sin(), torch.square,
    lambda x: x + 2, lambda x: x * 0.5, lambda x: 1.25 - x, lambda x: x / 3,
]  # fmt: skip
_BINARY: list[Operation] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.where(x > 0, x, y),
]  # fmt: skip
_PRODUCTS: list[Operation] = [
    lambda x, y: x @ y.to(x.dtype),
    lambda x, y: x.mT @ y.to(x.dtype),
    lambda x, y: x @ y.mT.to(x.dtype),
    lambda x, y: F.conv2d(x, y.to(x.dtype), padding=1),
    lambda x, y: F.conv2d(x, y.to(x.dtype), stride=2),
]
_VIEWS: list[Operation] = [
    lambda x: x.transpose(0, -1), lambda x: x.reshape(-1), lambda x: x[..., ::2], lambda x: x[1:],
    lambda x: x.unsqueeze(-2), lambda x: x.expand(3, *x.shape), lambda x: x.flip(0), lambda x: x.roll(1, -1),
    lambda x: F.pad(x, (1, 2)), lambda x: torch.cat([x, x * 2], -1),
    lambda x: x.reshape(2, x.shape[0] // 2, *x.shape[1:]),
]  # fmt: skip
_REDUCTIONS: list[Operation] = [
    lambda x: x.sum(0), lambda x: x.mean(-1, keepdim=True), lambda x: x.amax(-1), lambda x: x.amin(0, keepdim=True),
    lambda x: x.logsumexp(-1), lambda x: x.softmax(-1), lambda x: x.softmax(0), lambda x: x.cumsum(0),
]  # fmt: skip
_CASTS: list[Operation] = [lambda x, dtype=dtype: x.to(dtype) for dtype in _TYPES]
# How often each kind is drawn, and how many operands it has.
_KINDS = ((_UNARY, 9, 1), (_BINARY, 9, 2), (_PRODUCTS, 8, 2), (_VIEWS, 7, 1), (_REDUCTIONS, 5, 1), (_CASTS, 3, 1))


@dataclass(frozen=True)
class RandomProgram:
    """Steps over a growing list of values, which begins with the inputs; called, it gives all that nothing reads."""

    inputs: tuple[torch.Tensor, ...]
    steps: tuple[tuple[Operation, tuple[int, ...]], ...]
    precision: float
    """The coarsest rounding on the way."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for operation, operands in self.steps:
            values.append(operation(*(values[each] for each in operands)))
        used = {each for _, operands in self.steps for each in operands}
        return tuple(value for number, value in enumerate(values) if number >= len(inputs) and number not in used)

    def with_gradients(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, and the gradients of a sum over them."""
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in inputs]
            results = self(*leaves)
            # Of large numbers, a sine would tell roundings and no more.
            loss = sum(result.to(inputs[0].dtype).atan().sum() for result in results)
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return (*(each.detach() for each in results), *(each for each in gradients if each is not None))


def random_program(seed: int, *, size: int = 10) -> RandomProgram:
    choose = random.Random(seed)
    batch, rows, columns = choose.choice([(2, 4, 8), (3, 5, 7), (1, 6, 33), (2, 1, 16), (4, 8, 8)])
    shapes = [(rows, columns), (columns, columns), (columns,), (batch, rows, columns), (1, columns)]
    shapes += [(2, 4, 6, 5), (4, 4, 3, 3)] if choose.random() < 0.4 else []
    generator, dtype = torch.Generator().manual_seed(seed), choose.choice(_TYPES)
    inputs = tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    values, steps = [each.to("meta") for each in inputs], list[tuple[Operation, tuple[int, ...]]]()
    while len(steps) < size:
        operations, _, count = choose.choices(_KINDS, [weight for _, weight, _ in _KINDS])[0]
        step = choose.choice(operations), tuple(_drawn(choose, len(values)) for _ in range(count))
        value = _shape_of(step[0], [values[each] for each in step[1]])
        if value is not None:
            steps.append(step)
            values.append(value)
    return RandomProgram(inputs, tuple(steps), max(torch.finfo(value.dtype).eps for value in values))


def _drawn(choose: random.Random, count: int) -> int:
    """Mostly one of the last values, so that long chains come about."""
    return choose.randrange(max(count - 4, 0) if choose.random() < 0.7 else 0, count)


def _shape_of(operation: Operation, operands: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The result as a tensor without data; None if the operator does not take these operands."""
    try:
        value = operation(*operands)
    except (RuntimeError, IndexError, TypeError):
        return None
    return value if 0 < value.numel() <= _LARGEST and value.dim() <= 4 else None
