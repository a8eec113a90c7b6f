"""Weights that others have quantized, in the layouts of GPTQ and AWQ, packed here bit by bit as these say."""

import numpy as np
import pytest
import torch
from torch import nn

import precast
from precast.errors import InputValueError, OptionError
from precast.quantize import QuantizedLinear, from_stored, with_stored_weights

DEPTH, COLUMNS, GROUP = 128, 48, 32
GROUPS = DEPTH // GROUP


def packed(numbers: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Words of neighbours along an axis, the first in the lowest bits; in another order, if given."""
    per_word = 32 // bits
    moved = np.moveaxis(numbers, axis, -1).astype(np.uint64)
    words = moved.reshape(*moved.shape[:-1], -1, per_word)[..., list(order or range(per_word))]
    joined = (words << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))).sum(-1, dtype=np.uint64)
    return torch.from_numpy(np.moveaxis(joined.astype(np.uint32).view(np.int32), -1, axis).copy())


def parts(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(bits)
    numbers = random.integers(0, 1 << bits, (DEPTH, COLUMNS))
    zeros = random.integers(1, (1 << bits) + 1, (GROUPS, COLUMNS))
    return numbers, zeros, random.uniform(0.01, 0.1, (GROUPS, COLUMNS)).astype(np.float16)


def meant(numbers: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> torch.Tensor:
    """The weight ``[out, in]`` in double precision."""
    return torch.from_numpy(((numbers - zeros[groups]) * scales.astype(np.float64)[groups]).T.copy())


def check(layer: QuantizedLinear, weight: torch.Tensor) -> None:
    x = torch.randn(3, DEPTH, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer.weight.double(), weight, rtol=1e-6, atol=0)
    with torch.no_grad():
        for run in (layer, precast.compile(layer)):
            torch.testing.assert_close(run(x).double(), x.double() @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("in_order", [True, False])
def test_gptq(bits, in_order):
    numbers, zeros, scales = parts(bits)
    groups = np.arange(DEPTH) // GROUP
    groups = groups if in_order else np.random.default_rng(0).permutation(groups)
    layer = from_stored(
        "gptq",
        qweight=packed(numbers, bits, 0),
        qzeros=packed(zeros - 1, bits, 1),
        scales=torch.from_numpy(scales),
        g_idx=torch.from_numpy(groups.astype(np.int32)),
        dtype=torch.float32,
    )
    assert (layer.order is None) == in_order
    check(layer, meant(numbers, zeros, scales, groups))


def test_awq():
    numbers, zeros, scales = parts(4)
    zeros = zeros - 1
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    layer = from_stored(
        "awq",
        qweight=packed(numbers, 4, 1, order),
        qzeros=packed(zeros, 4, 1, order),
        scales=torch.from_numpy(scales),
        dtype=torch.float32,
    )
    check(layer, meant(numbers, zeros, scales, np.arange(DEPTH) // GROUP))


def test_layers_of_a_model_take_a_checkpoints_weights():
    numbers, zeros, scales = parts(4)
    tensors = {
        "1.qweight": packed(numbers, 4, 0),
        "1.qzeros": packed(zeros - 1, 4, 1),
        "1.scales": torch.from_numpy(scales),
        "1.bias": torch.ones(COLUMNS),
    }
    model = nn.Sequential(nn.LayerNorm(DEPTH), nn.Linear(DEPTH, COLUMNS))
    result = with_stored_weights(model, tensors)
    assert isinstance(result[1], QuantizedLinear)
    assert type(model[1]) is nn.Linear
    assert result[0].weight is model[0].weight
    assert result(torch.zeros(2, DEPTH)).tolist() == torch.ones(2, COLUMNS).tolist()


def test_what_does_not_fit_is_told():
    numbers, zeros, scales = parts(4)
    good = {"qweight": packed(numbers, 4, 0), "qzeros": packed(zeros - 1, 4, 1), "scales": torch.from_numpy(scales)}
    with pytest.raises(OptionError, match="'other'"):
        from_stored("other", **good)
    with pytest.raises(InputValueError, match="qweight is"):
        from_stored("awq", **good)
    with pytest.raises(InputValueError, match="different sizes"):
        from_stored("gptq", **good, g_idx=torch.zeros(DEPTH, dtype=torch.int32))
    with pytest.raises(InputValueError, match="no qweight"):
        with_stored_weights(nn.Linear(2, 2), {})
    with pytest.raises(InputValueError, match="has no qzeros"):
        with_stored_weights(nn.Sequential(nn.Linear(2, 2)), {"0.qweight": good["qweight"]})
