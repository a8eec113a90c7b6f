"""Passes that break a rule of loop programs are found out, whatever rule it is."""

from dataclasses import replace

import pytest
import torch.nn.functional as F

from precast.events import PassDone, listening
from precast.native.loops import routines
from precast.native.loops.buffers import contiguous_buffer
from precast.native.loops.index import Variable, atom, constant, floor_divide, maximum, minimum, remainder, symbol
from precast.native.loops.passes import run_loop_passes
from precast.native.loops.printer import print_program
from precast.native.loops.program import (
    Accumulate,
    Check,
    Finish,
    Kernel,
    LibraryCall,
    Loop,
    LoopProgram,
    Plan,
    Store,
    with_steps,
)
from precast.native.loops.rewriting import replace_places, with_buffers
from precast.native.loops.scalars import Accumulated, Accumulator, IndexValue, Load, apply, cast, computed, rewrite
from precast.native.loops.verifier import IllegalLoopProgramError, calls, verify_loops, verify_plan
from precast.native.loops.verifier.dependences import conflicts
from precast.native.loops.verifier.proofs import is_proved
from precast.native.passes.memory import plan
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import floats, integers
from tests.native.lowering.pipeline import lowered

N, M = symbol("n"), symbol("m")


def with_bodies(program, change):
    """The program with the body of every kernel changed."""
    steps = [replace(each, body=change(each.body)) if isinstance(each, Kernel) else each for each in program.steps]
    return with_steps(program, steps)


def with_calls(program, change):
    return with_steps(program, [change(each) if isinstance(each, LibraryCall) else each for each in program.steps])


def moved_by_one(program):
    """Write one element further than is right."""
    return with_bodies(
        program,
        lambda body: tuple(
            replace(loop, body=tuple(
                replace(each, indices=(*each.indices[:-1], each.indices[-1] + 1)) if isinstance(each, Store) else each
                for each in loop.body
            ))
            for loop in body
        ),
    )  # fmt: skip


def read_beyond(program):
    """Read the element after the one that is meant."""
    return with_bodies(
        program, lambda body: replace_places(body, lambda at: (at[0], (*at[1][:-1], at[1][-1] + 1)) if at[1] else at)
    )


def without_guards(program):
    """Read at computed subscripts whatever they are."""

    def freed(value):
        return replace(value, guard=None) if isinstance(value, Load) else value

    def change(body):
        return tuple(
            replace(loop, body=tuple(replace(each, value=rewrite(each.value, freed, {})) for each in loop.body))
            if isinstance(loop, Loop) and all(isinstance(each, Store) for each in loop.body) else loop
            for loop in body
        )  # fmt: skip

    return with_bodies(program, change)


def shortened(program):
    """Let loops end one iteration early."""

    def change(body):
        return tuple(
            replace(loop, variables=(Variable(loop.variables[0].name, loop.variables[0].extent - 1),), body=(
                replace(loop.body[0], indices=(atom(Variable(loop.variables[0].name, loop.variables[0].extent - 1)),),
                        value=cast(Load(loop.body[0].loads[0].buffer, (constant(0),)), "f32")),))
            for loop in body
        )  # fmt: skip

    return with_bodies(program, change)


def always_at_the_start(program):
    """Let every iteration write the first element."""
    return with_bodies(
        program,
        lambda body: tuple(
            replace(loop, body=tuple(replace(each, indices=(constant(0),)) for each in loop.body)) for loop in body
        ),
    )


def in_reverse(program):
    """Let what reads come before what writes."""
    return with_steps(program, list(reversed(program.steps)))


def larger_than_its_buffer(program):
    """Let a call write a result that is larger than where it goes, as one that was cropped."""
    return with_calls(
        program, lambda call: replace(call, outputs=(replace(call.outputs[0], offset=call.outputs[0].offset + 1),))
    )


def of_other_types(program):
    """Multiply what has another type."""
    (call,) = (each for each in program.steps if isinstance(each, LibraryCall))
    wide = replace(call.inputs[0].buffer, dtype="f64")
    changed = replace(program, inputs=tuple(wide if each.name == wide.name else each for each in program.inputs))
    return with_calls(
        changed, lambda call: replace(call, inputs=(replace(call.inputs[0], buffer=wide), *call.inputs[1:]))
    )


def of_other_shapes(program):
    """Multiply matrices that do not fit."""

    def change(call):
        left, right = call.inputs
        return replace(call, inputs=(replace(left, shape=left.shape[::-1], strides=left.strides[::-1]), right))

    return with_calls(program, change)


def with_a_small_operand(program):
    """Add something that has not the result's shape."""

    def change(call):
        operand = replace(call.outputs[0], buffer=call.inputs[1].buffer, shape=(constant(1),), strides=(constant(1),))
        return replace(call, inputs=(*call.inputs, operand), epilogue=(Finish("add", 2),))

    return with_calls(program, change)


