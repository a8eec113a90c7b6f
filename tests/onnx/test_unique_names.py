"""No two values share a name, in whichever graphs they are."""

import torch
from torch import nn

from precast.onnx import export


class Twice(nn.Module):
    def forward(self, x):
        first = torch.cond(x.sum() > 0, lambda x: torch.mode(x)[0], lambda x: x.prod(1) + torch.histc(x, 3).sum(), (x,))
        return (
            torch.cond(first.sum() > 0, lambda y: y.cumprod(0), lambda y: y.cummax(0)[0], (first,))
            + torch.histc(x, 2).sum()
        )


def test_names_in_subgraphs():
    program = export(Twice(), (torch.rand(3, 4),), optimize=False)
    names = [value.name for node in program.model.graph.all_nodes() for value in node.outputs]
    assert len(names) > 40
    assert len(names) == len(set(names))
