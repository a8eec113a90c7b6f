"""Small modules that tests of export share."""

import re
from typing import Any

import torch

from precast.export import ExportedProgram


def stable_text(program: ExportedProgram) -> str:
    """The program's text with one name for all sizes: versions of torch number them differently."""
    return re.sub(r"\bs\d+\b", "s", str(program))


class Everything(torch.nn.Module):
    """Tied parameters, buffers of both kinds, a constant, dropout, batch norm, a keyword, a nested result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.dropout = torch.nn.Dropout(0.5)
        self.again = self.linear
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.scale = torch.full((4,), 2.0)

    def forward(self, x: torch.Tensor, *, flag: torch.Tensor, power: float = 2.0) -> dict[str, Any]:
        self.count.add_(1)
        y = self.again(self.norm(self.linear(x))) * self.scale + self.scratch
        return {"y": self.dropout(y).pow(power), "flat": [y.view(-1), torch.where(flag, y.sum(), torch.tensor(1.0))]}


class Scale(torch.nn.Module):
    """One parameter; adds to its input in place on demand."""

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            x.add_(1)
        return x * self.weight


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)
