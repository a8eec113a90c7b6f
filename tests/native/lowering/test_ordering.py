"""Looking for elements and putting them in order, as eager does: ties, NaN, empty and zero-dim tensors too."""

import math

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import as_tuple, check_case, floats, integers, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten

TIES = integers(6, 9, low=0, high=4)
SPECIAL = torch.tensor([[1.0, math.nan, 3.0, math.nan], [-math.inf, 2.0, math.inf, -0.0], [0.0, -0.0, 1.0, 1.0]])


def long_lines(dtype):
    """Lines that are sorted by digits: with equals and, among floats, zeros of both signs, infinities and NaN."""
    values = (floats(4, 300) * 20).round()
    values[0, ::7], values[1, ::9], values[2, ::5] = (
        (float("nan"), -0.0, float("-inf")) if dtype.is_floating_point else (1, 0, -9)
    )
    return values.to(dtype)


CASES = {}
for name in ("argmax", "argmin"):
    function = getattr(torch, name)
    CASES |= {
        f"{name}": (function, [floats(5, 7)]),
        f"{name}_along": (lambda x, f=function: f(x, 1), [floats(5, 7)]),
        f"{name}_columns": (lambda x, f=function: f(x, 0, keepdim=True), [floats(5, 70)]),
        f"{name}_ties": (lambda x, f=function: f(x, 1), [TIES]),
        f"{name}_special": (lambda x, f=function: f(x, 1), [SPECIAL]),
        f"{name}_zero_dim": (function, [floats()]),
        f"{name}_large": (function, [floats(300, 200)]),
        f"{name}_bf16": (lambda x, f=function: f(x, 1), [floats(5, 7, dtype=torch.bfloat16)]),
    }
for name in ("max", "min", "cummax", "cummin"):
    function = getattr(torch, name)
    CASES |= {
        f"{name}_along": (lambda x, f=function: tuple(f(x, 1)), [floats(5, 7)]),
        f"{name}_special": (lambda x, f=function: tuple(f(x, 1)), [SPECIAL]),
        f"{name}_ties": (lambda x, f=function: tuple(f(x, 0)), [TIES]),
        f"{name}_zero_dim": (lambda x, f=function: tuple(f(x, 0)), [floats()]),
        f"{name}_u8": (lambda x, f=function: tuple(f(x, 0)), [TIES.to(torch.uint8)]),
    }
for name in ("cumsum", "cumprod"):
    function = getattr(torch, name)
    CASES |= {
        f"{name}": (lambda x, f=function: f(x, 1), [floats(5, 7, 3)]),
        f"{name}_i32": (lambda x, f=function: f(x, 0), [integers(5, 7, dtype=torch.int32)]),
        f"{name}_bool": (lambda x, f=function: f(x, 0), [TIES > 1]),
        f"{name}_bf16": (lambda x, f=function: f(x, 1), [floats(5, 7, dtype=torch.bfloat16)]),
        f"{name}_empty": (lambda x, f=function: f(x, 1), [floats(5, 0)]),
        f"{name}_zero_dim": (lambda x, f=function: f(x, 0), [floats()]),
        f"{name}_of_a_view": (lambda x, f=function: f(x.t() * 2, 0), [floats(4, 6)]),
    }
for name in ("median", "nanmedian"):
    function = getattr(torch, name)
    CASES |= {
        f"{name}": (function, [floats(5, 8)]),
        f"{name}_along": (lambda x, f=function: tuple(f(x, 1)), [floats(5, 8)]),
        f"{name}_special": (lambda x, f=function: tuple(f(x, 1, keepdim=True)), [SPECIAL[:2]]),
        f"{name}_of_whole_numbers": (function, [TIES]),
        f"{name}_zero_dim": (lambda x, f=function: tuple(f(x, 0)), [floats()]),
        f"{name}_empty": (function, [floats(0)]),
    }
