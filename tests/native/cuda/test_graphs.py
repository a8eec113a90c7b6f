"""Recordings of compiled graphs: what callers hold is never overwritten, whatever memory inputs are in.

There is no GPU here: what stands for a recording runs its steps again, into the memory that it filled first.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precast.native.call import CompiledGraph
from precast.native.targets.cuda import graphs
from precast.native.targets.cuda.graphs import CALLS_BEFORE, MOST_KINDS, MOST_RECORDINGS, RecordedGraph, may_be_recorded
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
    entered: set[torch.device] = field(default_factory=set)

    def graph(self) -> Again:
        self.made.append(Again(self))
        return self.made[-1]

    def enter(self, device: torch.device) -> Any:
        self.entered.add(device)
        return nullcontext()


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
        "device": device.enter,
        "is_current_stream_capturing": lambda: False,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(graphs, "_recording_stream", lambda number: _STREAM)
    monkeypatch.setattr(graphs, "_is_on_gpu", lambda tensor: True)
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


def test_the_latest_sizes_stay_recorded(target, device):
    function = compiled(target, lambda x: x.sin(), dynamic=True)
    with torch.no_grad():
        for size in range(2, 2 + MOST_KINDS + 3):
            for _ in range(CALLS_BEFORE + 1):
                torch.testing.assert_close(function(floats(size)), floats(size).sin())
            function(floats(2))
    # The size that is called all the time was recorded once.
    assert len(device.made) == MOST_KINDS + 3


def test_broadcast_inputs_are_copied_once(target, device):
    function = compiled(target, lambda x: x.sin() * 2)
    with torch.no_grad():
        for seed in range(6):
            x = floats(5, 1, seed=seed).expand(5, 60)
            torch.testing.assert_close(function(x), x.sin() * 2)
    assert device.made[0].replays == 4


def test_threads_get_their_own_results(target, device):
    function = compiled(target, lambda x: x.sin() * 2)
    inputs = [floats(300, seed=seed) for seed in range(4)]

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [function(x).clone() for _ in range(8)]

    call(inputs[0])
    with ThreadPoolExecutor(4) as pool:
        for x, results in zip(inputs, pool.map(call, inputs), strict=True):
            for result in results:
                torch.testing.assert_close(result, x.sin() * 2)
    assert device.made


def test_recordings_are_made_on_the_device_of_the_tensors(target, device):
    x = floats(600)
    with torch.no_grad():
        compiled(target, torch.sin)(x)
    assert device.entered == {x.device}


def test_a_graph_over_several_devices_is_not_recorded(device):
    assert graphs._only_device([floats(2), torch.empty(2, device="meta"), 3]) is None
    assert graphs._only_device([floats(2), 3]) == torch.device("cpu")


def test_settings_are_read_whichever_way_they_were_made():
    before, matmul = graphs._settings(), torch.backends.cuda.matmul
    usual = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert graphs._settings() != before
    finally:
        matmul.fp32_precision = usual
    assert graphs._settings() == before
