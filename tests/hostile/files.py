"""What is done with a hostile file: it is opened, called and verified, as whoever got it would."""

import io
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import fx

import precast
import precast.runtime
from precast.errors import ArtifactError, PrecastError
from tests.hostile.bases import Base
from tests.hostile.mutations import hostile_file


def use_program(data: bytes) -> None:
    """Load a program: an ``ArtifactError``, or one that can be called, whatever that raises."""
    try:
        loaded = precast.load(io.BytesIO(data))
    except ArtifactError:
        return
    loaded.validate()
    str(loaded)
    example_inputs = loaded.example_inputs
    if example_inputs is None or _may_run_for_ever(loaded):
        return
    try:
        loaded.module()(*example_inputs[0], **example_inputs[1])
    except Exception:  # noqa: BLE001
        # Operators tell in torch's words what they do not like.
        return


def _may_run_for_ever(program: precast.ExportedProgram) -> bool:
    """Whether it has a loop that data end, or do not."""
    nodes = (node for module in program.graph_module.modules() for node in getattr(module, "graph", fx.Graph()).nodes)
    return any(node.target is torch.ops.higher_order.while_loop for node in nodes)


def use_package(data: bytes, base: Base, *, allow_native: bool) -> None:
    """Load a package, call it and verify it: always an error of ours, an index out of range, or too little memory."""
    try:
        model = precast.runtime.load(data, allow_native=allow_native)
        for entry in model.entries:
            for args, kwargs in base.calls:
                _called(model[entry], args, kwargs)
        for name in model.state:
            if np.prod(model.state._store.read(name).carrier.shape if not allow_native else [1]) < 10**6:
                model.state[name] = model.state[name]
        model.verify()
    except (PrecastError, MemoryError):
        return


def _called(entry: Any, args: Any, kwargs: Any) -> None:
    try:
        entry(*args, **kwargs)
    except (PrecastError, IndexError, MemoryError):
        return


def run_file(bases: tuple[Base, ...], seed: int, case: int) -> None:
    """One hostile file, made from a seed and a number alone."""
    rng = random.Random(f"{seed} {case}")
    base = rng.choice(bases)
    data = hostile_file(base.data, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if base.is_package and rng.random() < 0.85:
            use_package(data, base, allow_native=rng.random() < 0.4)
        else:
            use_program(data)
