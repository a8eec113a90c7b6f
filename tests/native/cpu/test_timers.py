import torch
from torch.fx.experimental.proxy_tensor import make_fx

from precast.native.describe import Entry
from precast.native.passes.memory import plan
from precast.native.rules import lower_graph
from precast.native.targets.cpu.codegen.generate import generate


def host_of(*, profile: bool) -> str:
    graph = make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(3))
    program = lower_graph(graph, name="forward")
    sources = generate([Entry(program, plan(program))], profile=profile)
    return next(unit.text for unit in sources.units if unit.name == "host.cpp")


def test_timers_are_written_only_when_asked_for():
    assert "timed" not in host_of(profile=False)
    assert "precast::timed timed(forward_times[0]);" in host_of(profile=True)
    assert "precast_step_times" in host_of(profile=True)
