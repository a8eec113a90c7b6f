"""The contenders that take a PyTorch module: each compiles it and gives a function to call again and again."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import nn

import precast
from benchmarks.peers.accuracy import sampled
from benchmarks.peers.making import Step, WithLoss, make, make_labels, training_step
from benchmarks.peers.workload import Workload

Compile = Callable[[nn.Module], Callable[..., torch.Tensor]]

COMPILE: dict[str, Compile] = {
    "eager": lambda model: model,
    "compile": lambda model: torch.compile(model, dynamic=False),
    "compile-step": lambda model: torch.compile(model, dynamic=False),
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
    if workload.trains:
        # Torch's fastest on a CPU, but one that it does not compile.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not contender.endswith("-step"))
        step = _step(contender, WithLoss(model), optimizer, (inputs, make_labels(workload)))
        return Runner(step, lambda loss: _loss_and_gradients(loss, optimizer))
    compiled = COMPILE[contender](model)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return compiled(inputs)

    return Runner(call, lambda logits: sampled(logits.numpy()))


def _step(
    contender: str, model: nn.Module, optimizer: torch.optim.AdamW, batch: tuple[torch.Tensor, torch.Tensor]
) -> Step:
    """Forward, loss, backward and update, as the contender makes them."""
    if contender == "precast-step":
        made: list[Callable[..., torch.Tensor]] = []

        def step() -> torch.Tensor:
            if not made:
                made.append(precast.train_step(model, lambda m, b: m(*b), optimizer, batch))
            return made[0](batch)

        return step
    update = torch.compile(lambda: optimizer.step()) if contender == "compile-step" else optimizer.step
    return training_step(optimizer, COMPILE[contender](model), batch, update)


def _loss_and_gradients(loss: torch.Tensor, optimizer: torch.optim.AdamW) -> numpy.ndarray:
    """Gradients as AdamW remembers them after its first step: a step of ours keeps no others."""
    share = 1 - optimizer.defaults["betas"][0]
    gradients = [state["exp_avg"].detach() / share for state in optimizer.state.values()]
    return numpy.concatenate([loss.detach().reshape(1).numpy(), *(sampled(each.numpy()) for each in gradients)])
