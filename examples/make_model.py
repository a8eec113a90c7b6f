"""Makes the model that the examples in C and C++ run: ``python examples/make_model.py FOLDER``.

``model.so``: code and weights in one library. ``model.precast``: a package, out of which ``package/`` holds the library
and the weights as files of their own. ``step.precast``, ``step/``: the same of a training step.
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
    unpack(precast.package(model, arguments, path=folder / "model.precast", dynamic_shapes=shapes), folder / "package")
    return model


def make_step(folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = torch.randn(16, 4), torch.randn(16, 1)
    step = precast.train_step(model, lambda m, b: torch.nn.functional.mse_loss(m(b[0]), b[1]), optimizer, batch)
    return unpack(step.save(folder / "step.precast"), folder / "step")


def unpack(path, folder):
    with zipfile.ZipFile(path) as package:
        for name in ("native/native/model.so", "weights.safetensors"):
            package.extract(name, folder)
    return path


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
    make_step(Path(sys.argv[1]))
