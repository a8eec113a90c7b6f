"""What a report holds, without a browser."""

import copy

import pytest
import torch

import precast
from precast.errors import InputTypeError
from precast.events import StageDone, listening
from precast.pipeline import WAYS
from precast.report.collect import collect
from tests.report.networks import Deciding, Network


@pytest.fixture(scope="module")
def report():
    return collect(Network(), (torch.ones(8, 16),), {}, calls=2)


def test_each_step_leads_from_the_users_lines_to_its_code(report):
    forward, backward = report.graphs
    assert (forward.kind, backward.kind) == ("forward", "backward")
    step = next(each for each in forward.steps if "gelu" in each.operators)
    assert "hidden = F.gelu(self.up(self.norm(x)))" in [report.lines[each].code for each in step.lines]
    assert [forward.nodes[each].operator for each in step.nodes] == ["aten.gelu.default"]
    assert "erf" in report.texts[step.loops]
    assert "#pragma omp" in report.texts[step.code]
    assert step.module == "blocks.0"
    assert step.calls >= 2
    assert step.seconds > 0


def test_library_calls_have_code_too(report):
    calls = [each for graph in report.graphs for each in graph.steps if each.kind.startswith("library")]
    assert calls
    assert all("precast::matmul" in report.texts[each.code] for each in calls)


def test_inputs_have_the_users_names(report):
    labels = {node.label for node in report.graphs[0].nodes if node.kind == "input"}
    assert {"x", "blocks.0.up.weight", "head.bias"} <= labels


def test_the_functions_around_the_lines_are_shown(report):
    texts = ["\n".join(each.lines) for each in report.excerpts]
    assert any("def forward(self, x):\n        hidden" in text for text in texts)


def test_temporaries_fit_into_the_arena_and_are_disjoint_while_they_live(report):
    for graph in report.graphs:
        temporaries = [each for each in graph.buffers if each.kind == "temporary"]
        assert all(each.offset + each.size <= graph.arenas[0] for each in temporaries)
        for one in temporaries:
            for other in temporaries:
                is_beside = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
                assert one is other or is_beside or one.last < other.first or other.last < one.first


def test_what_the_backward_is_handed_is_saved_in_both_graphs(report):
    forward, backward = report.graphs
    saved = [sum(each.size for each in graph.buffers if each.kind == "saved") for graph in (forward, backward)]
    assert saved[0] == saved[1] > 0
    (partition,) = report.partitions
    assert {each.reason for each in partition.recomputed} == {"cheap to recompute"}


def test_passes_tell_what_they_changed(report):
    merged = [each for each in report.passes if each.name == "merge_kernels" and each.is_changing]
    assert merged
    for each in merged:
        assert each.before - each.after == each.gone - each.new
        assert all(report.texts[text].startswith("kernel") for text in each.added)


def test_stages_are_those_of_the_pipeline(report):
    told = {stage.function.partition(":")[2] for stage in WAYS["compile"]} - {"start_build"} | {"build"}
    assert told <= {stage.name for stage in report.stages}


def test_every_stage_of_a_compilation_is_timed():
    events = []
    with listening(events.append):
        precast.explain(lambda x: x.exp(), torch.ones(2))
    names = [each.function for each in events if isinstance(each, StageDone)]
    assert "precast.native.rules.lower:lower_graph" in names


def test_without_calls_nothing_is_built_and_no_times_are_told():
    report = collect(torch.nn.Linear(4, 3), (torch.ones(2, 4),), {}, calls=0)
    assert {each.name for each in report.stages}.isdisjoint({"build", "generate"})
    assert (report.timing, report.peak) == (None, None)
    assert all(step.code is not None for graph in report.graphs for step in graph.steps)


def test_graph_breaks_and_fallbacks_have_a_line_and_a_fix():
    with torch.no_grad():
        report = collect(Deciding(), (torch.ones(2, 4),), {}, calls=1)
    found = next(each for each in report.breaks if each.kind == "graph break")
    assert "if x.sum() > 0" in found.at
    assert found.fix
    assert report.regions[0].is_in_python


def test_what_torch_runs_tells_why():
    with torch.no_grad():
        function = lambda x: torch.view_as_real(torch.view_as_complex(x).tanh())  # noqa: E731
        report = collect(function, (torch.ones(3, 2),), {}, calls=1)
    assert {each.kind for each in report.breaks} == {"torch"}
    assert {each.why for each in report.breaks} == {"There is no rule for complex numbers."}


def test_a_report_leaves_the_model_as_it_was():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    collect(model, (torch.randn(8, 4),), {}, calls=1)
    torch.testing.assert_close(model.state_dict(), before)
    assert all(each.grad is None for each in model.parameters())


def test_a_compiled_function_is_reported_with_its_options():
    compiled = precast.compile(torch.nn.Linear(4, 3).eval(), options={"freeze": True})
    with torch.no_grad():
        report = collect(compiled, (torch.ones(2, 4),), {}, calls=1)
    assert report.options["freeze"] == "True"
    assert report.title == "Linear"


def test_dynamic_sizes_are_told_with_their_conditions():
    compiled = precast.compile(lambda x: x.reshape(-1, 4).sum(0), dynamic=True)
    with torch.no_grad():
        report = collect(compiled, (torch.ones(6, 8),), {}, calls=1)
    assert any("x.shape[0]" in each for each in report.variants[0].sizes)
    assert report.graphs[0].steps[0].moved > 4 * 48


def test_only_what_can_be_called_is_reported():
    with pytest.raises(InputTypeError, match="pass the function"):
        collect(3, (), {})


def test_a_training_step_says_what_to_report_instead():
    model = torch.nn.Linear(4, 1)
    step = precast.train_step(model, lambda m, x: m(x).sum(), torch.optim.SGD(model.parameters()), torch.ones(2, 4))
    with pytest.raises(InputTypeError, match="report on the model"):
        collect(step, (torch.ones(2, 4),), {})


def test_a_function_that_makes_a_whole_step_is_one_graph():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = collect(step, (torch.ones(2, 4),), {}, calls=2)
    assert report.breaks == ()
    assert [graph.kind for graph in report.graphs]


def test_what_segments_hand_on_and_what_a_graph_returns_lives_on():
    def parted(x):
        kept = x.exp()
        return kept, torch.view_as_real(torch.view_as_complex(x.sin()).tanh()) + kept

    with torch.no_grad():
        report = collect(parted, (torch.ones(3, 2),), {}, calls=0)
    (graph,) = report.graphs
    assert [step.kind for step in graph.steps].count("torch") == 1
    lives = {each.kind: (each.first, each.last) for each in graph.buffers}
    assert lives["input"] == (0, len(graph.steps) - 1)
    assert all(each.last == len(graph.steps) - 1 for each in graph.buffers if each.kind == "result")
