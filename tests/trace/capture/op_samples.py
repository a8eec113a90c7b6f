"""Every operator that torch itself tests, as programs of one call each, compared with eager."""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from precast.graph.interpreter import interpret
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize

_DTYPES = (torch.float32, torch.complex64, torch.int64)
OPS: dict[str, OpInfo] = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
    for op in op_db
    if op.supported_dtypes("cpu") & set(_DTYPES) and not op.name.startswith("jiterator")
}
IN_PLACE_OPS = {name: op for name, op in OPS.items() if op.get_inplace() is not None}
GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("op_gaps.toml").read_text(encoding="utf-8"))
"""What cannot be captured, and why. May only shrink: an entry that works fails its test."""

# Torch's random samples set this seed inside the call, which is Python's doing and in no graph.
_SEED = 42
# Other arguments (functions, modules, options) are bound to the function before it is captured.
_INPUT_TYPES = (
    torch.Tensor,
    int,
    float,
    complex,
    str,
    type(None),
    tuple,
    list,
    dict,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
# Their results are whatever was in memory.
_UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


def samples_of(op: OpInfo, *, count: int) -> list[SampleInput]:
    """At most ``count`` of the op's sample calls, spread evenly."""
    dtype = next(dtype for dtype in _DTYPES if dtype in op.supported_dtypes("cpu"))
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype))
    return samples[:: max(1, -(-len(samples) // count))]


def assert_captured_like_eager(op: OpInfo, sample: SampleInput) -> None:
    _compare(op.get_op(), sample, values=op.name not in _UNINITIALIZED)


def assert_captured_in_place_like_eager(op: OpInfo, sample: SampleInput) -> None:
    """The same for the op's in-place form, where that accepts the sample at all."""
    if sample.broadcasts_input:
        return
    function = op.get_inplace()
    args, kwargs = _fresh_call(sample)
    try:
        function(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return
    _compare(function, sample, values=True)


def _compare(function: Callable[..., Any], sample: SampleInput, *, values: bool) -> None:
    objects = {name: value for name, value in sample.kwargs.items() if not isinstance(value, _INPUT_TYPES)}
    function = partial(function, **objects) if objects else function
    sample = SampleInput(
        sample.input, args=sample.args, kwargs={k: v for k, v in sample.kwargs.items() if k not in objects}
    )
    example, eager, ours = (_fresh_call(sample) for _ in range(3))
    torch.manual_seed(_SEED)
    expected = function(*eager[0], **eager[1])
    program = functionalize(capture(function, *example))
    torch.manual_seed(_SEED)
    result = interpret(program, *ours[0], **ours[1])
    _assert_same(result, expected, values=values)
    # What the call did to its arguments.
    _assert_same(ours, eager, values=True)


def _fresh_call(sample: SampleInput) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call = (sample.input, *sample.args), sample.kwargs
    return pytree.tree_map_only(torch.Tensor, _copy_with_memory, call)


def _copy_with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at the same place of a memory of the same size: some samples reach beyond what the tensor shows."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    memory = tensor.untyped_storage().clone()
    with torch.no_grad():
        return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())


def _assert_same(result: Any, expected: Any, *, values: bool) -> None:
    ours, theirs = pytree.tree_leaves(result), pytree.tree_leaves(expected)
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        if not isinstance(their, torch.Tensor):
            assert our == their or our != our
        elif values:
            torch.testing.assert_close(our, their, equal_nan=True)
        else:
            assert (our.shape, our.dtype) == (their.shape, their.dtype)
