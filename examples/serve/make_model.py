"""Makes the model that the server serves: ``python make_model.py classifier.precast``.

A small convolutional network with random weights stands for yours; any number of images goes into one call.
"""

import sys

import torch

import precast

LABELS = ("cat", "dog", "ship", "tree")


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, len(LABELS)),
        torch.nn.Softmax(dim=1),
    ).eval()


def main(path: str) -> None:
    batch = precast.Dim("batch", min=1, max=64)
    precast.package(
        make(),
        (torch.zeros(2, 3, 32, 32),),
        path=path,
        dynamic_shapes={"input": {0: batch}},
        targets=("x86-64-v3", "native"),
    )


if __name__ == "__main__":
    main(sys.argv[1])
