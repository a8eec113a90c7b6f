"""Loops take the shape of memory: joined where it goes on, split where a view would divide."""

import torch

from precast.native.loops.printer import print_kernel
from precast.native.loops.program import Kernel
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered


def kernels_of(function, *inputs, dynamic=False):
    program = fuse(lowered(function, *inputs, dynamic=dynamic))
    return [print_kernel(step) for step in program.steps if isinstance(step, Kernel)]


def loops_of(function, *inputs, dynamic=False):
    return [
        [line.strip() for line in kernel if line.strip().startswith("for ")]
        for kernel in kernels_of(function, *inputs, dynamic=dynamic)
    ]


def test_what_lies_side_by_side_is_one_loop():
    assert loops_of(torch.exp, torch.zeros(4, 5, 6)) == [["for i0 < 120:"]]


def test_what_is_broadcast_keeps_its_loop():
    assert loops_of(torch.add, torch.zeros(4, 5, 6), torch.zeros(6)) == [["for i0 < 20, i1 < 6:"]]


def test_dimensions_that_are_added_up_together_are_one_loop():
    assert loops_of(lambda x: x.sum((2, 3)), torch.zeros(2, 3, 7, 7)) == [["for i0 < 6:", "for i1 < 49:"]]


def test_a_transposed_copy_keeps_its_loops():
    assert loops_of(lambda x: x.t().exp(), torch.zeros(4, 5)) == [["for i0 < 20:"]]
    assert loops_of(lambda x: x.t().contiguous() + 1, torch.zeros(40, 9)) == [["for i0 < 9, i1 < 40:"]]


def test_heads_are_put_side_by_side_without_divisions():
    loops = loops_of(lambda x: x.transpose(1, 2).reshape(2, 16, 32).exp(), torch.zeros(2, 4, 16, 8))
    assert loops == [["for i0 < 2, i1 < 16, i2 < 4, i3 < 8:"]]


def test_rows_merge_with_what_runs_over_the_same_memory_flat():
    def function(x, b):
        y = x + b
        return y, y.view(-1).exp()

    assert loops_of(function, torch.zeros(4, 8, 6), torch.zeros(6)) == [["for i0 < 32, i1 < 6:"]]
    assert len(loops_of(function, torch.zeros(4, 8, 6), torch.zeros(6), dynamic=True)) == 1


def test_a_loop_that_reads_other_iterations_does_not_merge():
    def function(x):
        y = x.exp()
        return y, y.t().contiguous()

    assert len(loops_of(function, torch.zeros(4, 8))) == 2


def test_rows_and_columns_of_a_square_do_not_merge():
    assert len(loops_of(lambda x: (x.sum(0), x.exp().sum(1)), torch.zeros(64, 64))) == 2
    assert len(loops_of(lambda x: (x.sum(1), x.exp().sum(1)), torch.zeros(64, 64))) == 1
