"""Programs made at random are computed as eager computes them, whatever is fused with what."""

import pytest
import torch

from precast.ir.loops.program import KernelGroup
from tests.lower.pipeline import lowered, make_entry, open_entries
from tests.native.random_programs import random_program

# Roundings add up over the steps, and sums amplify them.
SLACK = 100


def assert_right(mine, eager, exact, precision):
    assert (mine.dtype, mine.shape) == (eager.dtype, eager.shape)
    known = exact.isfinite() & eager.isfinite()
    torch.testing.assert_close(mine[~known], eager[~known], equal_nan=True)
    mine, eager, exact = (each[known].double() for each in (mine, eager, exact))
    if known.any():
        allowed = 2 * (eager - exact).abs().max() + SLACK * precision * exact.abs().max().clamp(min=1)
        assert (mine - exact).abs().max() <= allowed


PARTS = [range(8), *(pytest.param(range(at, at + 100), marks=pytest.mark.slow) for at in range(8, 608, 100))]


@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_a_random_program_gives_what_eager_gives(tmp_path, seeds):
    programs = {f"program_{seed}": random_program(seed) for seed in seeds}
    # Gradients take four times as long to build: every other one has them.
    calls = {
        name: program.with_gradients if number % 2 else program
        for number, (name, program) in enumerate(programs.items())
    }
    entries = [make_entry(lowered(calls[name], *program.inputs, name=name)) for name, program in programs.items()]
    model = open_entries(entries, tmp_path)
    for name, program in programs.items():
        exact = calls[name](*(each.double() for each in program.inputs))
        for results in zip(model[name](*program.inputs), calls[name](*program.inputs), exact, strict=True):
            assert_right(*results, program.precision)


def runs_on_both(program):
    """The program once for each half of its inputs: whatever it does, it does to other tensors, too."""

    def run(*inputs):
        half = len(inputs) // 2
        return *program(*inputs[:half]), *program(*inputs[half:])

    return run


@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_a_random_program_on_two_sets_of_tensors_gives_what_eager_gives(tmp_path, seeds):
    programs = {f"program_{seed}": random_program(seed, size=6) for seed in seeds}
    calls = {name: runs_on_both(program) for name, program in programs.items()}
    given = {name: (*program.inputs, *(each * 0.5 for each in program.inputs)) for name, program in programs.items()}
    entries = [make_entry(lowered(calls[name], *given[name], name=name)) for name in programs]
    assert any(isinstance(step, KernelGroup) for entry in entries for step in entry.program.steps)
    model = open_entries(entries, tmp_path)
    for name, program in programs.items():
        exact = calls[name](*(each.double() for each in given[name]))
        for results in zip(model[name](*given[name]), calls[name](*given[name]), exact, strict=True):
            assert_right(*results, program.precision)
