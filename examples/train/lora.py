"""Trains low-rank additions to the layers of a frozen transformer (LoRA). ``python examples/train/lora.py``.

The character model of ``gpt.py`` learns one text; then it is frozen, and a hundredth as many parameters learn another.
"""

import argparse
import time

import torch
from gpt import LENGTH, ROWS, TEXT, CharacterModel, loss_fn
from torch import nn

import precast


class LowRank(nn.Module):
    """A frozen linear layer, and the product of two thin matrices beside it, which is zero at first."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def add_low_rank(model: nn.Module, rank: int = 2) -> list[nn.Parameter]:
    """Put additions beside the layers of attention; gives what is to be trained."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.query_key_value = LowRank(block.query_key_value, rank)
        block.project = LowRank(block.project, rank)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def pieces(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(text) - LENGTH, (ROWS,), generator=generator)
    return torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])


def train(model: nn.Module, parameters: list[nn.Parameter], text: torch.Tensor, steps: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    step = precast.train_step(model, loss_fn, optimizer, pieces(text, generator), grad_clip=1.0)
    started = time.perf_counter()
    for number in range(1, steps + 1):
        loss = step(pieces(text, generator))
        if number == 1 or number % 50 == 0:
            print(f"step {number:4}: loss {loss:.3f}")
    print(f"{steps / (time.perf_counter() - started):.0f} steps a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    model = CharacterModel()
    print("The whole model")
    train(model, list(model.parameters()), text, steps, 3e-3)
    added = add_low_rank(model)
    count = sum(parameter.numel() for parameter in added)
    share = count / sum(parameter.numel() for parameter in model.parameters())
    print(f"\nAnother text, the same backwards: {count} parameters are trained, {share:.1%}")
    train(model, added, text.flip(0), steps, 1e-2)


if __name__ == "__main__":
    main()
