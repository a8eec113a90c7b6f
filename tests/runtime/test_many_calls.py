"""One model under many calls: right answers from many threads, and no growth in memory."""

import gc
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import precast
import precast.runtime


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.rows += x.shape[0]
        return self.layers(x)


@pytest.fixture(scope="module")
def original():
    return Counting()


@pytest.fixture(scope="module")
def path(original, tmp_path_factory):
    x = torch.randn(4, 16)
    shapes = {0: precast.Dim("rows", min=1, max=64)}
    entries = {"count": (original, (x,), None, {"x": shapes}), "forward": (original.layers, (x,), None, (shapes,))}
    return precast.package(entries, path=tmp_path_factory.mktemp("many") / "model.precast")


@pytest.mark.parametrize("entry", ["forward", "count"])
def test_eight_threads_get_right_answers(path, original, entry):
    model = precast.runtime.load(path, threads=1)
    inputs = [torch.randn(rows, 16) for rows in range(1, 25)]
    expected = [original.layers(x).detach() for x in inputs]
    start = threading.Barrier(8)

    def work(offset):
        start.wait()
        for number in range(offset, offset + 48):
            position = number % len(inputs)
            torch.testing.assert_close(model[entry](inputs[position]), expected[position])

    with ThreadPoolExecutor(8) as pool:
        for finished in [pool.submit(work, offset) for offset in range(8)]:
            finished.result()
    if entry == "count":
        assert model.state["rows"] == sum(
            len(inputs[number % 24]) for each in range(8) for number in range(each, each + 48)
        )


def test_ten_thousand_calls_do_not_grow(path):
    model = precast.runtime.load(path)
    x, y = np.ones((8, 16), np.float32), np.ones((5, 16), np.float32)

    def call(times):
        for _ in range(times):
            model(x)
            model["count"](y)
        gc.collect()

    call(500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(5000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048
