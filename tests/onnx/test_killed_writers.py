"""A process that is killed while it exports or saves: the old model is whole, or the new one, with its own data."""

import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from precast.onnx import ONNXProgram, export
from precast.onnx.session import import_onnxruntime

WIDTH = 256
X = torch.ones(1, WIDTH)


def constant_layer(value: float) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH, bias=False).eval()
    nn.init.constant_(layer.weight, value)
    return layer


def save_for_ever(path: Path, started: Connection, *, exports: bool) -> None:
    layers = [constant_layer(value) for value in (1.0, 2.0)]
    programs = [export(layer, (X,), verify=False) for layer in layers]
    started.send(None)
    while True:
        for layer, program in zip(layers, programs, strict=True):
            if exports:
                export(layer, (X,), path, external_data=True, verify=False)
            else:
                program.save(path, external_data=True)


def kill_a_writer(path: Path, after: float, *, exports: bool) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.onnx.test_killed_writers"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=save_for_ever, args=(path, theirs), kwargs={"exports": exports})
    process.start()
    theirs.close()
    assert ours.poll(60)
    ours.recv()
    time.sleep(after)
    process.kill()
    process.join()


def result_of(path: Path) -> set[float]:
    runtime: Any = import_onnxruntime().InferenceSession(path)
    return set(runtime.run(None, {runtime.get_inputs()[0].name: X.numpy()})[0].reshape(-1).tolist())


def last_save(path: Path) -> ONNXProgram:
    program = export(constant_layer(3.0), (X,), verify=False)
    program.save(path, external_data=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "exports"), [(40, False), (15, True)])
def test_what_killed_writers_leave_is_whole(tmp_path: Path, kills: int, exports: bool):
    path = tmp_path / "model.onnx"
    moments = random.Random(kills)
    last_save(path)
    for _ in range(kills):
        kill_a_writer(path, moments.uniform(0, 0.5 if exports else 0.05), exports=exports)
        (value,) = result_of(path)
        assert value in (WIDTH, 2 * WIDTH, 3 * WIDTH)
    last_save(path)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    assert result_of(path) == {3.0 * WIDTH}


def test_every_move_twice_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whichever move one writer dies at, and then another one, no model is ever over the data of another."""

    class KilledError(BaseException):
        pass

    path = tmp_path / "model.onnx"
    moved, left = os.replace, 0

    def move_or_die(source: Any, target: Any) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        moved(source, target)
        assert not path.exists() or len(result_of(path)) == 1
        if not left:
            raise KilledError

    programs = [export(constant_layer(value), (X,), verify=False) for value in (1.0, 2.0, 3.0)]
    monkeypatch.setattr(os, "replace", move_or_die)
    for first in range(1, 5):
        for second in range(1, 5):
            for program, moves in zip(programs, (99, first, second), strict=True):
                left = moves
                try:
                    program.save(path, external_data=True)
                except KilledError:
                    assert program is not programs[0]
                assert len(result_of(path)) == 1
    left = 99
    programs[0].save(path, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
