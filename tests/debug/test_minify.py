"""The minifier finds the few nodes that fail, also if failing means to crash or to hang."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import fx

from precast.compilers import in_child_process, load_graph, minifier
from precast.errors import InputTypeError, InputValueError

CULPRIT = torch.ops.aten.erfinv.default


def long_model(x, y):
    """Two hundred nodes with one culprit deep inside."""
    for step in range(90):
        x = torch.sin(x) + y if step % 3 else torch.cos(x) * 2
        if step == 57:
            x = torch.erfinv(x)
    first, second = torch.split(x, 2)
    return first * second, x.sum(), y


def contains_culprit(graph_module, inputs):
    return bool(graph_module.graph.find_nodes(op="call_function", target=CULPRIT))


@pytest.fixture
def long_graph(trace):
    graph_module, _ = trace(long_model, torch.ones(4), torch.ones(4))
    assert len(graph_module.graph.nodes) >= 150
    return graph_module, [torch.rand(4), torch.rand(4)]


def test_planted_failure_is_reduced_to_its_node(long_graph, tmp_path):
    smallest, inputs = minifier(*long_graph, contains_culprit, save_dir=tmp_path)
    assert [node.op for node in smallest.graph.nodes] == ["placeholder", "call_function", "output"]
    assert contains_culprit(smallest, inputs)


def test_inputs_of_the_smallest_graph_are_the_values_that_reached_it(long_graph, tmp_path):
    graph_module, inputs = long_graph
    seen = []

    smallest, new_inputs = minifier(graph_module, inputs, contains_culprit, save_dir=tmp_path)

    class Watch(fx.Interpreter):
        def run_node(self, n):
            result = super().run_node(n)
            if n.target is CULPRIT:
                seen.append(result)
            return result

    Watch(graph_module).run(*inputs)
    torch.testing.assert_close(smallest(*new_inputs)[0], seen[0], rtol=0, atol=0, equal_nan=True)


def test_failure_that_needs_two_nodes_keeps_both(long_graph, tmp_path):
    def both(graph_module, inputs):
        return contains_culprit(graph_module, inputs) and bool(
            graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.split.Tensor)
        )

    smallest, _ = minifier(*long_graph, both, save_dir=tmp_path)
    targets = {node.target for node in smallest.graph.nodes if node.op == "call_function"}
    assert {CULPRIT, torch.ops.aten.split.Tensor} <= targets
    assert len(smallest.graph.nodes) <= 8


def test_failure_in_the_numbers_is_reduced(trace, tmp_path):
    def function(x):
        for _ in range(40):
            x = torch.sin(x)
        x = torch.log(x - 2)
        for _ in range(40):
            x = torch.cos(x)
        return x

    graph_module, _ = trace(function, torch.ones(3))
    smallest, inputs = minifier(
        graph_module, [torch.ones(3)], lambda graph, values: bool(graph(*values)[0].isnan().any()), save_dir=tmp_path
    )
    assert len(smallest.graph.nodes) <= 4
    assert smallest(*inputs)[0].isnan().all()


def test_checker_may_change_what_it_is_given(long_graph, tmp_path):
    def destructive(graph_module, inputs):
        found = contains_culprit(graph_module, inputs)
        for value in inputs:
            if isinstance(value, torch.Tensor):
                value.zero_()
        inputs.clear()
        graph_module.graph = fx.Graph()
        return found

    smallest, inputs = minifier(*long_graph, destructive, save_dir=tmp_path)
    assert len(smallest.graph.nodes) == 3
    assert all(value.ne(0).any() for value in inputs)


def test_symbolic_graph_with_sizes_as_inputs(trace, tmp_path):
    def function(x):
        return torch.erfinv(x.view(x.shape[0] * 2, 2)) + 1

    graph_module, fakes = trace(function, torch.ones(4, 4), dynamic=True)
    smallest, inputs = minifier(graph_module, fakes, contains_culprit, save_dir=tmp_path)
    assert len(smallest.graph.nodes) == 3
    assert not isinstance(inputs[0], torch._subclasses.FakeTensor)


def test_numbers_among_the_inputs_are_written_into_the_graph(tmp_path):
    graph = fx.Graph()
    x, size = graph.placeholder("x"), graph.placeholder("size")
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, (x, size)))
    module = fx.GraphModule(torch.nn.Module(), graph)

    def multiplies(graph_module, inputs):
        return bool(graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor))

    smallest, inputs = minifier(module, [torch.ones(2), 3], multiplies, save_dir=tmp_path)
    assert len(inputs) == 1
    torch.testing.assert_close(smallest(*inputs)[0], torch.full((2,), 3.0))


def test_graph_that_does_not_fail_is_refused(long_graph):
    with pytest.raises(InputValueError, match="the checker returns False for the graph as given"):
        minifier(*long_graph, lambda graph_module, inputs: False)


def test_granularity_below_one_is_refused(long_graph):
    with pytest.raises(InputValueError, match="max_granularity must be at least 1"):
        minifier(*long_graph, contains_culprit, max_granularity=0)


def test_granularity_bounds_the_steps(trace, tmp_path):
    graph_module, _ = trace(lambda x: x.sin().cos().sin().cos().sin().cos().sin().cos(), torch.ones(2))
    sizes = []

    def watch(graph_module, inputs):
        sizes.append(len(graph_module.graph.nodes))
        return len(sizes) == 1

    minifier(graph_module, [torch.ones(2)], watch, max_granularity=1, save_dir=tmp_path)
    assert len(sizes) == 1 + 7 + 7 + 8  # the graph itself, suffixes, prefixes, single nodes


def test_interrupt_keeps_the_smallest_found_so_far(long_graph, tmp_path):
    sizes = []

    def impatient(graph_module, inputs):
        found = contains_culprit(graph_module, inputs)
        if found:
            sizes.append(len(graph_module.graph.nodes))
        if len(sizes) == 4:
            raise KeyboardInterrupt
        return found

    smallest, _ = minifier(*long_graph, impatient, save_dir=tmp_path)
    assert len(smallest.graph.nodes) == sizes[2] < sizes[0]
    assert (tmp_path / "repro.py").exists()


def test_repro_script_runs_by_itself(long_graph, tmp_path, capsys):
    smallest, inputs = minifier(*long_graph, contains_culprit, save_dir=tmp_path)
    printed = capsys.readouterr().out
    assert "torch.ops.aten.erfinv.default" in printed
    assert str(tmp_path / "repro.py") in printed
    code = "import sys, runpy; sys.modules['precast'] = None; runpy.run_path('repro.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(smallest(*inputs))


def test_repro_with_large_and_odd_inputs_reads_them_from_beside_it(trace, tmp_path):
    graph_module, _ = trace(lambda x, y: x.t() @ y, torch.ones(20, 20), torch.ones(20, 20))
    large = torch.randn(20, 20)
    smallest, inputs = minifier(graph_module, [large, large.t()], lambda *_: True, save_dir=tmp_path)
    done = subprocess.run([sys.executable, tmp_path / "repro.py"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(smallest(*inputs))


def test_saved_repro_can_be_minified_again(long_graph, tmp_path):
    minifier(*long_graph, contains_culprit, save_dir=tmp_path)
    assert contains_culprit(load_graph(tmp_path), [])


def test_without_a_folder_the_repro_goes_to_a_new_one(long_graph, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    minifier(*long_graph, contains_culprit)
    assert list(tmp_path.glob("precast_repro_*/repro.py"))


def crash_on_culprit(graph_module, inputs):
    if contains_culprit(graph_module, inputs):
        os.kill(os.getpid(), signal.SIGSEGV)
    return False


def hang_on_culprit(graph_module, inputs):
    if contains_culprit(graph_module, inputs):
        time.sleep(60)
    return False


def test_crash_is_reduced_to_its_node(long_graph, tmp_path):
    smallest, _ = minifier(*long_graph, in_child_process(crash_on_culprit, crashes=True), save_dir=tmp_path)
    assert len(smallest.graph.nodes) <= 5
    assert contains_culprit(smallest, [])


def test_hang_is_reduced_to_its_node(long_graph, tmp_path):
    checker = in_child_process(hang_on_culprit, timeout=0.5, hangs=True)
    smallest, _ = minifier(*long_graph, checker, save_dir=tmp_path)
    assert len(smallest.graph.nodes) <= 5
    assert contains_culprit(smallest, [])


@torch.library.custom_op("precast_test::die", mutates_args=())
def die(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x.clone()


@die.register_fake
def _(x):
    return torch.empty_like(x)


def test_op_that_itself_crashes_is_reduced(trace, tmp_path):
    def function(x):
        for step in range(60):
            x = torch.sin(x)
            if step == 33:
                x = die(x)
        return x

    graph_module, _ = trace(function, torch.ones(2))

    def run(candidate, inputs):
        candidate(*inputs)
        return False

    smallest, inputs = minifier(graph_module, [torch.ones(2)], in_child_process(run, crashes=True), save_dir=tmp_path)
    assert len(smallest.graph.nodes) == 3
    assert len(inputs) == 1


def test_checker_as_source_runs_in_a_fresh_interpreter(trace):
    graph_module, _ = trace(torch.exp, torch.ones(2))
    source = "def check(graph_module, inputs):\n    return bool(graph_module(*inputs).eq(1).all())\n"
    assert in_child_process(source)(graph_module, [torch.zeros(2)])
    assert not in_child_process(source)(graph_module, [torch.ones(2)])


def test_source_may_define_the_ops_of_the_graph(trace):
    graph_module, _ = trace(lambda x: die(x), torch.ones(2))
    source = """
