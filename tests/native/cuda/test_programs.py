"""Programs for GPUs as data, and what runs besides kernels."""

import warnings
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from precast.artifact.gpu_programs import program_from_json, program_to_json
from precast.errors import BuildError
from precast.native.loops.program import KernelGroup, LibraryCall
from precast.native.targets.cuda.build.code import GpuCode
from precast.native.targets.cuda.codegen.generate import generate
from precast.native.targets.cuda.launcher import DriverLauncher, InterpretedKernel
from precast.native.targets.cuda.passes import padding
from precast.native.targets.cuda.routines import convolve
from tests.native.cuda.interpreted import InterpretedGpu, InterpretingLauncher, compiled
from tests.native.lowering.cases import floats, integers


@pytest.fixture
def target(tmp_path) -> InterpretedGpu:
    return InterpretedGpu(tmp_path)


def test_a_stored_program_is_the_same(target):
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).sort(-1).values.softmax(-1)[i] + x.sum()

    compiled(target, function, dynamic=True)(floats(9, 5), integers(4, low=0, high=9))
    programs, _, _ = generate(target.built)
    for program in programs:
        assert program_from_json(program_to_json(program)) == program


def test_choices_and_repetitions_run(target):
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
        _, repeated = torch.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 0.5 + 1), (n, x))
        return chosen, repeated

    mine = compiled(target, function)
    for sign in (1, -1):
        x, n = floats(30).abs() * sign, torch.tensor(0)
        for result, expected in zip(mine(x, n), function(x, n), strict=True):
            torch.testing.assert_close(result, expected)
    assert any(entry.program.steps for entry in target.built)


def test_a_kernel_that_does_not_compile_runs_as_loops(target):
    x = floats(6, 40)
    compiled(target, lambda x: x.softmax(-1) * 2)(x)
    programs, sources, loops = generate(target.built)
    error = BuildError("Triton did not compile it", why="so it said", fix="report it")
    code = GpuCode("", programs=programs, sources=sources, cubins=[error], loops=loops)
    launcher = DriverLauncher(code, torch.device("cpu"))
    with pytest.warns(UserWarning, match=r"so it said\n.*precast-kernel-.*\.py"):
        found = launcher.load(0)
    assert isinstance(found, InterpretedKernel)
    result = torch.empty(6, 40)
    found.launch(1, [x.data_ptr(), result.data_ptr()], [], 0)
    torch.testing.assert_close(result, x.softmax(-1) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DriverLauncher(code, torch.device("cpu")).load(0)


def test_grouped_kernels_that_do_not_compile_run_as_loops(target, monkeypatch):
    def launch(self: InterpretingLauncher, kernel: int, programs: int, addresses: Any, sizes: Any) -> None:
        InterpretedKernel(loops[kernel], torch.device("cpu")).launch(programs, addresses, sizes, 0)

    x, y = [floats(size) for size in (40, 50, 60)], [floats(size, seed=1) for size in (70, 40, 9)]
    function = compiled(target, lambda *inputs: [each.bfloat16() for each in inputs], dynamic=True)
    function(*x)
    _, _, loops = generate(target.built)
    assert [type(each) for each in loops] == [KernelGroup]
    monkeypatch.setattr(InterpretingLauncher, "launch", launch)
    for mine, expected in zip(function(*y), y, strict=True):
        assert torch.equal(mine, expected.bfloat16())


def test_the_code_of_a_step_is_its_kernel(target):
    compiled(target, torch.sin)(floats(8))
    assert ["libdevice.sin" in text for text in target.listing(target.built).values()] == [True]


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [
        (None, torch.float32),
        (None, torch.bfloat16),
        (torch.relu, torch.float32),
        (partial(F.gelu, approximate="tanh"), torch.bfloat16),
    ],
)
def test_a_product_adds_its_bias(target, dtype: torch.dtype, activation):
    model = torch.nn.Linear(24, 16).to(dtype)
    function = model if activation is None else lambda x: activation(model(x))
    x = floats(8, 24, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(compiled(target, function)(x), function(x))
    assert not target.sources


def test_a_bias_of_another_type_is_converted_first(target):
    x, w, bias = floats(8, 24), floats(16, 24, seed=1), floats(16, seed=2, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(target, lambda x, w, b: x @ w.T + b)(x, w, bias), x @ w.T + bias)


def test_a_bias_goes_with_the_loop_that_does_more(target):
    model, x = torch.nn.Linear(24, 16), floats(8, 24)
    with torch.no_grad():
        torch.testing.assert_close(compiled(target, lambda x: model(x).sin())(x), model(x).sin())
    assert len(target.sources) == 1


def test_casts_of_many_weights_are_one_launch(target):
    widths = (48, 64, 48, 80, 48, 48)
    model = torch.nn.Sequential(*(torch.nn.Linear(*each) for each in pairwise(widths)))
    x = floats(8, 48)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(target, model)(x), model(x), rtol=0, atol=0.02)
    (program,) = [entry.program for entry in target.built]
    casts = [step for step in program.steps if isinstance(step, KernelGroup)]
    assert [len(each.members) for each in casts] == [11]


def test_rows_of_large_matrices_are_aligned(target):
    x, w = floats(80, 64, dtype=torch.bfloat16), floats(1001, 64, seed=1, dtype=torch.bfloat16)

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = x @ w.T
        return logits, logits.softmax(-1) @ w

    with torch.no_grad():
        for mine, expected in zip(compiled(target, function)(x, w), function(x, w), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0.02, atol=0.02)
    (program,) = [entry.program for entry in target.built]
    products = [step for step in program.steps if isinstance(step, LibraryCall)]
    strides = {
        stride.constant for step in products for view in (*step.inputs, *step.outputs) for stride in view.strides
    }
    assert 1001 not in strides
    assert 1008 in strides


ROWS = {
    "a part that is not aligned": lambda x, w: (y := torch.relu(x), y @ w, y[:, 1:9] @ w[:8]),
    "a vector": lambda x, w: (y := torch.relu(x), y @ w, y.view(1, -1) @ y.view(-1, 1)),
    "a result that is read": lambda x, w: (y := w.T @ x.T, y @ x),
    "a part of a result": lambda x, w: (y := torch.cat([w.T @ x.T, x.T[:9]]), y @ x),
    "rows of one": lambda x, w: (y := torch.relu(x)[..., None], y.squeeze(-1) @ w, y @ w[:1]),
}


@pytest.mark.parametrize("name", ROWS)
def test_alignment_leaves_other_uses_of_a_matrix_right(target, monkeypatch, name: str):
    monkeypatch.setattr(padding, "SHORTEST", 8)
    x, w = floats(21, 13, dtype=torch.bfloat16), floats(13, 9, seed=1, dtype=torch.bfloat16)
    with torch.no_grad():
        for mine, expected in zip(compiled(target, ROWS[name])(x, w), ROWS[name](x, w), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0.02, atol=0.02)


def test_convolutions_of_nothing_are_zero():
    made = convolve("convolution", [torch.empty(1, 4, 6, 0), floats(2, 4, 2, 2)], (1, 2, 5, 1), (10, 5, 1, 1),
                    (1, 1, 1, 0, 1, 1, 1))  # fmt: skip
    assert torch.equal(made, torch.zeros(1, 2, 5, 1))
