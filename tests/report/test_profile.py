import copy
import json

import pytest
import torch

import precast
from precast.errors import InputValueError
from precast.report.step_costs import Roofline


def mix(x, weight):
    return (x @ weight).relu().sum()


@pytest.fixture
def compiled(tmp_path):
    return precast.compile(mix, options={"profile": True, "cache_directory": tmp_path})


def test_every_step_is_timed_counted_and_led_back_to_its_line(compiled):
    compiled(torch.ones(8, 16), torch.ones(16, 4))
    compiled(torch.ones(8, 16), torch.ones(16, 4))
    library, *_, kernel = precast.profile(compiled).steps
    assert (library.cost.kind, kernel.cost.kind) == ("library", "kernel")
    assert (library.time.calls, kernel.time.calls) == (2, 2)
    assert 0 < library.time.shortest <= library.time.total
    assert library.cost.flops >= 2 * 8 * 16 * 4
    assert library.cost.moved >= 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert "in mix: return (x @ weight).relu().sum()" in kernel.cost.lines[0]


def test_a_call_that_finishes_another_is_not_counted_as_half_of_it(tmp_path):
    model = torch.nn.ModuleList([torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2)]).eval()
    options = {"profile": True, "freeze": True, "cache_directory": tmp_path}
    both = precast.compile(lambda x: model[0](x) + model[1](x), options=options)
    with torch.no_grad():
        both(torch.ones(1, 16, 8, 8))
    products = 2 * 64 * 16 * 16 * 9
    counts = [step.cost.flops for step in precast.profile(both).steps if step.cost.flops > products / 4]
    assert len(counts) == 2
    assert all(products <= count < 1.1 * products for count in counts)


def test_the_backward_is_a_graph_of_its_own(compiled):
    compiled(torch.ones(8, 16), torch.ones(16, 4, requires_grad=True)).backward()
    text = str(precast.profile(compiled))
    assert "forward graph:" in text
    assert "backward graph:" in text


def test_the_costliest_row_comes_first_and_equal_steps_share_one(tmp_path):
    weight = torch.ones(64, 64)
    chain = precast.compile(
        lambda x: x @ weight @ weight @ weight, options={"profile": True, "cache_directory": tmp_path}
    )
    chain(torch.ones(64, 64))
    rows = str(precast.profile(chain)).splitlines()
    assert rows[1].split()[:5] == ["ms", "share", "times", "kind", "operators"]
    assert rows[2].split()[2:5] == ["3", "library", "mm"]


def test_a_profile_is_plain_data_and_a_chrome_trace(compiled, tmp_path):
    compiled(torch.ones(8, 16), torch.ones(16, 4))
    profile = precast.profile(compiled)
    data = json.loads(json.dumps(profile.as_data()))
    assert data["steps"][0]["operators"][0] == "mm"
    assert data["steps"][0]["share_of_roofline"] > 0
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["ph"] for event in events[:3]] == ["M", "X", "X"]
    assert events[1]["ts"] + events[1]["dur"] <= events[2]["ts"]


def test_what_torch_runs_between_is_timed_too(tmp_path):
    def mixed(x):
        turned = torch.view_as_complex(x.exp())
        return torch.view_as_real(turned.tanh()) + 1

    compiled = precast.compile(mixed, options={"profile": True, "cache_directory": tmp_path})
    compiled(torch.ones(3, 2))
    kinds = [step.cost.kind for step in precast.profile(compiled).steps]
    assert kinds == ["kernel", "torch", "kernel"]
    assert precast.profile(compiled).steps[1].time.calls == 1


def test_dynamic_sizes_count_as_they_were_traced(tmp_path):
    double = precast.compile(lambda x: x + x, dynamic=True, options={"profile": True, "cache_directory": tmp_path})
    double(torch.ones(10, 3))
    (step,) = precast.profile(double).steps
    assert step.cost.moved == 2 * 4 * 30


def test_a_copy_of_a_profiled_module_starts_without_times(tmp_path):
    module = precast.compile(torch.nn.Tanh(), options={"profile": True, "cache_directory": tmp_path})
    module(torch.ones(3))
    other = copy.deepcopy(module)
    other(torch.ones(3))
    assert precast.profile(other).steps[0].time.calls >= 1


def test_what_was_not_compiled_has_no_profile():
    with pytest.raises(InputValueError, match="compile it first"):
        precast.profile(mix)


def test_what_was_compiled_without_timers_has_no_times(tmp_path):
    plain = precast.compile(mix, options={"cache_directory": tmp_path})
    plain(torch.ones(8, 16), torch.ones(16, 4))
    with pytest.raises(InputValueError, match="no times to report"):
        precast.profile(plain)


def test_the_peak_is_never_below_what_a_step_reached():
    assert Roofline(1, 100.0, 10.0).at_least(150.0).flops_a_second == 150.0
    assert Roofline(1, 100.0, 10.0).at_least(50.0).flops_a_second == 100.0


def test_the_roofline_is_what_takes_longer():
    roofline = Roofline(1, flops_a_second=100.0, bytes_a_second=10.0)
    assert roofline.shortest_seconds(1000, 10) == 10
    assert roofline.shortest_seconds(10, 1000) == 100


def test_a_kernel_for_many_tensors_counts_for_each_of_them():
    function = precast.compile(lambda *given: [each.sin() for each in given], options={"profile": True})
    function(torch.ones(3), torch.ones(2, 2))
    (step,) = precast.profile(function).steps
    assert step.cost.times == 2
