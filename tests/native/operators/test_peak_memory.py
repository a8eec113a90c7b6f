"""Scratch memory of native programs, beside what eager has in use at once for the same call."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import precast
from tests.models.zoo import QUICK, ZOO


def eager_peak(call: Callable[[], object]) -> int:
    """The most bytes that are allocated at one time during a call, results included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    in_use = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        in_use += event.nbytes()
        peak = max(peak, in_use)
    return peak


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.models) for name in ZOO]
)
def test_inference_needs_no_more_memory_than_eager(name: str) -> None:
    example = ZOO[name]()
    with torch.no_grad():
        (graph,) = precast.explain(example.module, *example.args, **example.kwargs).graphs
        eager = eager_peak(lambda: example.module(*example.args, **example.kwargs))
    assert graph.scratch.constant is not None
    assert graph.scratch.constant <= eager
