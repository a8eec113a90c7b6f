"""Pooling and its gradients, in all geometries, against eager and float64."""

import math

import pytest
import torch

from tests.native.lowering.cases import check_case, floats, open_cases

aten = torch.ops.aten

IMAGE, VOLUME = (2, 3, 9, 8), (1, 2, 5, 6, 7)


def gradient_like(function, inputs):
    result = function(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    return torch.randn(result.shape, generator=torch.Generator().manual_seed(7)).to(result.dtype)


CASES = {}


def add_max_pool(name, shape, *geometry, dimensions=2):
    forward, backward = (getattr(aten, f"max_pool{dimensions}d_with_indices{suffix}") for suffix in ("", "_backward"))
    x = floats(*shape)
    CASES[name] = (lambda x: forward(x, *geometry), [x])
    stride = geometry[1] if len(geometry) > 1 else geometry[0]
    rest = (*geometry[2:], *([0] * dimensions, [1] * dimensions, False)[len(geometry) - 2 :])
    CASES[f"{name}_backward"] = (
        lambda dy, x: backward(dy, x, geometry[0], stride, *rest, forward(x, *geometry)[1]),
        [gradient_like(lambda x: forward(x, *geometry), [x]), x],
    )


def add_average_pool(name, shape, *geometry, dimensions=2):
    forward, backward = (getattr(aten, f"avg_pool{dimensions}d{suffix}") for suffix in ("", "_backward"))
    x = floats(*shape)
    CASES[name] = (lambda x: forward(x, *geometry), [x])
    CASES[f"{name}_backward"] = (
        lambda dy, x: backward(dy, x, *geometry), [gradient_like(lambda x: forward(x, *geometry), [x]), x])  # fmt: skip


def add_adaptive_pool(name, shape, size, dimensions=2):
    forward, backward = (getattr(aten, f"_adaptive_avg_pool{dimensions}d{suffix}") for suffix in ("", "_backward"))
    x = floats(*shape)
    CASES[name] = (lambda x: forward(x, size), [x])
    CASES[f"{name}_backward"] = (backward, [gradient_like(lambda x: forward(x, size), [x]), x])


add_max_pool("max", IMAGE, [2, 2], [2, 2])
add_max_pool("max_overlapping", IMAGE, [3, 3], [2, 2], [1, 1])
add_max_pool("max_dilated", IMAGE, [3, 2], [1, 2], [1, 0], [2, 1], True)
add_max_pool("max_3d", VOLUME, [2, 3, 2], [2, 1, 2], [1, 1, 0], dimensions=3)
add_max_pool("max_without_batch", IMAGE[1:], [2, 2], [2, 2])
add_average_pool("average", IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)
add_average_pool("average_padded", IMAGE, [3, 3], [2, 2], [1, 1], False, True, None)
add_average_pool("average_inside", IMAGE, [3, 2], [2, 1], [1, 1], True, False, None)
add_average_pool("average_divided", IMAGE, [3, 3], [1, 2], [1, 1], True, True, 5)
add_average_pool("average_of_a_large_window", IMAGE, [64, 64], [64, 64], [0, 0], True, True, None)
add_average_pool("average_of_a_large_padded_window", IMAGE, [11, 15], [2, 9], [5, 7], True, False, None)
add_max_pool("max_of_a_large_window", IMAGE, [12, 20], [3, 7], [6, 10], [1, 1], True)
add_average_pool("average_3d", VOLUME, [2, 3, 2], [2, 1, 2], [1, 1, 0], False, True, None, dimensions=3)
add_adaptive_pool("adaptive_to_one", IMAGE, [1, 1])
add_adaptive_pool("adaptive_uneven", IMAGE, [4, 5])
add_adaptive_pool("adaptive_larger", IMAGE, [13, 8])
CASES |= {
    "average_1d": (lambda x: aten.avg_pool1d(x, [3], [2], [1]), [floats(2, 3, 9)]),
    "adaptive_1d": (lambda x: aten.adaptive_avg_pool1d(x, [4]), [floats(2, 3, 9)]),
    "adaptive_3d": (lambda x: aten._adaptive_avg_pool3d(x, [2, 4, 3]), [floats(*VOLUME)]),
    "adaptive_max": (lambda x: aten.adaptive_max_pool2d(x, [4, 3]), [floats(*IMAGE)]),
    "adaptive_max_backward": (
        lambda dy, x: aten.adaptive_max_pool2d_backward(dy, x, aten.adaptive_max_pool2d(x, [4, 3])[1]),
        [floats(2, 3, 4, 3), floats(*IMAGE, seed=1)]),
    "max_special": (
        lambda x: aten.max_pool2d_with_indices(x, [1, 2]),
        [torch.tensor([[[1.0, math.nan, -math.inf, -math.inf, math.inf, 3.0, 2.0, 2.0]]])]),
    "max_of_several_nan": (
        lambda x: aten.max_pool2d_with_indices(x, [2, 4]),
        [torch.tensor([[[1.0, math.nan, 2.0, 3.0], [math.nan, 0.0, math.nan, 5.0]]])]),
    "max_i32": (lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], [floats(*IMAGE).mul(100).int()]),
    "max_bf16": (lambda x: aten.max_pool2d_with_indices(x, [2, 2]), [floats(*IMAGE, dtype=torch.bfloat16)]),
    "average_f64": (lambda x: aten.avg_pool2d(x, [3, 3]), [floats(*IMAGE, dtype=torch.float64)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_pooling_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)
