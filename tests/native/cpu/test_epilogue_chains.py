"""Activations and additions in any order behind convolutions, for each implementation that oneDNN chooses."""

import itertools

import torch
import torch.nn.functional as F

import precast

CHANNELS = 16
SHAPES = {"one pixel": (1, 1, 0), "pixels": (5, 1, 0), "windows": (7, 3, 1), "odd windows": (6, 2, 0)}
STEPS = {
    "relu": lambda value, scale, shift: value.relu(),
    "gelu": lambda value, scale, shift: F.gelu(value),
    "scale": lambda value, scale, shift: value * scale,
    "shift": lambda value, scale, shift: value + shift,
}


class Chains(torch.nn.Module):
    """One convolution for each chain of three steps, all in one program."""

    def __init__(self, kernel, padding):
        super().__init__()
        self.chains = list(itertools.permutations(STEPS, 3))
        self.weight = torch.nn.Parameter(torch.randn(CHANNELS, CHANNELS, kernel, kernel) / CHANNELS)
        self.scale = torch.nn.Parameter(torch.tensor([1.5]))
        self.shift = torch.nn.Parameter(torch.randn(CHANNELS, 1, 1))
        self.padding = padding

    def forward(self, x):
        results = []
        for number, chain in enumerate(self.chains):
            value = F.conv2d(x + number / 100, self.weight, padding=self.padding)
            for step in chain:
                value = STEPS[step](value, self.scale, self.shift)
            results.append(value)
        return results


def test_every_chain_of_steps_equals_eager():
    torch.manual_seed(0)
    for title, (size, kernel, padding) in SHAPES.items():
        module, x = Chains(kernel, padding).eval(), torch.randn(2, CHANNELS, size, size)
        with torch.no_grad():
            found = precast.compile(module, options={"freeze": True})(x)
        for chain, one, other in zip(module.chains, found, module(x), strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-4, atol=1e-4, msg=lambda text, at=(title, chain): f"{at}: {text}"
            )
