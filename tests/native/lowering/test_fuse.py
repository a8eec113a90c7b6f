"""Fusion makes fewer loops of them and changes no number."""

import os
import subprocess
import sys

import pytest
import torch

from precast.native.loops.index import constant, product
from precast.native.loops.interpreter import interpret
from precast.native.loops.printer import print_program
from precast.native.loops.program import Kernel, LibraryCall, written_by
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import bullet_inputs, lowered, tracer_bullet
from tests.repository.sources import ROOT


def matrix(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernels(program):
    return [step for step in program.steps if isinstance(step, Kernel)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_tracer_bullet_fuses(assert_golden, dynamic):
    program = fuse(lowered(tracer_bullet, *bullet_inputs(), dynamic=dynamic))
    assert_golden(f"bullet_fused{'_dynamic' if dynamic else ''}", print_program(program))


PROGRAMS = {
    "chain": (lambda a: (a.exp() + 1).tanh() * 2, [matrix(5, 6)]),
    "two readers": (lambda a: ((e := a.exp()).sum(), e * 2), [matrix(5, 6)]),
    "softmax": (lambda a: a.softmax(-1), [matrix(5, 6)]),
    "softmax of columns": (lambda a: a.softmax(0), [matrix(5, 6)]),
    "square with transposed": (lambda a: (e := a.exp()) + e.t(), [matrix(5, 5)]),
    "reduce rows and columns": (lambda a: (e := a.exp()).sum(0) + e.sum(1), [matrix(5, 5)]),
    "reduce twice": (lambda a: (a - a.mean(1, keepdim=True)).pow(2).sum(1), [matrix(5, 6)]),
    "total in rows": (lambda a: a / a.sum(), [matrix(5, 6)]),
    "rows of a product": (lambda a, b: (a @ b).softmax(1) @ b.t(), [matrix(5, 6), matrix(6, 4)]),
    "cat of computed": (lambda a, b: torch.cat([a.exp(), b.tanh()], 1).sum(1), [matrix(5, 6), matrix(5, 2)]),
    "views": (lambda a: a.view(3, 10).t().reshape(5, 6) * a.flip(0), [matrix(5, 6)]),
    "independent": (lambda a, b: (a.exp(), b.exp(), a + b), [matrix(5, 6), matrix(5, 6)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_fusion_changes_no_number(name, dynamic):
    function, inputs = PROGRAMS[name]
    program = lowered(function, *inputs, dynamic=dynamic and "views" not in name)
    for before, after in zip(interpret(program, inputs), interpret(fuse(program), inputs), strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize(
    ("name", "count"), [("chain", 1), ("two readers", 1), ("softmax", 1), ("reduce twice", 1), ("cat of computed", 1)]
)
def test_fuses_into_few_kernels(name, count):
    function, inputs = PROGRAMS[name]
    assert len(kernels(fuse(lowered(function, *inputs)))) == count


def test_what_a_call_reads_many_times_is_written_once():
    program = fuse(lowered(lambda a, b: (a * 2).expand(8, 6, 5) @ b, matrix(6, 5), torch.randn(8, 5, 4).double()))
    kernel, call = program.steps
    (doubled,) = written_by(kernel)
    assert doubled == call.inputs[0].buffer
    assert product(doubled.shape) == constant(30)


def test_views_of_matrices_cost_no_kernel():
    program = fuse(lowered(lambda a, b: a.t()[1:] @ b.view(6, 2), matrix(6, 5), matrix(3, 4)))
    (call,) = program.steps
    assert isinstance(call, LibraryCall)
    assert str(call.inputs[0].offset) == "1"


def test_a_matrix_that_repeats_a_row_is_written_out_for_the_library():
    program = fuse(lowered(lambda a, b: a.expand(6, 5) @ b, matrix(1, 5), matrix(5, 4)))
    _, call = program.steps
    assert call.inputs[0].strides == (constant(5), constant(1))


def test_a_value_that_another_iteration_needs_is_not_merged():
    program = fuse(lowered(lambda a: (e := a.exp()) + e.t(), matrix(5, 5)))
    assert len(kernels(program)) == 2


def test_loops_that_share_but_one_number_stay_loops_of_their_own():
    program = fuse(lowered(lambda x, y, n: (x / n, (y * n).exp()), matrix(4, 6), matrix(4, 6), matrix()))
    assert all(len(written_by(step)) == 1 for step in program.steps)


def test_steps_that_nobody_needs_are_dropped():
    program = fuse(lowered(lambda a: (a.exp(), a @ a)[0], matrix(5, 5)))
    assert [step.name for step in program.steps] == ["exp"]


def test_a_program_with_nothing_to_fuse_comes_back_as_it_is():
    program = lowered(lambda a, b: a @ b, matrix(2, 3), matrix(3, 2))
    assert fuse(program) is program
    fused = fuse(lowered(lambda a: a.softmax(1), matrix(2, 3)))
    assert fuse(fused) is fused


_WRITE = """
import torch
from precast.native.targets.cpu.codegen.generate import generate
from tests.native.lowering.pipeline import lowered, make_entry

def function(x, y):
    z = torch.nn.functional.layer_norm(x.view(4, 6, 8) * y, (8,)).transpose(0, 1)
    return z.reshape(6, 32).softmax(-1), z.sum((0, 2)), z.view(6, 2, 2, 8).mean(2)

program = lowered(function, torch.ones(24, 8), torch.ones(4, 6, 8))
print([unit.text for unit in generate([make_entry(program)]).units])
"""


@pytest.mark.slow
def test_the_same_program_gives_the_same_code_in_every_process():
    texts = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run([sys.executable, "-c", _WRITE], env=environment, capture_output=True, cwd=ROOT, check=True)
        texts.append(ran.stdout)
    assert texts[0] == texts[1]
