"""Programs that run parts of themselves: what the interpreter and machine code make of them, in process too."""

from dataclasses import replace

import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch.utils import _pytree as pytree

import precast
from precast.export.serialize.document import to_document
from precast.native.loops.buffers import contiguous_buffer
from precast.native.loops.interpreter import interpret
from precast.native.loops.program import Repeat, Run, with_steps
from precast.native.loops.verifier import IllegalLoopProgramError, verify_loops, verify_plan
from precast.native.loops.verifier.parts import exposed
from precast.packaging.native_program import native_program
from precast.packaging.package import own_copy
from precast.packaging.storages import SharedStorages
from precast.packaging.traced_program import trace_program
from tests.packaging.programs_with_walls import CASES


def traced(name):
    case = CASES[name]
    document = to_document(precast.export(case.make().eval(), case.calls[0], dynamic_shapes=case.dynamic_shapes))
    _, names = SharedStorages().add(name, document)
    return trace_program(own_copy(document), names)


def entry_of(name):
    """A case as the entry that a package has of it."""
    return native_program(traced(name), name=name, constant_names={}).entry


def calls_of(name, entry):
    """The inputs of each call of a case: its arguments, and the tensors of its state."""
    program = traced(name)
    state = [program.program.state[program.specs[buffer.name].target].detach() for buffer in entry.program.inputs
             if buffer.name in entry.weights]  # fmt: skip
    return [[*call, *state] for call in CASES[name].calls]


PARTS = ("cond_on_data", "cond_with_dynamic_sizes", "cond_inside_of_cond", "while_loop_counts",
         "while_loop_until_small", "ScanOfACell", "scan_over_dynamic_time", "map_over_rows",
         "CondOverWeights")  # fmt: skip


SIZES = ("nonzero_places", "rows_by_mask", "masked_select_with_dynamic_sizes", "unique_with_counts",
         "unique_consecutive_values", "slice_by_item", "arange_of_item", "repeat_interleave_by_tensor",
         "slice_below_a_dynamic_size", "several_masks", "KeepTheBest")  # fmt: skip


@pytest.mark.parametrize("name", [*PARTS, *SIZES])
def test_the_interpreter_gives_what_eager_gives(name):
    entry, module = entry_of(name), CASES[name].make().eval()
    for call, inputs in zip(CASES[name].calls, calls_of(name, entry), strict=True):
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*call))
        torch.testing.assert_close(list(interpret(entry.program, inputs)), expected)


def only(kind, program):
    return next(step for step in program.steps if isinstance(step, kind))


def exchanged(program, step, **changes):
    return with_steps(program, [replace(step, **changes) if each is step else each for each in program.steps])


def swapped_inputs(program):
    step = only(Run, program)
    return exchanged(program, step, outputs=tuple(reversed(step.outputs)))


def chosen_by_a_number(program):
    return exchanged(program, only(Run, program), choice=contiguous_buffer("choice", "f32", ()))


def without_a_part(program):
    step = only(Run, program)
    return exchanged(program, step, parts=step.parts[:1])


def overwriting_what_is_read(program):
    step = only(Repeat, program)
    return exchanged(program, step, spares=step.outputs[: step.carried])


def too_many_iterations(program):
    step = only(Repeat, program)
    return exchanged(program, step, count=step.count + 1)


def without_an_end(program):
    step = only(Repeat, program)
    return exchanged(program, step, parts=step.parts[:1])


def wrong_inside(program):
    """A step of a part reads what no step writes."""
    step = only(Run, program)
    inner = step.parts[1].program
    part = replace(step.parts[1], program=with_steps(inner, inner.steps[1:]))
    return exchanged(program, step, parts=(step.parts[0], part))


PLANTED = {
    "outputs": ("cond_with_dynamic_sizes", swapped_inputs, "is laid out otherwise"),
    "choice": ("cond_on_data", chosen_by_a_number, "is not one bool"),
    "parts": ("cond_on_data", without_a_part, "1 parts to choose from"),
    "spares": ("while_loop_counts", overwriting_what_is_read, "written twice"),
    "count": ("map_over_rows", too_many_iterations, "rows for"),
    "condition": ("while_loop_counts", without_an_end, "a number of times or while"),
    "inside": ("cond_with_dynamic_sizes", wrong_inside, "before all of it is written"),
}


@pytest.mark.parametrize(("name", "planted", "message"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_pass_over_parts_is_found_out(name, planted, message):
    program = entry_of(name).program
    verify_loops(program, after="packaging")
    with pytest.raises(IllegalLoopProgramError, match=message):
        verify_loops(planted(program), after="planted")


def test_a_part_has_room_for_its_temporaries():
    entry = entry_of("ScanOfACell")
    step, small = only(Repeat, entry.program), contiguous_buffer("scratch", "u8", (8,))
    verify_plan(entry.program, entry.plan)
    offsets = {**entry.plan.offsets, small: entry.plan.offsets[step.scratch]}
    cramped = exchanged(entry.program, step, scratch=small)
    with pytest.raises(IllegalLoopProgramError, match="bytes of scratch memory, and has 8"):
        verify_plan(cramped, replace(entry.plan, offsets=offsets))


def test_a_size_that_depends_on_data_stays_below_its_bound():
    program = entry_of("several_masks").program
    assert not list(exposed(program))
    step = only(Run, program)
    inner = step.parts[0].program
    larger = replace(inner, sizes=(replace(inner.sizes[0], bound=inner.sizes[0].bound + 1),))
    assert list(exposed(exchanged(program, step, parts=(replace(step.parts[0], program=larger),))))


def branching(x, w):
    return torch.cond(x.sum() > 0, lambda x, w: (x @ w).tanh(), lambda x, w: (x * 2) @ w, (x, w)).sum()


def looping(x, w):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, (y @ w).sin()), (torch.tensor(0), x))[1]


def scanning(x, w):
    carry, rows = scan(lambda h, row: ((h @ w + row).tanh(), h * 2), torch.zeros(3), x, dim=0)
    return carry.sum() + rows.square().sum()


@pytest.mark.parametrize("function", [branching, looping])
def test_control_flow_is_native_in_process(function):
    x, w = torch.randn(4, 3), torch.randn(3, 3)
    explained = precast.explain(function, x, w)
    assert "torch.ops.higher_order" not in str(explained)
    compiled = precast.compile(function, fullgraph=True)
    for each in (x, -x):
        torch.testing.assert_close(compiled(each, w), function(each, w))


@pytest.mark.parametrize("function", [branching, scanning])
def test_gradients_go_through_control_flow(function):
    x, w = torch.randn(4, 3), torch.randn(3, 3)
    compiled = precast.compile(function, fullgraph=True)
    for sign in (1, -1):
        leaves = [(x * sign).requires_grad_(), w.clone().requires_grad_()]
        ours = torch.autograd.grad(compiled(*leaves), leaves)
        torch.testing.assert_close(ours, torch.autograd.grad(function(*leaves), leaves))
