"""Runs fallback steps in process: the program's memory as torch tensors, the operator, results copied back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch._ops import OpOverload

from precast.artifact.dtypes import DTYPES
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, evaluate
from precast.native.loops.program import Argument, FallbackStep, LoopProgram, Slot


class TensorMemory(Protocol):
    """What compiled code hands over: an address and a layout."""

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


def run_step(step: FallbackStep, inputs: Sequence[torch.Tensor], sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
    """Call the operator as the graph did."""

    def decode(argument: Argument) -> object:
        if isinstance(argument, Slot):
            return inputs[argument.position]
        if isinstance(argument, Index):
            return evaluate(argument, lambda atom: sizes[atom.name])
        if isinstance(argument, str) and argument.startswith("torch."):
            # A dtype, a layout or a memory format, by its name.
            return getattr(torch, argument.removeprefix("torch."))
        return [decode(item) for item in argument] if isinstance(argument, tuple) else argument

    keywords = {key: decode(value) for key, value in step.keyword_arguments}
    with torch.no_grad():
        result = operator_named(step.operator)(*map(decode, step.arguments), **keywords)
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(each for each in results if isinstance(each, torch.Tensor))


def operator_named(name: str) -> OpOverload:
    """``aten.sort.default`` → the operator."""
    namespace, operator, overload = name.split(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    return found


def _tensor(memory: TensorMemory, buffer: Buffer) -> torch.Tensor:
    shape, strides = memory.shape[: memory.rank], memory.strides[: memory.rank]
    dtype = TORCH_DTYPES[buffer.dtype]
    if 0 in shape or not memory.data:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    window = (ctypes.c_char * (length * DTYPES[buffer.dtype].item_size)).from_address(memory.data)
    return torch.frombuffer(window, dtype=dtype).as_strided(tuple(shape), tuple(strides))
