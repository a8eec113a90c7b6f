"""What is done with a hostile file: it is opened, called and verified, as whoever got it would."""

import io
import random
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import precast
import precast.runtime
from precast.errors import ArtifactError, PrecastError
from tests.hostile.mutations import hostile_file

STORED = (Path(__file__).parents[1] / "export" / "stored" / "version_1_0.pt2").read_bytes()


class Mixed(torch.nn.Module):
    """State that is updated, an index, a branch, a dict, a keyword, sizes that vary and sizes that are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.table = torch.nn.Embedding(7, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("spread", torch.ones(1).expand(3))

    def forward(self, inputs: dict[str, Any], *, shift: float = 1.5) -> dict[str, Any]:
        self.count += 1
        x = inputs["x"] * self.spread + self.table(inputs["rows"])
        pooled = torch.nn.functional.max_pool1d(x, 3)
        return {"y": self.layer(x).relu() + shift + pooled, "size": x.shape[0] * 2, "count": self.count}


def example(rows: int = 4) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ({"x": torch.ones(rows, 3), "rows": torch.arange(rows) % 7},), {"shift": 1.5}


SHAPES = {
    "inputs": {"x": {0: precast.Dim("rows", min=2, max=9)}, "rows": {0: precast.Dim("rows", min=2, max=9)}},
    "shift": None,
}


@cache
def bases() -> tuple[bytes, bytes, bytes]:
    """A stored program, a program with sizes that vary, and a package."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.precast"
        args, kwargs = example()
        precast.package(Mixed(), args, kwargs, path=path, dynamic_shapes=SHAPES)
        package = path.read_bytes()
    file = io.BytesIO()
    precast.save(precast.export(Mixed(), args, kwargs, dynamic_shapes=SHAPES), file)
    return STORED, file.getvalue(), package


def use_program(data: bytes) -> None:
    """Load a program: an ``ArtifactError``, or one that can be called, whatever that raises."""
    try:
        loaded = precast.load(io.BytesIO(data))
    except ArtifactError:
        return
    loaded.validate()
    str(loaded)
    example_inputs = loaded.example_inputs
    if example_inputs is None:
        return
    try:
        loaded.module()(*example_inputs[0], **example_inputs[1])
    except Exception:  # noqa: BLE001
        # Operators tell in torch's words what they do not like.
        return


def use_package(data: bytes, *, allow_native: bool) -> None:
    """Load a package, call it and verify it: always an error of ours, an index out of range, or too little memory."""
    try:
        model = precast.runtime.load(data, allow_native=allow_native)
        for rows in (4, 2**40):
            args, kwargs = example(4)
            if rows != 4:
                args = ({"x": torch.ones(1, 1).expand(rows, 3), "rows": torch.ones(1, dtype=torch.int64).expand(rows)},)
            _called(model, args, kwargs)
        for name in model.state:
            if np.prod(model.state._store.read(name).carrier.shape if not allow_native else [1]) < 10**6:
                model.state[name] = model.state[name]
        model.verify()
    except (PrecastError, MemoryError):
        return


def _called(model: Any, args: Any, kwargs: Any) -> None:
    try:
        model(*args, **kwargs)
    except (PrecastError, IndexError, MemoryError):
        return


def run_file(seed: int, case: int) -> None:
    """One hostile file, made from a seed and a number alone."""
    rng = random.Random(f"{seed} {case}")
    base = rng.randrange(3)
    data = hostile_file(bases()[base], rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if base == 2 and rng.random() < 0.85:
            use_package(data, allow_native=rng.random() < 0.4)
        else:
            use_program(data)
