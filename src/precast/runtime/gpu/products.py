"""GEMMs by cuBLASLt, with a bias and an activation as the epilogue.

cuBLASLt is column-major. A row-major result is the column-major one of the transposed product: ``C = A @ B`` is
computed as ``Cᵀ = Bᵀ @ Aᵀ``, and each operand is passed as transposed or not, according to its memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from precast.runtime.gpu.arrays import DeviceArray
from precast.runtime.gpu.device import Block, Gpu
from precast.runtime.gpu.libraries import CUBLASLT, check, functions

WORKSPACE = 32 * 2**20
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _BIAS_TYPE = 3, 4, 7, 8, 26
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MOST_WORKSPACE, _ALIGNED = 1, (5, 6, 7, 8)
_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
_SINGLE, _DOUBLE, _TF32 = 68, 70, 77
_EPILOGUES = {(): 1, ("add",): 4, ("add", "relu"): 6, ("add", "gelu_tanh"): 36}

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, POINTER(c_int)),
    "cublasLtMatmul": (
        c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64,
        c_void_p, c_void_p, c_uint64, c_size_t, c_void_p,
    ),
}  # fmt: skip


class _Choice(Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True)
class _Matrix:
    """A batch of column-major matrices: rows, columns, leading dimension, and stride between matrices."""

    rows: int
    columns: int
    leading: int
    stride: int


@dataclass(frozen=True)
class _Product:
    """The key of a GEMM's algorithm."""

    dtype: str
    left: _Matrix
    is_left_transposed: bool
    right: _Matrix
    is_right_transposed: bool
    result: _Matrix
    count: int
    finishes: tuple[str, ...]
    alignments: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    """A GEMM's cuBLASLt descriptors and algorithm."""

    operation: c_void_p
    left: c_void_p
    right: c_void_p
    result: c_void_p
    choice: _Choice


