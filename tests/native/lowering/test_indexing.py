"""Reading and writing at computed places: numbers as eager's, and errors as eager's."""

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.loops.printer import print_program
from precast.native.loops.program import FallbackStep
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import as_tuple, check_case, floats, integers, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten


def below(size, *shape, seed=0, dtype=torch.int64):
    return integers(*shape, low=0, high=size, seed=seed, dtype=dtype)


ROWS = torch.tensor([2, 0, 2, 4])
ANY_SIGN = torch.tensor([[2, -1], [0, -5]])
MASK = integers(5, 3) > 0

CHOSEN = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.bool)
CASES = {
    "index_put_masked_values": (
        lambda x, mask, values: x.index_put((mask,), values), [floats(4, 3), CHOSEN, floats(5, seed=1)]),
    "index_put_masked_rows": (
        lambda x, mask, values: x.index_put((mask,), values, accumulate=True),
        [floats(4, 3), CHOSEN[:, 0], floats(2, 3, seed=1)]),
    "index_put_masked_columns": (
        lambda x, mask, values: aten.index_put(x, [None, mask], values),
        [floats(3, 4), CHOSEN[:, 0], floats(3, 2, seed=1)]),
    "index_put_masked_one": (
        lambda x, mask, value: x.index_put((mask,), value), [floats(4, 3), CHOSEN, torch.tensor(2.5)]),
    "as_strided_scatter": (
        lambda x, part: x.as_strided_scatter(part, (2, 3), (6, 2), 1), [floats(4, 6), floats(2, 3, seed=1)]),
    "gather_nothing": (lambda x, i: x.gather(0, i), [floats(4), torch.zeros(1, 0, dtype=torch.int64)]),
    "gather_nothing_of_rows": (lambda x, i: x.gather(0, i), [floats(4, 3), torch.zeros(0, dtype=torch.int64)]),
    "scatter_add_nothing": (
        lambda x, i, s: x.scatter_add(0, i, s), [floats(4), torch.zeros(1, 0, dtype=torch.int64), floats(1, 0)]),
    "scatter_reduce_nothing": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
        [floats(4, 3), torch.zeros(0, dtype=torch.int64), floats(0)]),
    "take": (torch.take, [floats(4, 3), torch.tensor([[0, 11], [-1, -12]])]),
    "take_zero_dim": (torch.take, [floats(4, 3), torch.tensor(5)]),
    "put": (torch.put, [floats(4, 3), torch.tensor([0, 11, -2]), floats(3, seed=1)]),
    "put_accumulated": (
        lambda x, i, s: torch.put(x, i, s, accumulate=True),
        [floats(4, 3), torch.tensor([[0, 11], [0, -1]]), floats(2, 2, seed=1)]),
    "index_reduce_mean": (
        lambda x, i, s: x.index_reduce(1, i, s, "mean", include_self=False),
        [floats(3, 5), torch.tensor([0, 4, 0]), floats(3, 3, seed=1)]),
    "index_reduce_largest": (
        lambda x, i, s: x.index_reduce(0, i, s, "amax"), [floats(5, 3), torch.tensor([0, 4, 0]), floats(3, 3, seed=1)]),
    "masked_scatter_backward": (
        lambda dy, mask: aten.masked_scatter_backward(dy, mask, [3, 2]), [floats(4, 3), CHOSEN]),
    "embedding": (lambda w, i: aten.embedding(w, i), [floats(7, 5), below(7, 2, 3)]),
    "embedding_i32_bf16": (
        lambda w, i: aten.embedding(w, i) * 2,
        [floats(7, 5, dtype=torch.bfloat16), below(7, 2, 3, dtype=torch.int32)]),
    "embedding_empty": (lambda w, i: aten.embedding(w, i), [floats(7, 5), below(7, 0)]),
    "gather": (lambda x, i: x.gather(1, i), [floats(4, 6), below(6, 3, 8)]),
    "gather_computed": (lambda x, i: x.exp().gather(0, i).sum(0), [floats(4, 6), below(4, 3, 6)]),
    # GCC 12 gathers at -1 where a comparison is true, unless told otherwise.
    "gather_by_comparison": (lambda x, y: y.gather(1, (x > 0).long()), [floats(4, 6), floats(4, 2)]),
    "gather_zero_dim": (lambda x, i: x.gather(0, i), [floats(), torch.tensor(0)]),
    "gather_bool": (lambda x, i: x.gather(0, i), [MASK, below(5, 2, 3)]),
    "index_select": (lambda x, i: x.index_select(1, i), [floats(4, 6, 2), ROWS]),
    "index_select_zero_dim": (lambda x, i: x.index_select(0, i), [floats(), torch.tensor([0])]),
    "index": (lambda x, i: x[i], [floats(5, 3), ANY_SIGN]),
    "index_twice": (lambda x, i, j: x[i, j], [floats(5, 3), ROWS, below(3, 4)]),
    "index_broadcast": (lambda x, i, j: x[i, j], [floats(5, 3), ROWS[:, None], below(3, 2)]),
    "index_middle": (lambda x, i: x[:, i], [floats(3, 5, 2), ANY_SIGN]),
    "index_apart": (lambda x, i, j: x[i, :, j], [floats(5, 3, 4), ROWS, below(4, 4)]),
    "index_empty": (lambda x, i: x[i], [floats(5, 3), below(5, 0)]),
    "index_product": (lambda x, i, w: x[i] @ w, [floats(5, 3), ROWS, floats(3, 2)]),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), [floats(5, 3), torch.tensor([[2, 0, 1], [4, 3, 0]]), floats(4, 3)]),
    "scatter_value": (lambda x, i: x.scatter(1, i, 2.5), [floats(5, 3), below(3, 4, 2)]),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), [floats(5, 3), below(5, 9, 3), floats(9, 3)]),
    "scatter_add_last": (lambda x, i, s: x.scatter_add(1, i, s), [floats(5, 3), below(3, 5, 9), floats(5, 9)]),
    "scatter_add_bf16": (
        lambda x, i, s: x.scatter_add(0, i, s),
        [floats(5, 3, dtype=torch.bfloat16), torch.tensor([[2, 0, 1]]), floats(9, 3, dtype=torch.bfloat16)]),
    "scatter_add_zero_dim": (lambda x, i, s: x.scatter_add(0, i, s), [floats(), torch.tensor(0), floats(seed=1)]),
    "scatter_multiply": (
        lambda x, i, s: x.scatter(0, i, s, reduce="multiply"), [floats(5, 3), below(5, 4, 3), floats(4, 3)]),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), [floats(5, 3), ROWS, floats(4, 3)]),
    "index_copy": (lambda x, i, s: x.index_copy(1, i, s), [floats(5, 3), torch.tensor([2, 0]), floats(5, 2)]),
    "index_put": (lambda x, i, s: x.index_put((i,), s), [floats(5, 3), torch.tensor([-1, 0, 3]), floats(3)]),
    "index_put_twice": (
        lambda x, i, j, s: x.index_put((i, j), s), [floats(5, 3), torch.tensor([1, 0, 3]), below(3, 3), floats(3)]),
    "index_put_add": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True), [floats(5, 3), ROWS, floats(4, 3)]),
    "index_put_middle": (
        lambda x, i, s: aten.index_put(x, [None, i], s), [floats(3, 5, 2), torch.tensor([4, 1]), floats(3, 2, 2)]),
    "index_put_mask": (lambda x, m, s: x.index_put((m,), s), [floats(5, 3), MASK, floats()]),
    "index_put_mask_rows": (lambda x, m, s: x.index_put((m,), s), [floats(5, 3), MASK[:, 0], floats(3)]),
    "embedding_backward": (
        lambda dy, i: aten.embedding_dense_backward(dy, i, 7, 2, False), [floats(2, 9, 5), below(7, 2, 9)]),
    "embedding_backward_scaled": (
        lambda dy, i: aten.embedding_dense_backward(dy, i, 7, -1, True), [floats(2, 9, 5), below(7, 2, 9)]),
    "slice_scatter": (lambda x, s: aten.slice_scatter(x, s, 1, 1, 6, 2), [floats(3, 7), floats(3, 3)]),
    "slice_scatter_all": (lambda x, s: aten.slice_scatter(x, s), [floats(3, 7), floats(3, 7, seed=1)]),
    "select_scatter": (lambda x, s: aten.select_scatter(x, s, 1, -2), [floats(3, 7), floats(3)]),
    "diagonal_scatter": (lambda x, s: aten.diagonal_scatter(x, s, 1), [floats(3, 4), floats(3)]),
    "diagonal": (lambda x: x.diagonal(-1, 0, 2) * 2, [floats(4, 2, 5)]),
}  # fmt: skip
for reduce in ("sum", "prod", "mean", "amax", "amin"):
    for include_self in (True, False):
        for dtype in (torch.float32, torch.int32):
            CASES[f"scatter_reduce_{reduce}_{include_self}_{dtype}"] = (
                lambda x, i, s, reduce=reduce, own=include_self: x.scatter_reduce(0, i, s, reduce, include_self=own),
                [floats(5, 3).mul(9).to(dtype), below(4, 9, 3), floats(9, 3, seed=1).mul(9).to(dtype)],
            )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES | OUTSIDE, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_operator_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums="add" in name or "product" in name or "reduce" in name)