def stored_as_another_type(program):
    return with_bodies(
        program,
        lambda body: tuple(
            replace(loop, body=tuple(replace(each, value=cast(each.value, "f64")) for each in loop.body))
            for loop in body
        ),
    )


def onto_the_input(program):
    """Write a result over an input that nobody asked to change."""
    (result,), (source,) = program.outputs, program.inputs
    return with_steps(program, [with_buffers(step, {result: source}) for step in program.steps])


VECTOR, MATRIX = [floats(6)], [floats(5, 7), floats(7, 6)]
PLANTED = {
    "a store outside": (moved_by_one, lambda x: x.sin(), VECTOR, "leaves dimension 0"),
    "a load outside": (read_beyond, lambda x: x.sin(), VECTOR, "leaves dimension 0"),
    "a computed subscript without a guard": (
        without_guards, lambda x, i: x[i], [floats(6), integers(3, low=0, high=6)], "nothing keeps"),
    "a part that nobody writes": (shortened, lambda x: x.sin(), VECTOR, "before all of it is written"),
    "one element for all iterations": (always_at_the_start, lambda x: x.sin(), VECTOR, "more than one iteration"),
    "reading before writing": (in_reverse, lambda x: x.sin().cumsum(0).cos(), VECTOR, "before all of it is written"),
    "a view outside its buffer": (larger_than_its_buffer, lambda x, y: x @ y, MATRIX, "leaves it"),
    "operands of two types": (of_other_types, lambda x, y: x @ y, MATRIX, "does not take"),
    "operands that do not fit": (of_other_shapes, lambda x, y: x @ y, MATRIX, "does not take"),
    "an operand of another shape": (with_a_small_operand, lambda x, y: x @ y, MATRIX, "add takes"),
    "a value of another type": (stored_as_another_type, lambda x: x.sin(), VECTOR, "is stored into"),
    "an input that stays": (onto_the_input, lambda x: x.sin(), VECTOR, "writes the input"),
}  # fmt: skip