import torch
@torch.library.custom_op("precast_test::die", mutates_args=())
def die(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
def check(graph_module, inputs):
    return bool(graph_module(*inputs).eq(1).all())
"""
    assert in_child_process(source)(graph_module, [torch.ones(2)])


@pytest.mark.slow
def test_crash_told_in_source_is_reduced(trace, tmp_path):
    graph_module, _ = trace(lambda x: torch.erfinv(torch.sin(x).cos()).neg(), torch.ones(2))
    source = """
import os, signal
def check(graph_module, inputs):
    if any("erfinv" in str(node.target) for node in graph_module.graph.nodes):
        os.kill(os.getpid(), signal.SIGSEGV)
    return False
"""
    smallest, _ = minifier(graph_module, [torch.ones(2)], in_child_process(source, crashes=True), save_dir=tmp_path)
    assert len(smallest.graph.nodes) == 3


def test_fresh_interpreter_is_stopped_when_it_hangs(trace):
    graph_module, _ = trace(torch.exp, torch.ones(2))
    source = "import time\ndef check(graph_module, inputs):\n    time.sleep(60)\n"
    assert in_child_process(source, timeout=1.0, hangs=True)(graph_module, [torch.ones(2)])


@pytest.mark.parametrize("checker", [crash_on_culprit, hang_on_culprit])
def test_crash_and_hang_are_no_failure_unless_asked_for(long_graph, checker):
    assert not in_child_process(checker, timeout=0.5)(*long_graph)


def test_answers_of_the_checker_come_through(long_graph):
    assert in_child_process(lambda graph_module, inputs: True)(*long_graph)
    assert not in_child_process(lambda graph_module, inputs: False)(*long_graph)


def test_checker_that_raises_is_told_with_its_traceback(long_graph):
    def raising(graph_module, inputs):
        raise KeyError("missing piece")

    with pytest.raises(InputValueError, match="KeyError: 'missing piece'"):
        in_child_process(raising)(*long_graph)


def test_parallel_ops_in_the_child_do_not_wait_for_the_parents_threads(trace):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).exp().sum()
        graph_module, _ = trace(lambda x: (x @ x).exp().sum(), torch.ones(256, 256))
        checker = in_child_process(lambda graph, inputs: graph(*inputs).item() > 0, timeout=30.0)
        assert checker(graph_module, [torch.ones(256, 256)])
    finally:
        torch.set_num_threads(threads)


def test_checker_of_another_type_is_refused():
    with pytest.raises(InputTypeError, match="a checker must be callable or Python source, not int"):
        in_child_process(3)


def test_fork_is_refused_where_cuda_is_in_use(long_graph, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputValueError, match="pass the checker as source"):
        in_child_process(contains_culprit)(*long_graph)