EDGES = torch.tensor([-1.0, 0.0, 0.0, 0.5, 2.0])
ASKED = torch.tensor([[-2.0, 0.0, 0.25], [2.0, math.inf, math.nan]])
CASES |= {
    "kthvalue": (lambda x: tuple(torch.kthvalue(x, 3, 0)), [floats(7, 4)]),
    "searchsorted": (torch.searchsorted, [EDGES, ASKED]),
    "searchsorted_right": (lambda x, v: torch.searchsorted(x, v, right=True), [EDGES, ASKED]),
    "searchsorted_rows": (torch.searchsorted, [floats(3, 8).sort().values, floats(3, 5, seed=1)]),
    "searchsorted_by_order": (
        lambda x, v, o: torch.searchsorted(x, v, sorter=o),
        [EDGES.flip(0), ASKED, torch.arange(4, -1, -1)],
    ),
    "searchsorted_number": (lambda x: torch.searchsorted(x, 0.25), [EDGES]),
    "searchsorted_empty": (torch.searchsorted, [floats(0), ASKED]),
    "searchsorted_narrow": (lambda x, v: torch.searchsorted(x, v, out_int32=True), [EDGES, ASKED]),
    "bucketize": (lambda v, x: torch.bucketize(v, x, right=True), [ASKED, EDGES]),
    "searchsorted_among_whole_numbers": (torch.searchsorted, [torch.tensor([-1, 0, 1, 2]), ASKED]),
    "searchsorted_in_half_precision": (torch.searchsorted, [EDGES.bfloat16(), ASKED]),
    "bucketize_number_among_whole_numbers": (lambda x: torch.bucketize(0.5, x), [torch.tensor([-1, 0, 1, 2])]),
    "bucketize_whole_numbers": (torch.bucketize, [TIES, torch.tensor([0, 2, 3])]),
}
for descending in (False, True):
    CASES |= {
        f"sort_{descending}": (lambda x, d=descending: tuple(torch.sort(x, 1, descending=d)), [floats(5, 70)]),
        f"sort_ties_{descending}": (
            lambda x, d=descending: tuple(torch.sort(x, dim=0, descending=d, stable=True)), [TIES]),
        f"sort_special_{descending}": (
            lambda x, d=descending: tuple(torch.sort(x, dim=1, descending=d, stable=True)), [SPECIAL]),
        f"topk_{descending}": (lambda x, d=descending: tuple(torch.topk(x, 3, 0, largest=d)), [floats(9, 5)]),
    }  # fmt: skip
CASES |= {
    **{
        f"sort_long_{dtype}_{descending}": (
            lambda x, d=descending: tuple(torch.sort(x, dim=1, descending=d, stable=True)),
            [long_lines(dtype)],
        )
        for descending in (False, True)
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64)
    },
    "sort_long_columns": (lambda x: tuple(torch.sort(x, dim=0, stable=True)), [long_lines(torch.float32).t()]),
    "topk_few_of_long": (lambda x: tuple(torch.topk(x, 5)), [floats(3, 700)]),
    "topk_many_of_long": (lambda x: tuple(torch.topk(x, 300, largest=False)), [floats(3, 700)]),
    "cumsum_columns": (lambda x: x.cumsum(0), [floats(5, 70)]),
    "cumsum_rows": (lambda x: x.cumsum(1), [floats(7, 50)]),
    "sort_bool": (lambda x: tuple(torch.sort(x, dim=1, stable=True)), [TIES > 1]),
    "sort_bf16": (lambda x: torch.sort(x, 1)[0], [floats(5, 7, dtype=torch.bfloat16)]),
    "sort_zero_dim": (lambda x: tuple(torch.sort(x)), [floats()]),
    "sort_empty": (lambda x: tuple(torch.sort(x)), [floats(3, 0)]),
    "topk_all": (lambda x: tuple(torch.topk(x, 5)), [floats(4, 5)]),
    "argsort": (lambda x: torch.argsort(x * 2), [floats(4, 5)]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), [floats(5, 7)]),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), [floats(5, 3), integers(5, 3) > 0, floats(20)]),
    "masked_scatter_rows": (lambda x, m, s: x.masked_scatter(m, s), [floats(5, 3), integers(3) > 0, floats(4, 5)]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES | TOO_FEW, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_operator_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name])


@pytest.mark.parametrize("name", [name for name in CASES if "bf16" not in name])
def test_the_interpreter_agrees(name):
    function, inputs = CASES[name]
    ours = interpret(fuse(lowered(function, *inputs)), inputs)
    for mine, eager in zip(ours, as_tuple(function(*inputs)), strict=True):
        torch.testing.assert_close(mine, eager, equal_nan=True)


TOO_FEW = {"too_few": (lambda x, m, s: x.masked_scatter(m, s), [floats(5), torch.ones(5, dtype=torch.bool), floats(4)])}


def test_too_few_values_to_scatter_raise_as_eager_does(model):
    with pytest.raises(RuntimeError, match="number of elements"):
        model["too_few"](*TOO_FEW["too_few"][1])
