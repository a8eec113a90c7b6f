"""Recordings of compiled graphs: what callers hold is never overwritten, whatever memory inputs are in.

There is no GPU here: what stands for a recording runs its steps again, into the memory that it filled first.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precast.native.call import CompiledGraph
from precast.native.targets.cuda import graphs
from precast.native.targets.cuda.graphs import CALLS_BEFORE, MOST_RECORDINGS, RecordedGraph, may_be_recorded
from tests.native.cuda.interpreted import InterpretedGpu, compiled
from tests.native.lowering.cases import floats


class _Stream:
    def wait_stream(self, other: object) -> None:
        pass


_STREAM = _Stream()


@dataclass
class Again:
    """Stands for a recording: runs what ran while it was made once more, and writes to the same places."""

    device: "Device"
    run: Any = None
    replays: int = 0

    def capture_begin(self, **_: object) -> None:
        self.device.recording = self

    def capture_end(self) -> None:
        self.device.recording = None

    def replay(self) -> None:
        self.replays += 1
        self.run()


@dataclass
class Device:
    """What ``torch.cuda`` is asked for, and the recordings that were made."""

    recording: Again | None = None
    made: list[Again] = field(default_factory=list)

    def graph(self) -> Again:
        self.made.append(Again(self))
        return self.made[-1]


class Recording(InterpretedGpu):
    """Kernels in the interpreter, recorded."""

    def repeated(self, graph: CompiledGraph) -> Any:
        return RecordedGraph(graph) if may_be_recorded(graph) else None


@pytest.fixture
def device(monkeypatch) -> Device:
    device = Device()
    for name, found in {
        "CUDAGraph": device.graph,
        "current_stream": lambda: _STREAM,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(graphs, "_recording_stream", lambda number: _STREAM)
    monkeypatch.setattr(graphs, "_settings", tuple)
    monkeypatch.setattr(graphs, "_is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(graphs, "_DEVICE", "cpu")
    run_steps = CompiledGraph.run_steps

    def run_and_note(self: CompiledGraph, steps: Any, values: Any, sizes: Any, *, keep: Any = ()) -> None:
        recording, before = device.recording, list(values)
        run_steps(self, steps, values, sizes, keep=keep)
        if recording is not None:
            filled = dict(enumerate(values))

            def again() -> None:
                new = list(before)
                run_steps(self, steps, new, sizes, keep=keep)
                for number in range(self.graph.inputs, len(new)):
                    if isinstance(filled[number], torch.Tensor) and isinstance(new[number], torch.Tensor):
                        filled[number].copy_(new[number])

            recording.run = again

    monkeypatch.setattr(CompiledGraph, "run_steps", run_and_note)
    return device


@pytest.fixture
def target(tmp_path) -> Recording:
    return Recording(tmp_path)


def test_calls_are_recorded_once_and_then_replayed(target, device):
    function = compiled(target, lambda x: x.sin() * 2)
    x = floats(600)
    with torch.no_grad():
        for _ in range(CALLS_BEFORE + 5):
            torch.testing.assert_close(function(x), x.sin() * 2)
    assert len(device.made) == 1
    assert device.made[0].replays == 5


def test_inputs_elsewhere_are_copied(target, device):
    function = compiled(target, lambda x: x.sin() * 2)
    with torch.no_grad():
        for seed in range(8):
            x = floats(600, seed=seed)
            torch.testing.assert_close(function(x), x.sin() * 2)
    assert len(device.made) == 1


def test_results_that_are_held_stay(target, device):
    function = compiled(target, lambda x: (x.sin() * 2, x.sum()))
    inputs = [floats(4096, seed=seed) for seed in range(14)]
    with torch.no_grad():
        kept = [function(x) for x in inputs]
    for x, (mine, total) in zip(inputs, kept, strict=True):
        torch.testing.assert_close(mine, x.sin() * 2)
        torch.testing.assert_close(total, x.sum(), rtol=1e-4, atol=1e-4)
    # What callers keep again and again is copied for them in the end.
    assert len(device.made) <= MOST_RECORDINGS + 1
    assert sum(each.replays for each in device.made) == len(inputs) - CALLS_BEFORE


def test_two_forwards_before_their_backwards(target, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    function = compiled(target, model)
    for seed in range(7):
        x, y = floats(20, 64, seed=seed), floats(20, 64, seed=seed + 50)
        first, second = function(x), function(y)
        (first.square().mean() + second.square().mean()).backward()
        mine = [each.grad.clone() for each in model.parameters()]
        model.zero_grad()
        (model(x).square().mean() + model(y).square().mean()).backward()
        for grad, each in zip(mine, model.parameters(), strict=True):
            torch.testing.assert_close(grad, each.grad)
        model.zero_grad()
    assert sum(each.replays for each in device.made) > 8


def test_gradients_that_add_up(target, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    function = compiled(target, model)
    for seed in range(8):
        function(floats(20, 32, seed=seed)).square().mean().backward()
    mine = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    for seed in range(8):
        model(floats(20, 32, seed=seed)).square().mean().backward()
    for grad, each in zip(mine, model.parameters(), strict=True):
        torch.testing.assert_close(grad, each.grad)
    assert device.made


def test_every_replay_draws_other_numbers(target, device):
    function = compiled(target, lambda x: F.dropout(x, 0.5))
    x = torch.ones(300)
    torch.manual_seed(1)
    seen = [function(x) for _ in range(6)]
    assert len({tuple(each.tolist()) for each in seen}) == 6
    assert device.made[0].replays == 4


def test_updates_of_inputs_arrive_where_they_are(target, device):
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(y)
        return x.sum()

    mine = compiled(target, function)
    for seed in range(7):
        x, y = floats(400, seed=seed), floats(400, seed=seed + 9)
        expected = x.clone()
        torch.testing.assert_close(mine(x, y), function(expected, y), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x, expected)
    assert device.made
