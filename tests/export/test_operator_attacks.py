"""Operators that programs from files may call stay inside their tensors, whatever arguments a file gives them."""

import io
import json
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import fx

from precast.errors import ArtifactError, ExportError, InputValueError
from precast.export import export, load, save
from precast.ops.fitting_arguments import RULES
from precast.ops.operators_in_files import checked, is_checked, may_be_called_by_files, with_checked_calls
from tests.export import made_up_calls
from tests.export.damage import members_of, with_program
from tests.export.operator_attacks import as_from_a_file, attack, in_child, main, recorded_calls

aten = torch.ops.aten
_LIBRARY = re.compile(r"""(?:Library\(\s*|custom_op\(\s*f?|define\(\s*)["'](\w+)(?:::|["'])""")


@pytest.fixture(scope="module")
def calls():
    """Real calls of the operators that are checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recorded_calls(is_checked, most=2)


@pytest.mark.slow
def test_real_calls_pass_the_checks(calls):
    assert len(calls) > 25
    refused = []
    for kept in calls.values():
        for func, args, kwargs in kept:
            try:
                as_from_a_file(func, args, kwargs)
            except InputValueError:
                refused.append((func, args, kwargs))
    assert refused == []


@pytest.mark.slow
def test_calls_that_lie_do_not_reach_outside(calls):
    for func, kept in calls.items():
        code = in_child(lambda kept=kept: attack(kept, as_from_a_file, times=15, seed=1), seconds=30, gigabytes=16)
        assert code in (0, -signal.SIGALRM), f"{func} was killed: {code}"


@pytest.mark.slow
def test_no_operator_that_files_may_call_reaches_outside():
    assert main(times=150, seed=2) == 0


def test_some_made_up_calls_do_not_reach_outside():
    assert list(made_up_calls.reaching_outside(made_up_calls.operators()[7::29], times=5, seed=3)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_made_up_calls_do_not_reach_outside():
    assert subprocess.call([sys.executable, "-m", "tests.export.made_up_calls", "30", "4", "1"]) == 0


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (aten._native_batch_norm_legit.no_stats, (None, None, False, 0.1, 1e-5)),
        (aten.native_batch_norm.default, (None, None, None, None, False, 0.1, 1e-5)),
        (aten._batch_norm_no_update.default, (None, None, None, None, 0.1, 1e-5)),
        (aten.unfold_backward.default, ([2, 2], 1, 2, 1)),
        (aten._weight_norm.default, (torch.ones(1, 1),)),
        (aten._weight_norm_interface.default, (torch.ones(2, 1), 2)),
        (aten.unfold_backward.default, ([], 0, 3, 1)),
        (aten.smooth_l1_loss_backward.default, (torch.ones(2, 3).long(), torch.ones(2, 3).long(), 1, 0.0)),
        (aten._unsafe_masked_index.default, (torch.ones(1, dtype=torch.bool), [torch.zeros(1).long()] * 3, 0.0)),
    ],
)
def test_statistics_that_are_missing_and_windows_or_indices_that_do_not_fit_are_refused(operator, arguments):
    with pytest.raises(InputValueError, match="do not fit together"):
        checked(operator)(torch.ones(2, 3), *arguments)


def test_gradients_of_windows_pass_the_checks():
    for x in (torch.tensor(2.0), torch.ones(5), torch.ones(2, 7)):
        windows = x.unfold(-1, 1, 2)
        grad = checked(aten.unfold_backward.default)(torch.ones_like(windows), list(x.shape), -1, 1, 2)
        assert grad.shape == x.shape
        assert grad.sum() == windows.numel()


def test_every_rule_is_about_an_operator_that_files_may_call():
    names = [name.split("::") if "::" in name else ("aten", name) for name in RULES]
    assert [name for name in names if not may_be_called_by_files(*name)] == []


def test_torchs_own_namespaces_are_refused_but_those_of_the_list():
    """Of those that are registered now, and of those that some module of torch would register."""
    # In a process of its own: libraries that are imported register operators, too.
    listing = "import torch; print(*{each.name.partition('::')[0] for each in torch._C._jit_get_all_schemas()})"
    loaded = set(
        subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    )
    sources = [path.read_text(encoding="utf-8") for path in Path(torch.__file__).parent.rglob("*.py")]
    written = {name for text in sources for name in _LIBRARY.findall(text) if not name.startswith(("my", "__"))}
    # Examples in docstrings, and the operators of tests, have namespaces of their own.
    own = {name for name in loaded | written if not name.startswith(("my", "test", "tests", "precast"))} - {"_"}
    assert {"c10d", "fsdp", "quantized_decomposed"} <= own
    assert sorted(name for name in own if may_be_called_by_files(name, "x")) == [
        "prims",
        "quantized_decomposed",
        "torch_nn",
    ]


def test_indices_of_pixels_that_are_not_there_are_refused_when_they_are_used():
    grad, x = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4)

    class Gradient(torch.nn.Module):
        def forward(self, grad, x, indices):
            return aten.max_pool2d_with_indices_backward(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)

    exported = export(Gradient(), (grad, x, torch.zeros(1, 1, 2, 2, dtype=torch.int64)))
    file = io.BytesIO()
    save(exported, file)
    module = load(file).module()
    right = torch.tensor([[[[0, 3], [8, 15]]]])
    torch.testing.assert_close(module(grad, x, right), Gradient()(grad, x, right))
    for wrong in (16, -1, 2**40, -(2**62)):
        with pytest.raises(InputValueError, match="outside of its tensors"):
            module(grad, x, torch.full((1, 1, 2, 2), wrong))


def graph_module(root, call):
    graph = fx.Graph()
    graph.output(call(graph, graph.placeholder("x")))
    return fx.GraphModule(root, graph)


def test_branches_of_control_flow_are_checked_too():
    op = aten._softmax_backward_data.default
    branch = graph_module({}, lambda graph, x: graph.call_function(op, (x, x, 5, torch.float32)))
    outer = graph_module({"branch": branch}, lambda graph, x: graph.call_module("branch", (x,)))
    with pytest.raises(InputValueError):
        with_checked_calls(outer)(torch.ones(2, 2))
    assert branch.graph.find_nodes(op="call_function", target=op), "what was given stays as it is"


def test_checked_operators_can_be_traced():
    op = checked(aten._softmax_backward_data.default)
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 2)
        assert op(x, x, 1, torch.float32).shape == (2, 2)


REFUSED = [
    "aten._reshape_alias.default", "aten.from_file.default", "aten.save.default", "aten.set.source_Tensor",
    "aten._sparse_coo_tensor_unsafe.default", "aten.resize.default", "quantized.linear.default",
    "aten.to_sparse.default", "aten._cudnn_rnn.default", "mkldnn._linear_pointwise.default", "prim.device.default",
    "inductor.resize_storage_bytes_.default", "aten._nested_view_from_buffer.default",
    "profiler._record_function_enter.default", "aten._embedding_bag_sparse_backward.default",
    "_c10d_functional.all_reduce_.default", "rngprims.philox_rand.default", "aten._stack.default",
    "aten.remainder.int", "aten.slice.t", "aten.split.str",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_are_not_on_the_list_are_refused(name):
    file = io.BytesIO()
    save(export(torch.nn.ReLU(), (torch.ones(2),)), file)
    program = members_of(file.getvalue())["program.json"].replace(b"aten.relu.default", name.encode())
    with pytest.raises(ArtifactError, match="might reach beyond"):
        load(io.BytesIO(with_program(file.getvalue(), json.loads(program))))


def test_what_could_not_be_loaded_is_not_saved():
    class Alias(torch.nn.Module):
        def forward(self, x):
            return aten._reshape_alias(x, [2], [1]) + 1

    with pytest.raises(ExportError, match="cannot be saved"):
        save(export(Alias(), (torch.ones(2),)), io.BytesIO())
