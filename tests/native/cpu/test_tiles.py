"""Loops that read along one direction and write along another, at sizes around those of a tile, against eager."""

import pytest
import torch

import precast
from tests.native.lowering.cases import check_case, floats, open_cases

SIZES = [(17, 17), (32, 64), (33, 95), (100, 31), (1, 70), (257, 18)]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def numbers(*shape, dtype=torch.float32):
    return floats(*shape).mul(9).to(dtype)


def turned(x, first, second):
    return x.transpose(first, second).clone(memory_format=torch.contiguous_format)


CASES = {
    **{f"copy_{rows}_{columns}": (lambda x: turned(x, 0, 1), [numbers(rows, columns)])
       for rows, columns in SIZES},
    **{f"copy_{dtype}".replace("torch.", ""): (
        lambda x: turned(x, 1, 2), [numbers(3, 50, 41, dtype=dtype)])
       for dtype in DTYPES},
    **{f"computed_{rows}_{columns}": (lambda x, y: (x.t() * y).exp(), [floats(rows, columns), floats(columns, rows)])
       for rows, columns in SIZES},
    "two_turned": (lambda x, y, z: torch.tanh(x.t() + y.t()) * z, [floats(40, 70), floats(40, 70), floats(70, 40)]),
    "turned_twice_at_two_places": (lambda x, y: x[:, 1:].t() - x[:, :-1].t() + y, [floats(40, 71), floats(70, 40)]),
    "bf16_computed": (lambda x, y: x.t() + y, [floats(40, 70).bfloat16(), floats(70, 40).bfloat16()]),
    "channels_last_to_first": (
        lambda x: x.relu().clone(memory_format=torch.contiguous_format),
        [floats(2, 40, 9, 11).contiguous(memory_format=torch.channels_last)]),
    "channels_first_to_last": (lambda x: x.relu().clone(memory_format=torch.channels_last), [floats(2, 40, 9, 11)]),
    "padded": (lambda x, y: torch.constant_pad_nd(x, [1, 1]).t() + y, [floats(40, 70), floats(72, 40)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_a_turned_tile_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name])


def test_sizes_may_be_dynamic():
    turn = precast.compile(lambda x, y: x.t().sin() + y, dynamic=True)
    for rows, columns in SIZES:
        x, y = floats(rows + 1, columns), floats(columns, rows + 1)
        torch.testing.assert_close(turn(x, y), x.t().sin() + y)
