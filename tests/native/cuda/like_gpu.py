"""Triton's interpreter, made to behave as a GPU does where the two differ; imported for its effect.

- Functions of NVIDIA's math library are torch's.
- Reductions run over whole arrays: the interpreter goes element by element where it does not know a function.
- Conversions to 16-bit floats round to nearest, and those to integers saturate; sizes have 64 bits.
- What is loaded where a mask is off is garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

from tests.native.cuda.accesses import watch

GARBAGE = 0xFF


def _by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of NVIDIA's math library, on blocks."""

    def compute(*arguments: Any) -> Any:
        blocks = [each if isinstance(each, tl.tensor) else tl.to_tensor(each) for each in arguments]
        arrays = np.broadcast_arrays(*(each.handle.data for each in blocks))
        result = function(*(torch.from_numpy(np.ascontiguousarray(each)) for each in arrays)).numpy()
        kind = blocks[0].type
        for each in blocks:
            kind = each.type if each.handle.data.size == result.size else kind
        result = result.reshape(arrays[0].shape)
        return tl.tensor(interpreter.TensorHandle(result, blocks[0].handle.dtype), kind)

    return compute


_LIBRARY = {
    **{name: getattr(torch, name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc",
        "erfinv", "exp", "exp2", "expm1", "floor", "hypot", "lgamma", "log", "log10", "log1p", "log2",
        "nextafter", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    )},
    # Torch's is inexact where the quotient overflows.
    "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
    "rint": torch.round, "erfcx": torch.special.erfcx, "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1, "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1, "normcdfinv": torch.special.ndtri,
}  # fmt: skip
for _name, _function in _LIBRARY.items():
    setattr(libdevice, _name, _by_torch(_function))

_REDUCTIONS = {"maximum": np.max, "minimum": np.min, "multiply": np.prod}
_slow_reduce = interpreter.ReduceOps.generic_reduce


def _reduce(self: Any, input: Any) -> Any:
    function = _REDUCTIONS.get(self.combine_fn.fn.__name__)
    if function is None:
        return _slow_reduce(self, input)
    block = input[0] if isinstance(input, tuple) else input
    data = function(block.handle.data, axis=self.axis, keepdims=self.keep_dims)
    return self.to_tensor(data.astype(block.handle.data.dtype), block.dtype)


interpreter.ReduceOps.generic_reduce = _reduce


class _Builder(interpreter.InterpreterBuilder):
    """The operations of the interpreter."""

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *others: Any) -> Any:
        kind = ptrs.get_element_ty()
        # A single 0 comes as None.
        if other is None and ptrs.data.size > 1:
            garbage = np.full((*ptrs.data.shape, _numpy(kind).itemsize), GARBAGE, np.uint8)
            other = interpreter.TensorHandle(garbage.view(_numpy(kind))[..., 0], kind)
        watch.note("read", ptrs.data, mask.data, _numpy(kind).itemsize, self.grid_idx[0])
        return super().create_masked_load(ptrs, mask, other, *others)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        watch.note("write", ptrs.data, mask.data, _numpy(ptrs.get_element_ty()).itemsize, self.grid_idx[0])
        return super().create_masked_store(ptrs, value, mask, *others)

    def create_atomic_rmw(self, operation: Any, ptr: Any, val: Any, mask: Any, *others: Any) -> Any:
        watch.note("add", ptr.data, mask.data, _numpy(ptr.get_element_ty()).itemsize, self.grid_idx[0])
        return super().create_atomic_rmw(operation, ptr, val, mask, *others)

    def get_bf16(self, value: float) -> Any:
        bits = torch.tensor([value], dtype=torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return interpreter.TensorHandle(bits, tl.bfloat16)

    def create_barrier(self) -> None:
        watch.wait()

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        before, after = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 in (before, after):
            return interpreter.TensorHandle(_through_bfloat16(src.data, before, after), after)
        if before.is_floating() and after.is_int():
            return interpreter.TensorHandle(_saturated(src.data, _numpy(after)), after)
        return super().cast_impl(src, dst_type)

    # They are bound to the method above when the interpreter's class is made.
    create_si_to_fp = create_ui_to_fp = create_fp_to_si = create_fp_to_ui = cast_impl
    create_fp_ext = create_fp_trunc = cast_impl

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding: Any) -> Any:
        return self.cast_impl(src, dst_type)


def _numpy(kind: Any) -> np.dtype[Any]:
    return np.dtype(interpreter._get_np_dtype(kind))


def _through_bfloat16(data: np.ndarray[Any, Any], before: Any, after: Any) -> np.ndarray[Any, Any]:
    tensor = torch.from_numpy(np.ascontiguousarray(data))
    if before == tl.bfloat16:
        return tensor.view(torch.int16).view(torch.bfloat16).float().numpy().astype(_numpy(after)).reshape(data.shape)
    return tensor.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).reshape(data.shape)


def _saturated(data: np.ndarray[Any, Any], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    limits = np.iinfo(kind) if kind != np.bool_ else None
    if limits is None:
        return data != 0
    whole = np.nan_to_num(np.trunc(data.astype(np.float64)), nan=0.0)
    inside = (whole > limits.min) & (whole < limits.max)
    made = np.where(inside, whole, 0).astype(kind)
    return np.where(inside, made, np.where(whole <= limits.min, limits.min, limits.max).astype(kind))


_builder = _Builder()
_builder.options = replaced(_builder.options, debug=True, sanitize_overflow=False)
interpreter.interpreter_builder = _builder
interpreter.interpreter_semantic = interpreter.TritonSemantic(_builder)
_patch_tensor, _convert = interpreter._patch_lang_tensor, interpreter._implicit_cvt


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    # Numbers are arrays of one element there, which NumPy 2.4 makes no number of.
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _implicit_cvt(argument: Any) -> Any:
    if isinstance(argument, int):
        return tl.tensor(interpreter.TensorHandle(np.array([argument], np.int64), tl.int64), tl.int64)
    return _convert(argument)


interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter._implicit_cvt = _implicit_cvt
