"""New values of inputs are written into them, and of an input that changes in part only that part."""

from math import prod

import pytest
import torch

from precast.graph.nodes import mark_updating_result
from precast.native.loops.program import Kernel, LoopProgram, statements_of, stores_of, variables_of
from precast.native.rules import lower_graph
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import trace

CACHE, PART = torch.zeros(3, 16, 8), torch.ones(3, 8)


def updating(function, *inputs: torch.Tensor) -> LoopProgram:
    """The program of a function whose first result is the new value of its first input."""
    module = trace(function, inputs)
    mark_updating_result(next(iter(module.graph.nodes)), 0)
    return fuse(lower_graph(module))


def written_elements(program: LoopProgram) -> int:
    """How many times the loops that write the first input run."""
    (kernel,) = [each for each in program.steps if isinstance(each, Kernel) and program.inputs[0] in each.written]
    assert all(store.buffer == program.inputs[0] for store in stores_of(kernel.body))
    return prod(variable.extent.constant or 1 for variable in variables_of(kernel.body))


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda c, v: (torch.select_scatter(c, v, 1, 5),), 24),
        (lambda c, v: (torch.select_scatter(c, v, 1, -1),), 24),
        (lambda c, v: (torch.slice_scatter(c, v[:, None].expand(3, 4, 8), 1, 2, 6),), 96),
        (lambda c, v: (torch.index_copy(c, 1, torch.arange(3, 4), v[:, None]),), 24),
        (lambda c, v: (torch.slice_scatter(c, v[:, None].expand(3, 4, 8), 1, 2, 10, 2),), 384),
    ],
    ids=["select", "from the end", "slice", "index", "every second"],
)
def test_only_what_changes_is_written(function, count):
    program = updating(function, CACHE, PART)
    assert program.results == (None,)
    assert written_elements(program) == count


def test_what_is_not_said_by_the_loop_decides_for_each_element():
    program = updating(lambda c, v: (torch.slice_scatter(c, v[:, None].expand(3, 4, 8), 1, 2, 10, 2),), CACHE, PART)
    (store,) = [each for step in program.steps for each in stores_of(step.body)]
    assert store.guard is not None


def test_all_is_written_where_a_sum_reads_it_anyway():
    def function(c, v):
        new = torch.select_scatter(c, v, 1, 5)
        return new, new.sum(-1)

    program = updating(function, CACHE, PART)
    assert program.results[0] is None
    assert program.written_inputs == {program.inputs[0]}


def test_who_reads_the_old_value_comes_first():
    program = updating(lambda x, y: (x + 1, x @ y), torch.ones(4, 4), torch.ones(4, 4))
    assert program.results[0] is None
    assert isinstance(program.steps[-1], Kernel)


def test_stores_of_one_loop_change_places():
    program = updating(lambda m, p, g: (m * 0.9 + g, p - (m * 0.9 + g)), *(torch.ones(8) for _ in range(3)))
    (kernel,) = program.steps
    assert [each.buffer for each in statements_of(kernel.body) if hasattr(each, "buffer")][-1] == program.inputs[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + x.flip(0),),
        lambda x: (x.double() * 2,),
        lambda x: (torch.nn.functional.pad(x, (1, 0)),),
    ],
    ids=["read elsewhere", "another type", "another size"],
)
def test_what_cannot_be_overwritten_stays_a_result(function):
    program = updating(function, torch.ones(4, 4))
    assert program.results == program.outputs
    assert not program.written_inputs
