"""Loop programs print stably and mean what the interpreter says."""

import pytest
import torch

from precast.native.loops.buffers import contiguous_buffer
from precast.native.loops.index import Variable, atom, constant, symbol
from precast.native.loops.interpreter import interpret
from precast.native.loops.printer import print_program
from precast.native.loops.program import Accumulate, Kernel, Loop, LoopProgram, SizeSource, Store
from precast.native.loops.scalars import Accumulated, Accumulator, Constant, IndexValue, Load, Named, apply

ROWS = symbol("n")
ROW, COLUMN = Variable("i0", ROWS), Variable("i1", constant(3))
x = contiguous_buffer("x", "f32", (ROWS, 3))
row = contiguous_buffer("row", "f32", (ROWS,))
total = Accumulator("total", "sum", "f32")


def row_sums() -> LoopProgram:
    square = Named("square", Load(x, (atom(ROW), atom(COLUMN))) * Load(x, (atom(ROW), atom(COLUMN))))
    loop = Loop((COLUMN,), (Accumulate(total, square),), (total,))
    body = (Loop((ROW,), (loop, Store(row, (atom(ROW),), Accumulated(total) * 2.0))),)
    return LoopProgram(
        "main", (x,), (row, None, ROWS), (SizeSource("n", 0, 0),), (Kernel("row", body, ("row: test",)),)
    )


def test_prints(assert_golden):
    assert_golden("row_sums", print_program(row_sums()))


def test_interpreter_runs_loops_and_reductions_for_any_size():
    for rows in (0, 1, 5):
        values = torch.randn(rows, 3)
        torch.testing.assert_close(interpret(row_sums(), [values])[0], 2 * (values * values).sum(1))


def test_a_guarded_load_reads_nothing_where_the_guard_is_false():
    place = atom(COLUMN) - 1
    is_inside = apply("ge", IndexValue(place, "i64"), Constant(0, "i64"))
    shifted = contiguous_buffer("shifted", "f32", (3,))
    source = contiguous_buffer("source", "f32", (3,))
    kernel = Kernel("shift", (Loop((COLUMN,), (Store(shifted, (atom(COLUMN),), Load(source, (place,), is_inside)),)),))
    program = LoopProgram("main", (source,), (shifted,), (), (kernel,))
    assert interpret(program, [torch.tensor([1.0, 2.0, 3.0])])[0].tolist() == [0.0, 1.0, 2.0]


def test_operations_refuse_a_wrong_number_of_arguments_and_mixed_types():
    with pytest.raises(AssertionError, match="add does not take 1"):
        apply("add", Constant(1, "f32"))
    with pytest.raises(AssertionError, match="different types: f32, f64"):
        apply("add", Constant(1, "f32"), Constant(1, "f64"))
