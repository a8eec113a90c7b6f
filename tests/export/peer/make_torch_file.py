"""Writes the stored file of PyTorch's exporter: run with a new version of torch, and commit the file."""

from pathlib import Path

import torch
from torch.export import Dim, export, save

from tests.export.make_stored_file import Stored

if __name__ == "__main__":
    options = {"flag": torch.tensor(False), "fill": 3}
    sizes = {"x": {0: Dim("rows", min=1, max=100)}, "options": {"flag": None, "fill": None}}
    exported = export(Stored(), (torch.ones(4, 2),), {"options": options}, dynamic_shapes=sizes)
    version = "_".join(torch.__version__.partition("+")[0].split(".")[:2])
    save(exported, Path(__file__).parent / "stored" / f"torch_{version}.pt2", extra_files={"why.txt": "kept"})
