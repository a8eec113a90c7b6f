"""Writes the stored file of the current format version: run once when the version changes, and commit the file."""

from pathlib import Path

import torch

from precast.export import Dim, export, save
from precast.export.serialize.schema import MAJOR, MINOR


class Stored(torch.nn.Module):
    """Small, but with every kind of thing in it: state of all kinds, control flow, sizes, a nested result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.5]))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("shift", torch.ones(2), persistent=False)
        self.scale = torch.tensor([1.0, 2.0])

    def forward(self, x: torch.Tensor, *, options: dict[str, torch.Tensor | int]) -> dict[str, torch.Tensor]:
        self.count.add_(1)
        y = x * self.weight * self.scale + self.shift
        y = torch.cond(options["flag"], lambda a: a + self.shift, lambda a: a.clone(), (y,))
        return {"loss": y.mean(), "rows": torch.full((x.shape[0],), float(options["fill"]))}


if __name__ == "__main__":
    options = {"flag": torch.tensor(False), "fill": 3}
    sizes = {"x": {0: Dim("rows", min=1, max=100)}, "options": None}
    exported = export(Stored(), (torch.ones(4, 2),), {"options": options}, dynamic_shapes=sizes)
    save(exported, Path(__file__).parent / "stored" / f"version_{MAJOR}_{MINOR}.pt2", extra_files={"why.txt": "kept"})
