"""Library routines on a GPU through torch's operators: GEMMs by cuBLAS, written directly to the program's buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.artifact.gpu_programs import Call

Tensors = Sequence[torch.Tensor]


EIGHT = 8
LONG = 4096
"""Shorter reductions are computed at once."""


def convolve(
    routine: str, inputs: Tensors, shape: Sequence[int], strides: Sequence[int], numbers: Sequence[int]
) -> torch.Tensor:
    """The result of a convolution, by cuDNN; `shape` and `strides` are those of the output buffer."""
    first, second = inputs
    if not first.numel() or not second.numel():
        # Sums of nothing, which torch refuses.
        return torch.empty_strided(shape, strides, dtype=first.dtype, device=first.device).zero_()
    spatial = first.ndim - 2
    groups, stride, padding, dilation = numbers[0], *(list(numbers[1 + n * spatial :][:spatial]) for n in range(3))
    geometry = (stride, padding, dilation, False, [0] * spatial, groups)
    if routine == "convolution":
        made: torch.Tensor = torch.ops.aten.convolution(first, second, None, *geometry)
        return made
    # Only the layout of this operand matters.
    like = torch.empty_strided(shape, strides, dtype=first.dtype, device=first.device)
    if routine == "convolution_backward_data":
        operands, mask = (first, like, second), [True, False, False]
    else:
        operands, mask = (second, first, like), [False, True, False]
    found = torch.ops.aten.convolution_backward(*operands, None, *geometry, mask)
    gradient: torch.Tensor = next(each for each, is_wanted in zip(found, mask, strict=True) if is_wanted)
    return gradient


def multiply(call: Call, inputs: Tensors, output: torch.Tensor) -> None:
    """Write the result of a GEMM."""
    assert call.routine == "matmul", f"there is no routine {call.routine}"
    left, right, *others = inputs
    if not output.numel():
        return
    if call.epilogue:
        _finished_product(left, right, others[0][0], output, [each.operation for each in call.epilogue[1:]])
    elif output.ndim == 2 and left.itemsize == 2 and left.shape[1] % EIGHT and left.shape[1] >= LONG:
        # Tensor cores read eight numbers of a row at a time: the remainder is added separately.
        length = left.shape[1] // EIGHT * EIGHT
        torch.mm(left[:, :length], right[:length], out=output)
        output.addmm_(left[:, length:], right[length:])
    elif output.ndim == 2 and output.itemsize == 2 and output.shape[1] % EIGHT and output.numel() >= LONG * LONG:
        output.copy_(_product_in_aligned_rows(left, right))
    elif output.ndim <= 3:
        (torch.mm if output.ndim == 2 else torch.bmm)(left, right, out=output)
    else:
        output.copy_(left @ right)


def _product_in_aligned_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A GEMM with aligned rows, for tensor cores: unaligned ones take several times as long."""
    columns = right.shape[1]
    whole = columns // EIGHT * EIGHT
    made = left.new_empty(left.shape[0], whole + EIGHT)
    torch.mm(left, right[:, :whole], out=made[:, :whole])
    made[:, whole:columns] = left @ right[:, whole:]
    return made[:, :columns]


def _finished_product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor, output: torch.Tensor, activations: Sequence[str]
) -> None:
    """A GEMM with a bias for each column, and perhaps an activation, in one cuBLAS call."""
    match activations:
        case []:
            torch.addmm(bias, left, right, out=output)
        case [activation]:
            torch.ops.aten._addmm_activation.out(bias, left, right, use_gelu=activation == "gelu_tanh", out=output)
        case _:
            raise AssertionError(f"products do not apply {activations}")
