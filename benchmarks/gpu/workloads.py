"""What is measured on a GPU: the eight architectures, at sizes that fill one, in bfloat16 by autocast."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.peers.architectures import ARCHITECTURES, Architecture

BATCHES = {"bert": 16, "gpt2": 8, "llama": 16, "resnet50": 64, "vit": 64, "convnext": 64, "unet": 16, "mobilenet": 64}
TOKENS = 512


class WithLoss(nn.Module):
    """A model and the loss that it is trained with: what users compile as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(inputs)
        if logits.ndim == 4:
            logits = logits.movedim(1, -1)
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)


@dataclass
class Workload:
    """A model on the GPU with one batch."""

    name: str
    model: WithLoss
    inputs: torch.Tensor
    labels: torch.Tensor

    def loss(self, call: Callable[..., torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return call(self.inputs, self.labels)

    def infer(self, call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            return call(self.inputs)


def make(name: str, *, batch: int | None = None, seed: int = 0) -> Workload:
    """The workload of a name; equal seeds make equal weights."""
    torch.manual_seed(seed)
    architecture: Architecture = ARCHITECTURES[name]
    batch = batch or BATCHES[name]
    model = WithLoss(architecture.make_model()).cuda()
    labels = architecture.labels
    if name in ("bert", "gpt2", "llama"):
        inputs, labels = torch.randint(0, 1000, (batch, TOKENS)), TOKENS
    else:
        inputs = architecture.make_inputs(batch)
    targets = torch.randint(0, architecture.classes, (batch * labels,))
    return Workload(name, model, inputs.cuda(), targets.cuda())


def training_step(workload: Workload, call: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Forward, backward and a fused AdamW update."""
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        # Torch's recordings overwrite the results of the step before: it has to be told that one begins.
        torch.compiler.cudagraph_mark_step_begin()
        loss = workload.loss(call)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach().clone()

    return step


def median_milliseconds(call: Callable[[], object], *, warm: int = 5, times: int = 20) -> float:
    """By events of the device, so that the wait for the host counts as well."""
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    spans = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        spans.append((start, end))
    torch.cuda.synchronize()
    found = sorted(start.elapsed_time(end) for start, end in spans)
    return found[len(found) // 2]
