"""The contenders that take a PyTorch module: each compiles it and gives a function to call again and again."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import nn

import precast
from benchmarks.peers.accuracy import sampled
from benchmarks.peers.making import WithLoss, make, make_labels, training_step
from benchmarks.peers.workload import Workload

Compile = Callable[[nn.Module], Callable[..., torch.Tensor]]

COMPILE: dict[str, Compile] = {
    "eager": lambda model: model,
    "compile": lambda model: torch.compile(model, dynamic=False),
    "compile-frozen": lambda model: torch.compile(model, dynamic=False, options={"freezing": True}),
    "compile-precast": lambda model: torch.compile(model, dynamic=False, backend="precast"),
    "precast": lambda model: precast.compile(model, dynamic=False),
    "precast-frozen": lambda model: precast.compile(model, dynamic=False, options={"freeze": True}),
}


@dataclass(frozen=True)
class Runner:
    """What to call, and the numbers that a call's result is judged by."""

    call: Callable[[], torch.Tensor]
    numbers: Callable[[torch.Tensor], numpy.ndarray]


def prepare(workload: Workload, contender: str, dtype: torch.dtype = torch.float32) -> Runner:
    """The workload with its model compiled. The compilers compile when they are first called."""
    model, inputs = make(workload, dtype)
    compile = COMPILE[contender]
    if workload.trains:
        step = training_step(model, compile(WithLoss(model)), inputs, make_labels(workload))
        return Runner(step, lambda loss: _loss_and_gradients(loss, model))
    compiled = compile(model)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return compiled(inputs)

    return Runner(call, lambda logits: sampled(logits.numpy()))


def _loss_and_gradients(loss: torch.Tensor, model: nn.Module) -> numpy.ndarray:
    gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    return numpy.concatenate([loss.detach().reshape(1).numpy(), *(sampled(each.numpy()) for each in gradients)])
