"""Upsampling, padding, distances and other ways to rearrange, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import check_case, floats, integers, open_cases

aten = torch.ops.aten

SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 3, 4, 5)}
SIZES = {1: [8], 2: [9, 3], 3: [5, 2, 7]}


def every_byte(*shape):
    return integers(*shape, low=0, high=256, dtype=torch.uint8)


KINDS = {
    "upsample_nearest": ((1, 2, 3), ()),
    "_upsample_nearest_exact": ((1, 2, 3), ()),
    "upsample_linear": ((1,), (False, True)),
    "upsample_bilinear": ((2,), (False, True)),
    "upsample_trilinear": ((3,), (False, True)),
    "upsample_bicubic": ((2,), (False, True)),
}
CASES = {}
for kind, (ranks, corners) in KINDS.items():
    for rank in ranks:
        for align in corners or (None,):
            name, extra = f"{kind}{rank}d", () if align is None else (align,)
            forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
            size, shape = SIZES[rank], SHAPES[rank]
            CASES[f"{name}_{align}"] = (lambda x, f=forward, s=size, e=extra: f(x, s, *e), [floats(*shape)])
            CASES[f"{name}_{align}_backward"] = (
                lambda dy, f=backward, s=size, i=shape, e=extra: f(dy, s, list(i), *e),
                [floats(*shape[:2], *size)],
            )
for kind in ("reflection", "replication"):
    for rank, pads in ((1, [2, 1]), (2, [1, 2, 0, 3]), (3, [1, 2, 0, 1, 2, 1])):
        forward, backward = (getattr(aten, f"{kind}_pad{rank}d{suffix}") for suffix in ("", "_backward"))
        x = floats(*SHAPES[rank])
        CASES[f"{kind}{rank}d"] = (lambda x, f=forward, p=pads: f(x, p) * 2, [x])
        CASES[f"{kind}{rank}d_backward"] = (
            lambda dy, x, f=backward, p=pads: f(dy, x, p), [torch.randn_like(forward(x, pads)), x])  # fmt: skip
for p in (0.0, 1.0, 2.0, 2.5, float("inf")):
    CASES[f"cdist_{p}"] = (lambda a, b, p=p: aten._cdist_forward(a, b, p, None), [floats(2, 5, 4), floats(2, 3, 4)])
    CASES[f"pdist_{p}"] = (lambda a, p=p: aten._pdist_forward(a, p), [floats(6, 4)])
CASES["cdist_of_one_matrix_and_many"] = (
    lambda a, b: aten._cdist_forward(a, b, 2.0, None),
    [floats(5, 4), floats(2, 3, 4)],
)
CASES |= {
    "upsample_by_factor": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False),
        [floats(2, 3, 5, 4)]),
    "sizes_stay_or_double": (
        lambda x: [
            F.interpolate(x, scale_factor=(1.1, 2.1), mode=mode)
            for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        ],
        [floats(2, 3, 5, 4)]),
    "sizes_stay_or_double_backward": (
        lambda dy: [
            aten.upsample_nearest2d_backward(dy, [5, 8], [2, 3, 5, 4], 1.1, 2.1),
            aten.upsample_bilinear2d_backward(dy, [5, 8], [2, 3, 5, 4], False, 1.1, 2.1)],
        [floats(2, 3, 5, 8)]),
    "sizes_of_many_stay": (
        lambda x, y: [F.interpolate(each, scale_factor=1.004) for each in (x, y)],
        [floats(1, 1, 65, 65), floats(1, 4, 65, 65).to(memory_format=torch.channels_last)]),
    "lengths_stay": (
        lambda x: [F.interpolate(x, scale_factor=1.1, mode=mode) for mode in ("nearest", "linear")],
        [floats(2, 3, 5)]),
    "bytes_stay": (lambda x: F.interpolate(x, scale_factor=1.1), [every_byte(2, 3, 5, 4)]),
    "upsample_bf16": (lambda x: F.interpolate(x, size=(7, 3)), [floats(2, 3, 5, 4, dtype=torch.bfloat16)]),
    "upsample_u8": (lambda x: F.interpolate(x, size=(7, 3)), [integers(2, 3, 5, 4, low=0, high=99, dtype=torch.uint8)]),
    "bilinear_u8": (
        lambda x: F.interpolate(x, size=(20, 5), mode="bilinear"), [every_byte(2, 3, 9, 8)]),
    "bilinear_u8_corners": (
        lambda x: F.interpolate(x, size=(9, 13), mode="bilinear", align_corners=True),
        [every_byte(2, 5, 9, 8)]),
    "bilinear_u8_same": (
        lambda x: F.interpolate(x, size=(9, 8), mode="bilinear"), [every_byte(1, 3, 9, 8)]),
    "bicubic_u8": (
        lambda x: F.interpolate(x, size=(50, 31), mode="bicubic"), [every_byte(1, 3, 5, 5)]),
    "bicubic_u8_smaller": (
        lambda x: F.interpolate(x, scale_factor=(0.4, 1.7), mode="bicubic"),
        [every_byte(1, 3, 15, 9)]),
    "upsample_f64": (
        lambda x: F.interpolate(x, size=(7, 3), mode="bicubic"), [floats(2, 3, 5, 4, dtype=torch.float64)]),
    "roll": (lambda x: x.roll((2, -1), (0, 1)), [floats(5, 7)]),
    "roll_beyond_the_end": (lambda x: x.roll((9, 3), (1, 1)).exp(), [floats(5, 7)]),
    "roll_columns_of_transposed": (lambda x: x.t().roll(-2, -1), [floats(5, 7)]),
    "roll_flat": (lambda x: x.roll(3), [floats(5, 7)]),
    "roll_zero_dim": (lambda x: x.roll(3), [floats()]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, [floats(2, 8, 3, 5)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2) * 2, [floats(2, 2, 4, 6)]),
    "as_strided": (lambda x: torch.as_strided(x, (3, 4), (2, 3), 1) * 2, [floats(5, 7)]),
    "as_strided_of_transposed": (lambda x: torch.as_strided(x.t(), (3, 4), (2, 3), 1) * 2, [floats(5, 7)]),
    "empty_strided": (lambda x: torch.zeros_like(torch.empty_strided((2, 3), (1, 2))) + x, [floats(3)]),
    "std": (lambda x: x.std(1), [floats(9, 40)]),
    "var_mean": (lambda x: torch.var_mean(x, 1), [floats(9, 40) + 10]),
    "var_mean_kept": (lambda x: torch.var_mean(x, (0, 2), keepdim=True, correction=0), [floats(3, 4, 5)]),
    "var_mean_all": (torch.var_mean, [floats(3, 4, 5)]),
    "eye": (lambda x: torch.eye(3, 4) * x, [floats(4)]),
    "tril": (lambda x: x.tril(1), [floats(4, 4)]),
    "linspace": (lambda x: torch.linspace(0, 1, 7) * x, [floats(7)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), [floats(2, 3)]),
    "meshgrid": (lambda x, y: torch.meshgrid(x * 2, y, indexing="ij"), [floats(2), floats(3)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_operator_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)
