"""Buffers that live at the same time do not overlap; those that do not, share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precast.native.loops.buffers import contiguous_buffer, whole
from precast.native.loops.index import evaluate
from precast.native.loops.program import LibraryCall, LoopProgram
from precast.native.passes.memory import ALIGNMENT, lifetimes, plan
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered


def chain_of_products(depth):
    def run(x):
        for _ in range(depth):
            x = x @ x
        return x

    return run


def assert_no_overlap(program, sizes=None):
    planned, lives = plan(program), lifetimes(program)

    def number(index):
        return evaluate(index, lambda each: (sizes or {})[each.name])

    spans = {each: (number(planned.offsets[each]), number(each.byte_size)) for each in lives}
    for first, (start, size) in spans.items():
        assert start % ALIGNMENT == 0
        assert start + size <= number(planned.arena_size)
        for second, (other, other_size) in spans.items():
            together = lives[first][0] <= lives[second][1] and lives[second][0] <= lives[first][1]
            if first != second and together:
                assert start + size <= other or other + other_size <= start


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_long_chain_needs_two_places(dynamic):
    program = fuse(lowered(chain_of_products(9), torch.randn(16, 16), dynamic=dynamic))
    size = evaluate(plan(program).arena_size, lambda _: 16)
    assert size == 2 * 16 * 16 * 4


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9)), min_size=1, max_size=12))
def test_random_lives_never_overlap(buffers):
    made = [contiguous_buffer(f"b{n}", "f32", (size,)) for n, (size, _) in enumerate(buffers)]
    steps = []
    for number, buffer in enumerate(made):
        dying = [each for each, (_, life) in zip(made[:number], buffers, strict=False) if life >= number]
        steps.append(LibraryCall(buffer.name, "matmul", tuple(map(whole, dying)), (whole(buffer),)))
    assert_no_overlap(LoopProgram("main", (), (), (), tuple(steps)))


def test_dynamic_buffers_do_not_overlap_either():
    program = fuse(lowered(lambda a: (a @ a) @ (a @ (a @ a)), torch.randn(5, 5), dynamic=True))
    for size in (1, 5, 100):
        assert_no_overlap(program, {source.symbol: size for source in program.sizes})
