"""Makes a workload: its model, its inputs, and a training step over both."""

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.peers.architectures import ARCHITECTURES
from benchmarks.peers.workload import Workload


def make(workload: Workload, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor]:
    """The model and its inputs: the same numbers in every process, whatever the dtype."""
    architecture = ARCHITECTURES[workload.architecture]
    torch.manual_seed(0)
    model = architecture.make_model().train(workload.trains)
    inputs = architecture.make_inputs(workload.batch)
    return model.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs


def make_labels(workload: Workload) -> torch.Tensor:
    """The labels that a training step is given."""
    torch.manual_seed(1)
    return ARCHITECTURES[workload.architecture].make_labels(workload.batch)


class WithLoss(nn.Module):
    """A model and its loss in one, so that a compiler sees both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(inputs)
        # Where an image comes out, its channels are the classes of each pixel.
        rows = logits.movedim(1, -1) if logits.dim() == 4 else logits
        return nn.functional.cross_entropy(rows.flatten(0, -2), labels)


Step = Callable[[], torch.Tensor]


def training_step(
    optimizer: torch.optim.Optimizer,
    compiled: Callable[..., torch.Tensor],
    batch: tuple[torch.Tensor, torch.Tensor],
    update: Callable[[], object],
) -> Step:
    """Forward, loss, backward and the optimizer's update, as people write it."""

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = compiled(*batch)
        loss.backward()
        update()
        return loss

    return step
