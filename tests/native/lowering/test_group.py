"""Kernels that do the same to different tensors run as one; numbers stay the same."""

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.loops.program import KernelGroup
from precast.native.passes.group import SMALL
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

SHAPES = [(40, 30), (30,), (7, 3, 5), (), (1,), (300, 200), (0, 4), *((size,) for size in range(2, 15))]


def tensors(seed, shapes=SHAPES, **options):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator, **options) for shape in shapes]


def adamw(*values):
    """One update, with the number of the step as a tensor."""
    count = len(values) // 4
    *states, step = values
    parameters, gradients, means, squares = (states[n * count : (n + 1) * count] for n in range(4))
    means = torch._foreach_lerp(means, gradients, 0.1)
    squares = torch._foreach_addcmul(torch._foreach_mul(squares, 0.999), gradients, gradients, 0.001)
    spread = torch._foreach_div(torch._foreach_sqrt(squares), (1 - 0.999**step).sqrt())
    updates = torch._foreach_div(means, torch._foreach_add(spread, 1e-8))
    updates = torch._foreach_mul(updates, -0.01 / (1 - 0.9**step))
    parameters = torch._foreach_add(torch._foreach_mul(parameters, 0.999), updates)
    return *parameters, *means, *squares


def optimizer_inputs(**options):
    return [each for seed in range(4) for each in tensors(seed, **options)] + [torch.tensor(3.0, **options)]


def groups(program):
    return [step for step in program.steps if isinstance(step, KernelGroup)]


def test_an_optimizer_over_twenty_tensors_runs_as_one():
    inputs = optimizer_inputs()
    program = fuse(lowered(adamw, *inputs))
    # Single numbers have no loop: what is computed of them is not one kernel but three.
    assert sorted(len(group.members) for group in groups(program)) == [2, 2, 2, 18]
    assert len(program.steps) == 6


def clipped(*gradients):
    norms = torch._foreach_norm(gradients)
    total = torch.linalg.vector_norm(torch.stack(norms))
    return total, *torch._foreach_mul(gradients, (1 / total).clamp(max=1))


def reduced(*values):
    """Reductions of each kind, of tensors with NaN among others."""
    full = [each for each in values if each.numel()]
    extremes = [number for each in full for number in (each.amax(), each.amin(), (each > 0.9).any(), (each > 0).all())]
    return *extremes, *(each.sum() for each in values), *(each.prod().exp() for each in values)


def with_nan():
    given = tensors(0)
    given[0][30, 20] = given[1][-1] = torch.nan
    return given


CASES = {
    "adamw": (adamw, optimizer_inputs()),
    "adamw_double": (adamw, optimizer_inputs(dtype=torch.float64)),
    "clipped": (clipped, tensors(0)),
    "reduced": (reduced, with_nan()),
}


@pytest.mark.parametrize("name", CASES)
def test_native_results_are_eagers_with_any_number_of_threads(tmp_path, name):
    function, inputs = CASES[name]
    model = open_entries([make_entry(lowered(function, *inputs))], tmp_path)
    results, before = {}, torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results[threads] = model["forward"](*inputs)
    torch.set_num_threads(before)
    for mine, *others, eager in zip(*results.values(), function(*inputs), strict=True):
        torch.testing.assert_close(mine, eager, equal_nan=True)
        assert all(torch.equal(mine.nan_to_num(-1), other.nan_to_num(-1)) for other in others)


def test_groups_of_dynamic_sizes_take_others(tmp_path):
    def function(*given):
        return *(each.exp() for each in given), *torch._foreach_norm(given)

    traced, called = tensors(0, [(3, 4), (5,), (200, 100)]), tensors(1, [(30, 40), (7,), (20, 10)])
    entry = make_entry(lowered(function, *traced, dynamic=True))
    assert [len(group.members) for group in groups(entry.program)] == [3]
    model = open_entries([entry], tmp_path)
    torch.testing.assert_close(model["forward"](*called), function(*called))


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_runs_groups(name):
    function, inputs = CASES[name]
    program = fuse(lowered(function, *inputs))
    assert groups(program)
    for mine, eager in zip(interpret(program, inputs), function(*inputs), strict=True):
        torch.testing.assert_close(mine, eager, equal_nan=True)


def test_norms_of_all_gradients_are_one_group():
    program = fuse(lowered(clipped, *tensors(0)))
    assert sorted(len(group.members) for group in groups(program)) == [2, 18, 18]


def test_kernels_join_past_steps_that_have_nothing_to_do_with_them():
    program = fuse(lowered(lambda x, y, a: (x.sin(), a @ a, y.sin()), *tensors(0, [(50,), (3, 4), (6, 6)])))
    assert [len(group.members) for group in groups(program)] == [2]
    assert len(program.steps) == 2


def test_what_one_writes_and_the_other_needs_keeps_them_apart():
    program = fuse(lowered(lambda x: ((y := x.sin() @ x), y.sin()), *tensors(0, [(60, 60)])))
    assert groups(program) == []


def products(x, y):
    """Each product dies in the loop that follows it."""
    return (x @ x).double(), (y @ y).double()


def test_no_large_temporary_lives_longer():
    large, small = ([torch.zeros(size, size) for _ in range(2)] for size in (64, 16))
    assert 64 * 64 * 4 > SMALL >= 16 * 16 * 4
    assert groups(fuse(lowered(products, *large))) == []
    assert len(groups(fuse(lowered(products, *small)))) == 1


def test_large_temporaries_that_live_anyway_are_no_obstacle():
    def function(x, y):
        products = x @ x, y @ y
        return *(each.sin() for each in products), *(each @ each for each in products)

    program = fuse(lowered(function, *tensors(0, [(64, 64), (48, 48)])))
    assert len(groups(program)) == 1


def test_members_must_be_independent():
    (kernel,) = fuse(lowered(lambda x: x.sin(), *tensors(0, [(5,)]))).steps
    with pytest.raises(AssertionError, match="depend on each other"):
        KernelGroup("sin", (kernel, kernel))
