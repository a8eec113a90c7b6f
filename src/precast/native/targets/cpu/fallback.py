"""The callback for eager fallbacks of compiled code: wraps its memory as tensors, and copies results back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from precast.artifact.dtypes import DTYPES
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.fallback import run_step
from precast.native.loops.buffers import Buffer
from precast.native.loops.program import LoopProgram


class TensorMemory(Protocol):
    """A tensor of compiled code: an address and a layout."""

    data: int | None
    rank: int
    shape: Sequence[int]
    strides: Sequence[int]


Fallback = Callable[[int, int, Sequence[TensorMemory], Sequence[TensorMemory], Sequence[int]], None]


def torch_fallback(programs: Sequence[LoopProgram]) -> Fallback:
    """A function that runs step number `step` among the fallback steps of program number `entry`."""
    steps = [program.fallbacks for program in programs]

    def run(
        entry: int, step: int, inputs: Sequence[TensorMemory], outputs: Sequence[TensorMemory], sizes: Sequence[int]
    ) -> None:
        names = [source.symbol for source in programs[entry].sizes]
        call = steps[entry][step]
        tensors = [_tensor(memory, buffer) for memory, buffer in zip(inputs, call.inputs, strict=True)]
        results = run_step(call, tensors, dict(zip(names, sizes, strict=True)))
        for memory, buffer, result in zip(outputs, call.outputs, results, strict=True):
            _tensor(memory, buffer).copy_(result)

    return run


def _tensor(memory: TensorMemory, buffer: Buffer) -> torch.Tensor:
    shape, strides = memory.shape[: memory.rank], memory.strides[: memory.rank]
    dtype = TORCH_DTYPES[buffer.dtype]
    if 0 in shape or not memory.data:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    window = (ctypes.c_char * (length * DTYPES[buffer.dtype].item_size)).from_address(memory.data)
    return torch.frombuffer(window, dtype=dtype).as_strided(tuple(shape), tuple(strides))
