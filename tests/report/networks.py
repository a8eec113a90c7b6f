"""What the reports of tests are about."""

import torch
from torch.nn import functional as F


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Network(torch.nn.Module):
    def __init__(self, blocks=2, width=16):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = torch.nn.Linear(width, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)


class Deciding(torch.nn.Module):
    """Decides on a value, computes with complex numbers, and calls something without a native rule."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:
            x = x + 1
        turned = torch.view_as_complex(x.reshape(-1, 2))
        return torch.view_as_real(turned.tanh()).sum()


def make_network():
    return Network(), (torch.ones(8, 16),)