class Products:
    """GEMMs on one GPU; cuBLASLt is asked for the algorithm of each only once."""

    def __init__(self, gpu: Gpu, *, tf32: bool):
        self.gpu, self.tf32 = gpu, tf32
        self.library = functions(CUBLASLT, _SIGNATURES)
        self.handle, self.workspace = c_void_p(), Block(gpu, WORKSPACE)
        check(self.library.cublasLtCreate(byref(self.handle)), "starting cuBLASLt")
        self.plans: dict[_Product, _Plan] = {}

    def multiply(
        self,
        left: DeviceArray,
        right: DeviceArray,
        bias: DeviceArray | None,
        output: DeviceArray,
        activations: Sequence[str] = (),
    ) -> None:
        """Write ``left @ right`` to `output`, whose rows are dense, with `bias` for each column, and so on."""
        count = output.shape[0] if len(output.shape) == 3 else 1
        finishes = (*(("add",) if bias is not None else ()), *activations)
        # The transposed product: rows become columns, and left becomes right.
        (first, is_first), (second, is_second) = _matrix(right), _matrix(left)
        result, is_transposed = _matrix(output)
        assert not is_transposed, "results are row-major"
        addresses = [right.address, left.address, output.address, *([bias.address] if bias is not None else [])]
        alignments = tuple(min(each & -each, 256) if each else 256 for each in addresses)
        product = _Product(output.dtype, first, is_first, second, is_second, result, count, finishes, alignments)
        plan = self.plans.get(product)
        if plan is None:
            plan = self.plans[product] = self._plan(product)
        if bias is not None:
            self._describe(plan.operation, _BIAS, c_uint64(bias.address))
        scalar = ctypes.c_double if output.dtype == "f64" else c_float
        one, zero = scalar(1), scalar(0)
        status = self.library.cublasLtMatmul(
            self.handle, plan.operation, ctypes.addressof(one), right.address, plan.left, left.address, plan.right,
            ctypes.addressof(zero), output.address, plan.result, output.address, plan.result,
            ctypes.addressof(plan.choice), self.workspace.address, WORKSPACE, self.gpu.stream,
        )  # fmt: skip
        check(status, f"a product of {left.shape} and {right.shape} by cuBLASLt")

    def _plan(self, product: _Product) -> _Plan:
        operation, preference, choice, found = c_void_p(), c_void_p(), _Choice(), c_int()
        scale = _TYPES["f64" if product.dtype == "f64" else "f32"]
        single = _TF32 if self.tf32 and product.dtype == "f32" else _SINGLE
        compute = _DOUBLE if product.dtype == "f64" else single
        check(self.library.cublasLtMatmulDescCreate(byref(operation), compute, scale), "describing a product")
        self._describe(operation, _TRANSPOSE_A, c_int32(product.is_left_transposed))
        self._describe(operation, _TRANSPOSE_B, c_int32(product.is_right_transposed))
        self._describe(operation, _EPILOGUE, c_uint32(_EPILOGUES[product.finishes]))
        if product.finishes:
            self._describe(operation, _BIAS_TYPE, c_int32(_TYPES[product.dtype]))
            # Any address with the alignment of later ones.
            self._describe(operation, _BIAS, c_uint64(product.alignments[3]))
        matrices = (product.left, product.right, product.result)
        layouts = [self._layout(each, product.dtype, product.count) for each in matrices]
        check(self.library.cublasLtMatmulPreferenceCreate(byref(preference)), "describing a product")
        self._prefer(preference, _MOST_WORKSPACE, c_uint64(WORKSPACE))
        alignments = (*product.alignments[:3], product.alignments[2])
        for number, alignment in zip(_ALIGNED, alignments, strict=True):
            self._prefer(preference, number, c_uint32(alignment))
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, operation, *layouts, layouts[2], preference, 1, ctypes.addressof(choice), byref(found)
        )
        check(status or not found.value, f"finding a way to compute {product}")
        return _Plan(operation, layouts[0], layouts[1], layouts[2], choice)

    def _describe(self, operation: c_void_p, number: int, value: Any) -> None:
        status = self.library.cublasLtMatmulDescSetAttribute(operation, number, byref(value), ctypes.sizeof(value))
        check(status, "describing a product")

    def _prefer(self, preference: c_void_p, number: int, value: Any) -> None:
        set_ = self.library.cublasLtMatmulPreferenceSetAttribute
        check(set_(preference, number, byref(value), ctypes.sizeof(value)), "describing a product")

    def _layout(self, matrix: _Matrix, dtype: str, count: int) -> c_void_p:
        layout = c_void_p()
        create = self.library.cublasLtMatrixLayoutCreate
        check(create(byref(layout), _TYPES[dtype], matrix.rows, matrix.columns, matrix.leading), "describing a matrix")
        if count > 1:
            set_ = self.library.cublasLtMatrixLayoutSetAttribute
            for number, value in ((_BATCH_COUNT, c_int32(count)), (_BATCH_STRIDE, c_int64(matrix.stride))):
                check(set_(layout, number, byref(value), ctypes.sizeof(value)), "describing a matrix")
        return layout


def _matrix(array: DeviceArray) -> tuple[_Matrix, bool]:
    """A row-major matrix as a column-major one of the transpose, over the same memory; else as transposed."""
    *_, rows, columns = array.shape
    *_, from_row, from_column = array.strides
    stride = array.strides[0] if len(array.shape) == 3 else 0
    if _is_dense(columns, from_column) and (rows <= 1 or from_row >= columns):
        return _Matrix(columns, rows, from_row if rows > 1 else max(columns, 1), stride), False
    assert _is_multipliable(array), f"products read rows or columns, not {array}"
    return _Matrix(rows, columns, from_column if columns > 1 else max(rows, 1), stride), True


def _is_dense(size: int, stride: int) -> bool:
    return size <= 1 or stride == 1


def _is_multipliable(array: DeviceArray) -> bool:
    *_, rows, columns = array.shape
    *_, from_row, from_column = array.strides
    by_rows = _is_dense(columns, from_column) and (rows <= 1 or from_row >= max(columns, 1))
    return by_rows or (_is_dense(rows, from_row) and (columns <= 1 or from_column >= max(rows, 1)))


def can_multiply(array: DeviceArray) -> bool:
    """Whether an operand can be read in place; others are copied first."""
    return len(array.shape) in (2, 3) and _is_multipliable(array)
