"""Makes the model that the examples in C and C++ run: ``python examples/make_model.py FOLDER``.

``model.so``: code and weights in one library. ``model.precast``: a package, out of which ``package/`` holds the library
and the weights as files of their own.
"""

import sys
import zipfile
from pathlib import Path

import torch

import precast


class Classifier(torch.nn.Module):
    """Two layers, and a count of the rows it has seen."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.rows_seen += x.shape[0]
        return self.layers(x).softmax(1)


def make_model(folder):
    torch.manual_seed(0)
    arguments, shapes = (torch.randn(5, 4),), {"x": {0: precast.Dim("rows", min=1, max=1024)}}
    model = Classifier().eval()
    precast.aot_compile(model, arguments, dynamic_shapes=shapes, options={"output_path": folder / "model.so"})
    path = precast.package(model, arguments, path=folder / "model.precast", dynamic_shapes=shapes)
    with zipfile.ZipFile(path) as package:
        for name in ("native/native/model.so", "weights.safetensors"):
            package.extract(name, folder / "package")
    return model


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
