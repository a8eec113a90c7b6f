"""Element types on both sides: torch's dtypes and ONNX's data types."""

import onnx_ir as ir
import torch

from precast.errors import OnnxTypeError

_DATA_TYPES = {
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.bool: ir.DataType.BOOL,
    torch.float16: ir.DataType.FLOAT16,
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
    torch.int16: ir.DataType.INT16,
    torch.int32: ir.DataType.INT32,
    torch.int64: ir.DataType.INT64,
    torch.int8: ir.DataType.INT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.uint8: ir.DataType.UINT8,
}
_DTYPES = {data_type: dtype for dtype, data_type in _DATA_TYPES.items()}


def data_type_of(dtype: torch.dtype, *, what: str, at: str | None = None) -> ir.DataType:
    """ONNX's type for torch's; ``what`` says in an error which value has it.

    >>> data_type_of(torch.float32, what="x").name
    'FLOAT'
    """
    if dtype not in _DATA_TYPES:
        complex_advice = "Pass and return torch.view_as_real(x), and compute with complex tensors inside only."
        raise OnnxTypeError(
            f"{what} has the dtype {dtype}.",
            why="ONNX models have no values of that type",
            fix=complex_advice if dtype.is_complex else "Convert it to a dtype that ONNX has before exporting.",
            at=at,
        )
    return _DATA_TYPES[dtype]


def real_data_type_of(dtype: torch.dtype, *, what: str, at: str | None = None) -> ir.DataType:
    """The type that carries a value inside the graph: complex numbers travel as pairs of real ones."""
    return data_type_of(dtype.to_real() if dtype.is_complex else dtype, what=what, at=at)


def dtype_of(data_type: ir.DataType) -> torch.dtype:
    """Torch's type for ONNX's."""
    return _DTYPES[data_type]
