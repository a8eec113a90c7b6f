"""What one call of a program shows: results, how they lie in memory and share it, changes, gradients, errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

LEARNING_RATE = 0.01


@dataclass
class Observation:
    error: BaseException | None = None
    results: list[Any] = field(default_factory=list)
    """Outputs, and then what was given, as it is afterwards."""
    layouts: list[tuple[Any, ...]] = field(default_factory=list)
    dense: list[bool] = field(default_factory=list)
    aliases: list[tuple[Any, ...]] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        return [*self.results, *self.gradients]


def tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers, and tensors that are neither."""
    plain = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    return [*module.parameters(), *module.buffers(), *plain]


def observe_inference(call: Callable[..., Any], module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Observation:
    with torch.no_grad():
        return _observed(call, module, inputs, lambda outputs: [])


def observe_recorded(
    call: Callable[..., Any], module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, given: str = "data"
) -> Observation:
    """A call of which autograd takes note, though nobody asks for gradients."""
    with torch.enable_grad():
        return _observed(call, module, as_given(inputs, given)[1], lambda outputs: [])


def as_given(inputs: Sequence[torch.Tensor], given: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Copies of inputs that want gradients, and what is passed of them."""
    leaves = [each.detach().clone() for each in inputs]
    wanting = [each.requires_grad_() for each in leaves if each.is_floating_point() and given != "data"]
    return wanting, [each.clone() if given == "results" else each for each in leaves]


def used_in_loss(count: int, seed: int) -> list[int]:
    """The numbers of the outputs that a loss is over: of all, or of some."""
    choose = random.Random(f"loss of {seed}")
    if choose.random() < 0.5:
        return list(range(count))
    return [number for number in range(count) if choose.random() < 0.5] or [choose.randrange(count)]


def observe_training(
    call: Callable[..., Any],
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    given: str,
    steps: int = 2,
    seed: int | None = None,
) -> Observation:
    """Steps of training: forward, backward, and gradient descent on the parameters.

    `given` says what inputs are to autograd: "leaves" that want gradients, "results" of something, or "data". The seed
    says which outputs the loss is over; without one it is over all.
    """
    with torch.enable_grad():
        for _ in range(steps):
            # A forward may have changed them.
            wanting, passed = as_given(inputs, given)
            wanting += module.parameters()

            def differentiate(outputs: Sequence[torch.Tensor], wanting: Any = wanting) -> list[torch.Tensor | None]:
                used = range(len(outputs)) if seed is None else used_in_loss(len(outputs), seed)
                return _gradients([outputs[number] for number in used], wanting)

            observed = _observed(call, module, passed, differentiate)
            if observed.error is not None:
                return observed
            for state in module.buffers():
                # Gradients of the next step end where it begins.
                state.detach_()
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= LEARNING_RATE * parameter.grad.clamp(-1, 1)
                        parameter.grad = None
    return observed


def _gradients(outputs: Sequence[torch.Tensor], wanting: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a sum over the outputs, each element with a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    losses = []
    for output in outputs:
        if output.requires_grad:
            weight = torch.randn(output.shape, generator=generator).to(torch.bfloat16).to(output.dtype)
            losses.append((output * weight).sum().double())
    if losses:
        torch.stack(losses).sum().backward()
    return [None if each.grad is None else each.grad.detach().clone() for each in wanting]


def _observed(
    call: Callable[..., Any], module: torch.nn.Module, inputs: Sequence[torch.Tensor], differentiate: Callable[..., Any]
) -> Observation:
    try:
        outputs = list(call(*inputs))
        known = [*inputs, *tensors_of(module), *outputs]
        first = len(known) - len(outputs)
        aliases = [alias_of(output, known[: first + number]) for number, output in enumerate(outputs)]
        layouts = [layout_of(each) for each in outputs]
        dense = list(map(is_dense, outputs))
        results = [each.detach().clone() for each in outputs]
        gradients = differentiate(outputs)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what we are here to see)
        return Observation(error)
    results += [each.detach().clone() for each in (*inputs, *tensors_of(module))]
    return Observation(None, results, layouts, dense, aliases, gradients)


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Type, sizes, whether it has gradients, and the strides that matter."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tuple(strides if tensor.numel() else ())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory, in whatever order; those of expanded dimensions are one."""
    length = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride:
            if stride != length:
                return False
            length *= size
    return True


def alias_of(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Which of the others, by number, it is, or shares memory with, and from where on."""
    if not tensor.numel():
        return ()
    itself = next((number for number, other in enumerate(others) if other is tensor), None)
    address = tensor.untyped_storage().data_ptr()
    shared = next((number for number, each in enumerate(others) if each.untyped_storage().data_ptr() == address), None)
    return itself, shared, None if shared is None else tensor.storage_offset() - others[shared].storage_offset()
