"""Normalization of rows whose mean is hard to find: equal numbers, large means, tiny numbers, NaN, infinity."""

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import check_case, floats, open_cases

ROWS, WIDTH = 32, 196
ROW_KINDS = {
    "tenth": torch.full((ROWS, WIDTH), 0.1),
    "thousand": torch.full((ROWS, WIDTH), 1000.3),
    "smallest": torch.full((ROWS, WIDTH), -3e-40),
    "far": 1e4 + floats(ROWS, WIDTH),
    "farther": 1e6 + floats(ROWS, WIDTH),
    "tiny": 1e-20 * floats(ROWS, WIDTH),
    "large": 1e15 * floats(ROWS, WIDTH),
    "infinite": torch.where(floats(ROWS, WIDTH) > 2.5, torch.inf, floats(ROWS, WIDTH)),
    "not_a_number": torch.where(floats(ROWS, WIDTH) > 2.5, torch.nan, floats(ROWS, WIDTH)),
}
EQUAL = ("tenth", "thousand", "smallest")
LAST = torch.channels_last


def by_layer(x):
    return F.layer_norm(x, (WIDTH,))


def by_group(x):
    return F.group_norm(x, 2)


def by_batch(x):
    return F.batch_norm(x, None, None, training=True)


def images(rows, **layout):
    return rows.reshape(4, 8, 14, 14).to(**layout)


CASES = {
    **{f"layer_{kind}": (by_layer, [rows]) for kind, rows in ROW_KINDS.items()},
    **{f"group_{kind}": (by_group, [images(rows)]) for kind, rows in ROW_KINDS.items()},
    **{f"group_last_{kind}": (by_group, [images(rows, memory_format=LAST)]) for kind, rows in ROW_KINDS.items()},
    **{f"variance_{kind}": (lambda x: x.var(-1), [rows]) for kind, rows in ROW_KINDS.items()},
    **{f"deviation_down_{kind}": (lambda x: x.std(0), [rows]) for kind, rows in ROW_KINDS.items()},
    **{f"batch_{kind}": (by_batch, [images(rows)]) for kind, rows in ROW_KINDS.items()},
    **{f"batch_last_{kind}": (by_batch, [images(rows, memory_format=LAST)]) for kind, rows in ROW_KINDS.items()},
    **{
        f"moved_{name}_{kind}": (lambda x, norm=norm: norm(x + 0.3), [shaped(ROW_KINDS[kind]).bfloat16()])
        for kind in EQUAL
        for name, norm, shaped in (
            ("layer", by_layer, lambda rows: rows), ("group", by_group, images), ("batch", by_batch, images))
    },
    "running": (
        lambda x, m, v: torch.ops.aten._native_batch_norm_legit_functional(x, None, None, m, v, True, 1.0, 1e-5)[3:],
        [images(1e-4 * floats(ROWS, WIDTH)), torch.zeros(8), torch.ones(8)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_errors_are_not_larger_than_those_of_eager(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize("name", [name for name in CASES if name.rpartition("_")[2] in EQUAL])
def test_equal_numbers_become_zero(model, name):
    (result,) = model[name](*CASES[name][1])
    assert not result.any()