OUTSIDE = {
    "take_outside": (torch.take, [floats(4, 3), torch.tensor([12])]),
    "put_outside": (torch.put, [floats(4, 3), torch.tensor([-13]), floats(1)]),
    "index_reduce_outside": (
        lambda x, i, s: x.index_reduce(0, i, s, "prod"), [floats(5, 3), torch.tensor([5]), floats(1, 3, seed=1)]),
    "index_put_masked_too_few": (
        lambda x, mask, values: x.index_put((mask,), values), [floats(4, 3), CHOSEN, floats(4, seed=1)]),
    "embedding_outside": (lambda w, i: aten.embedding(w, i), [floats(7, 5), torch.tensor([6, 7])]),
    "embedding_negative": (lambda w, i: aten.embedding(w, i), [floats(7, 5), torch.tensor([0, -1])]),
    "gather_outside": (lambda x, i: x.gather(1, i), [floats(4, 6), torch.full((3, 8), 6)]),
    "gather_negative": (lambda x, i: x.gather(1, i), [floats(4, 6), torch.full((3, 8), -1)]),
    "gather_of_nothing": (lambda x, i: x.gather(1, i), [floats(4, 0), torch.zeros(3, 8, dtype=torch.int64)]),
    "index_select_outside": (lambda x, i: x.index_select(0, i), [floats(4), torch.tensor([4])]),
    "index_outside": (lambda x, i: x[i], [floats(5, 3), torch.tensor([0, 5])]),
    "index_far_negative": (lambda x, i: x[i], [floats(5, 3), torch.tensor([0, -6])]),
    "scatter_outside": (lambda x, i: x.scatter(1, i, 2.5), [floats(5, 3), torch.full((4, 2), 3)]),
    "scatter_add_outside": (
        lambda x, i, s: x.scatter_add(0, i, s), [floats(5, 3), torch.full((4, 2), -1), floats(9, 3)]),
    "index_put_outside": (lambda x, i, s: x.index_put((i,), s), [floats(5, 3), torch.tensor([5]), floats(3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_places_outside_raise_as_eager_does(model, name):
    function, inputs = OUTSIDE[name]
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(*inputs)
    with pytest.raises(eager.type, match=r"out of (range|bounds)|shape mismatch"):
        model[name](*inputs)


@pytest.mark.parametrize("name", [*CASES, *OUTSIDE])
def test_the_interpreter_agrees(name):
    function, inputs = (CASES | OUTSIDE)[name]
    program = fuse(lowered(function, *inputs))
    if name in OUTSIDE:
        with pytest.raises((IndexError, RuntimeError), match=r"out of|shape mismatch"):
            interpret(program, inputs)
        return
    for mine, eager in zip(interpret(program, inputs), as_tuple(function(*inputs)), strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_mask_beside_other_subscripts_falls_back():
    mask, places = torch.tensor([True, False]), torch.tensor([1])
    program = lowered(lambda x, m, i, s: x.index_put((m, i), s), floats(2, 2), mask, places, floats(1))
    assert any(isinstance(step, FallbackStep) for step in program.steps)


def test_scatter_as_loops(assert_golden):
    program = fuse(lowered(lambda x, i, s: x.scatter_add(0, i, s.exp()), floats(5, 3), below(5, 9, 3), floats(9, 3)))
    assert_golden("scatter_add", print_program(program))
