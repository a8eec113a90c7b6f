"""Random numbers.

Dropout and draws of zeros and ones compare uniform numbers: onnxruntime removes ``Dropout`` from the middle of a model
whose training mode is a constant, and the standard's ``Bernoulli`` exchanges zeros and ones.
"""

from typing import Any

import onnx_ir as ir

from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule


@rule("aten::dropout")
def dropout(x: Any, p: float, train: bool) -> Any:
    return dropped(x, p) if train else op.Identity(x)


@rule("aten::native_dropout")
def native_dropout(x: Any, p: float, train: bool | None) -> Any:
    """The mask says what is kept."""
    if train is False:
        return op.Identity(x), op.Equal(x, x)
    mask = _is_below(1 - p, x)
    return _scaled(x, mask, p), mask


def dropped(x: Any, p: float) -> Any:
    """Elements are zero with probability ``p``; the others are scaled up."""
    return _scaled(x, _is_below(1 - p, x), p) if p else op.Identity(x)


def _scaled(x: Any, mask: Any, p: float) -> Any:
    zero = number(0.0, x)
    return op.Where(mask, op.Mul(x, number(1 / (1 - p) if p < 1 else 0.0, x)), zero)


def _is_below(probability: Any, like: Any) -> Any:
    """Whether uniform numbers, one for each element, are below it."""
    uniform = op.RandomUniformLike(like, dtype=int(ir.DataType.FLOAT))
    return op.Less(uniform, probability)


@rule("aten::bernoulli")
def zeros_and_ones(p: Any, *, generator: Any = None) -> Any:
    return op.Cast(_is_below(op.Cast(p, to=ir.DataType.FLOAT), p), to=p.dtype)


@rule("aten::multinomial")
def draws(x: Any, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Without replacement, the largest logarithms to which Gumbel's noise was added: ONNX draws with replacement."""
    logits = op.Log(op.Cast(x, to=ir.DataType.FLOAT))
    if not replacement:
        noise = op.RandomUniformLike(logits, dtype=ir.DataType.FLOAT)
        return op.TopK(op.Sub(logits, op.Log(op.Neg(op.Log(noise)))), integers(count), axis=-1)[1]
    rows = logits if len(x.shape) == 2 else op.Unsqueeze(logits, integers(0))
    drawn = op.Multinomial(rows, dtype=ir.DataType.INT64, sample_size=count)
    return drawn if len(x.shape) == 2 else op.Squeeze(drawn, integers(0))


@rule("aten::randperm")
def permutation(n: Any, *, dtype: int = -1, **_: Any) -> Any:
    """The argsort of random numbers."""
    count = op.Reshape(integer(n) if isinstance(n, int) else n, integers(-1))
    zeros = op.ConstantOfShape(count, value=ir.tensor([0.0], dtype=ir.DataType.DOUBLE))
    # In double precision, equal draws, which would favour the first, are very unlikely.
    _, order = op.TopK(op.RandomUniformLike(zeros), count)
    return order if dtype in (-1, ir.DataType.INT64) else op.Cast(order, to=dtype)


@rule("aten::uniform")
def uniform(x: Any, start: float = 0.0, stop: float = 1.0, *, generator: Any = None, **ends: float) -> Any:
    low, high = ends.get("from", start), ends.get("to", stop)
    return op.RandomUniformLike(x, low=float(low), high=float(high))


@rule("aten::rrelu_with_noise_functional")
def leaky_relu_of_random_slope(
    x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    slope = op.RandomUniformLike(x, low=float(lower), high=float(upper)) if training else number((lower + upper) / 2, x)
    return op.Where(op.Less(x, number(0.0, x)), op.Mul(x, slope), x), None
