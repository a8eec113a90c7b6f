"""Small programs that the tests of the IR take apart."""

import torch

from precast.graph.program import Program
from precast.trace.capture import Dim, capture


class Scale(torch.nn.Module):
    """One parameter, one buffer that is written, one submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.linear(x).relu()


def scale_program() -> Program:
    return capture(Scale(), (torch.ones(2, 4),))


def dynamic_program() -> Program:
    batch = Dim("batch", min=2, max=64)
    return capture(lambda x, y: torch.cat([x, y]) * 2, (torch.ones(3, 4), torch.ones(6, 4)),
                   dynamic_shapes={"x": {0: batch}, "y": {0: 2 * batch}})  # fmt: skip