@pytest.mark.parametrize(("planted", "function", "inputs", "message"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_pass_is_named(planted, function, inputs, message):
    program = lowered(function, *inputs)
    with pytest.raises(IllegalLoopProgramError, match=message) as error:
        run_loop_passes(program, [planted])
    assert f"after {planted.__name__}" in str(error.value)


def kernel_over(*body, name="kernel"):
    return Kernel(name, body)


def program_of(*steps, inputs=(), results=()):
    return LoopProgram("planted", tuple(inputs), tuple(results), (), tuple(steps))


X, Y, Z = (contiguous_buffer(name, "f32", (8,)) for name in "xyz")
ROW, NEXT = Variable("i", constant(8)), Variable("j", constant(7))
AT = (atom(ROW),)


def test_an_iteration_does_not_read_what_another_one_writes():
    neighbour = (constant(7) - atom(ROW),)
    body = Loop((ROW,), (Store(Y, AT, Load(X, AT)), Store(Z, AT, Load(Y, neighbour))))
    with pytest.raises(IllegalLoopProgramError, match="one iteration writes y"):
        verify_loops(program_of(kernel_over(body), inputs=[X], results=[Y, Z]), after="a test")


def test_an_iteration_may_read_what_it_wrote_itself():
    body = Loop((ROW,), (Store(Y, AT, Load(X, AT)), Store(Z, AT, Load(Y, AT))))
    verify_loops(program_of(kernel_over(body), inputs=[X], results=[Y, Z]), after="a test")


def test_what_a_guard_keeps_from_being_read_may_lie_anywhere():
    before = atom(ROW) * -20
    is_inside = apply("ge", IndexValue(before, "i64"), IndexValue(constant(0), "i64"))
    body = Loop((ROW,), (Store(Y, AT, Load(X, AT)), Store(Z, AT, Load(Y, (before,), is_inside))))
    verify_loops(program_of(kernel_over(body), inputs=[X], results=[Y, Z]), after="a test")


def test_what_data_decides_on_is_kept_apart_by_another_subscript():
    outer, six, two, three = (Variable(name, constant(size)) for name, size in (("i", 2), ("j", 6), ("k", 2), ("l", 3)))
    made, columns = contiguous_buffer("made", "f32", (12, 8)), contiguous_buffer("columns", "i64", (3,))
    place = computed("place", Load(columns, (atom(three),)), 8, is_certain=True)

    def kernel(row):
        written = Store(made, (atom(outer) * 6 + atom(six), constant(0)), Load(X, (constant(0),)))
        read = Store(Z, (constant(0),), Load(made, (row, place)))
        return kernel_over(Loop((outer,), (Loop((six,), (written,)), Loop((two, three), (read,)))))

    found = conflicts(kernel(atom(outer) * 6 + atom(two) * 3 + atom(three)), {})
    assert not any("made" in each for each in found)
    found = conflicts(kernel(atom(outer) * 6 + atom(two) * 3 + atom(three) + 1), {})
    assert any("one iteration writes made" in each for each in found)


def test_rows_of_other_numbers_stay_apart_unless_they_share_memory():
    row, number = (constant(0), constant(7) - atom(ROW)), (constant(1), atom(ROW))

    def kernel(made):
        return kernel_over(Loop((ROW,), (Store(made, number, Load(X, AT)), Store(Z, AT, Load(made, row)))))

    rows = contiguous_buffer("made", "f32", (2, 8))
    assert not list(conflicts(kernel(rows), {}))
    shared = replace(rows, strides=(constant(0), constant(1)))
    assert any("one iteration writes made" in each for each in conflicts(kernel(shared), {}))


def test_loops_one_after_the_other_may_read_anything():
    shifted = Loop((NEXT,), (Store(Z, (atom(NEXT) + 1,), Load(Y, (atom(NEXT),))),))
    first = Store(Z, (constant(0),), Load(Y, (constant(7),)))
    kernel = kernel_over(Loop((ROW,), (Store(Y, AT, Load(X, AT)),)), shifted, first)
    verify_loops(program_of(kernel, inputs=[X], results=[Y, Z]), after="a test")


def test_an_accumulator_is_used_after_its_loop():
    total = Accumulator("total", "sum", "f32")
    body = Loop((ROW,), (Accumulate(total, Load(X, AT)), Store(Y, AT, Accumulated(total))), (total,))
    with pytest.raises(IllegalLoopProgramError, match="used before its loop has ended"):
        verify_loops(program_of(kernel_over(body), inputs=[X], results=[Y]), after="a test")


def test_an_accumulator_belongs_to_a_loop_around_it():
    total = Accumulator("total", "sum", "f32")
    with pytest.raises(IllegalLoopProgramError, match="not of a loop around it"):
        verify_loops(program_of(kernel_over(Loop((ROW,), (Accumulate(total, Load(X, AT)),)))), after="a test")


def test_a_name_is_one_buffer():
    copy, other = Loop((ROW,), (Store(Y, AT, Load(X, AT)),)), contiguous_buffer("y", "f32", (4, 2))
    with pytest.raises(IllegalLoopProgramError, match="two buffers are called y"):
        verify_loops(program_of(kernel_over(copy), inputs=[X, other], results=[Y]), after="a test")


def test_a_check_asks_one_bool():
    with pytest.raises(IllegalLoopProgramError, match="is not one bool"):
        verify_loops(program_of(Check("check", X, "index", ""), inputs=[X]), after="a test")


def test_memory_is_given_away_when_its_last_reader_is_done():
    def function(x, y):
        product = x @ y
        return (product.sin() @ y.t()) @ y + product

    def taken_too_early(program):
        """Give the product's memory to its sine, while the sum at the end still reads the product."""
        buffers = {each.name: each for each in program.temporaries}
        names = {buffers["mm"]: buffers["sin"]}
        return with_steps(program, [with_buffers(step, names) for step in program.steps])

    program = lowered(function, *MATRIX)
    with pytest.raises(IllegalLoopProgramError, match="reads what sin wrote, which it did not before"):
        run_loop_passes(program, [taken_too_early], reusing=[taken_too_early])


def test_living_buffers_do_not_share_memory():
    program = fuse(lowered(lambda x, y: (x @ y).cumsum(0).sin().cumsum(1) + (x @ y).cumsum(1), *MATRIX))
    right = plan(program)
    verify_plan(program, right)
    with pytest.raises(IllegalLoopProgramError, match="share memory while both are needed"):
        verify_plan(program, Plan(dict.fromkeys(right.offsets, constant(0)), right.arena_size))
    with pytest.raises(IllegalLoopProgramError, match="leaves the arena"):
        verify_plan(program, Plan(right.offsets, constant(64)))
    with pytest.raises(IllegalLoopProgramError, match="got no place"):
        verify_plan(program, Plan({}, right.arena_size))


def test_dynamic_sizes_are_reasoned_about():
    pair, row = atom(Variable("i", floor_divide(N, 2))), atom(Variable("j", N))
    assert is_proved(N - pair * 2 - 1)
    assert is_proved(N * M - row * M - 1, (M - 1,))
    assert is_proved(maximum(N, M) - row - 1)
    assert is_proved(row - remainder(row, 4))
    assert is_proved(N - minimum(N, M))
    for unknown in (N - pair * 2 - 3, N * M - row * M - 1, minimum(N, M) - row - 1, N - M):
        assert not is_proved(unknown)


def test_every_pass_is_told():
    records = []
    with listening(records.append):
        fuse(lowered(lambda x: F.gelu(x).sum(), *VECTOR))
    records = [each for each in records if isinstance(each, PassDone)]
    changed = [each for each in records if each.has_changed]
    assert changed
    assert all(print_program(each.before) != print_program(each.after) and each.seconds >= 0 for each in changed)


def test_every_routine_has_a_rule_for_what_it_takes():
    assert calls._RULES.keys() == routines._ROUTINES.keys()
