"""Fine-tunes the last layers of a small residual network; the others are frozen: ``examples/train/fine_tune.py``.

Frozen layers have no gradients, no state in the optimizer, and their batch norms stay as they are.
"""

import argparse
import time

import torch
from torch import nn

import precast

CLASSES, ROWS = 4, 16


class Residual(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


class SmallResidualNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.last = Residual(16, 32, 2)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.blocks(self.stem(images))).mean((2, 3)))


def gratings(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy stripes; the class is their direction."""
    classes = torch.randint(CLASSES, (ROWS,), generator=generator)
    angle = classes * torch.pi / CLASSES
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    waves = torch.sin(0.8 * (x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]))
    return (waves + 0.5 * torch.randn(ROWS, 16, 16, generator=generator))[:, None], classes


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and how many of the answers are right."""
    images, classes = batch
    answers = model(images)
    return nn.functional.cross_entropy(answers, classes), (answers.argmax(1) == classes).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model, generator = SmallResidualNetwork(), torch.Generator().manual_seed(0)
    for frozen in (model.stem, model.blocks):
        frozen.requires_grad_(False).eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = precast.train_step(model, loss_fn, optimizer, gratings(generator))
    started = time.perf_counter()
    for number in range(1, steps + 1):
        loss, right = step(gratings(generator))
        if number == 1 or number % 25 == 0:
            print(f"step {number:4}: loss {loss:.3f}, {right:.0%} right")
    print(f"{steps / (time.perf_counter() - started):.0f} steps a second")
    after = model.state_dict()
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    print(
        f"{len(changed)} of {len(before)} tensors have changed, none outside of:",
        *sorted({name.partition(".")[0] for name in changed}),
    )


if __name__ == "__main__":
    main()
