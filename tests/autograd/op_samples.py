"""Every operator that torch itself tests, as a compiled function of one call, compared with eager."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from precast.autograd import aot_function
from precast.compilers import nop

OPS: dict[str, OpInfo] = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
    for op in op_db
    if op.supported_dtypes("cpu") & {torch.float32, torch.float64} and not op.name.startswith("jiterator")
}
GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("op_gaps.toml").read_text(encoding="utf-8"))
"""What is not like eager, and why. May only shrink: an entry that works fails its test."""

# Torch's random samples set this seed inside the call, which is Python's doing and in no graph.
_SEED = 42
# Other arguments (functions, modules, options) are bound to the function before it is compiled.
_INPUT_TYPES = (torch.Tensor, int, float, complex, str, type(None), tuple, list, dict, slice, type(...))
_INPUT_TYPES += (torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their results are whatever was in memory.
_UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


def _samples(op: OpInfo, dtype: torch.dtype, *, count: int) -> list[SampleInput]:
    """At most ``count`` of the op's sample calls, spread evenly, with gradients where the op has them."""
    if dtype not in op.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=dtype in op.supported_backward_dtypes("cpu")))
    return samples[:: max(1, -(-len(samples) // count))]


def assert_values_and_gradients_like_eager(name: str, dtype: torch.dtype, *, count: int) -> None:
    op = OPS[name]
    for sample in _samples(op, dtype, count=count):
        eager, ours = _eager_run(op, sample), _compiled_run(op, sample)
        if op.name not in _UNINITIALIZED:
            _assert_same(ours.outputs, eager.outputs, bits=True)
            _assert_same(ours.inputs, eager.inputs, bits=True)
            _assert_same(ours.gradients(), eager.gradients(), bits=name not in GAPS["rounding"])


def assert_second_gradients_like_eager(name: str, *, count: int) -> None:
    """Gradients of gradients are eager's, where eager has them."""
    op = OPS[name]
    if not op.supports_gradgrad:
        return
    for sample in _samples(op, torch.float64, count=count):
        try:
            expected = _eager_run(op, sample).second_gradients()
        except (RuntimeError, NotImplementedError):
            continue
        if op.name not in _UNINITIALIZED:
            _assert_same(_compiled_run(op, sample).second_gradients(), expected, bits=name not in GAPS["rounding"])


def _eager_run(op: OpInfo, sample: SampleInput) -> "_Run":
    return _Run(op.get_op(), sample)


def _compiled_run(op: OpInfo, sample: SampleInput) -> "_Run":
    objects = {name: value for name, value in sample.kwargs.items() if not isinstance(value, _INPUT_TYPES)}
    function = partial(op.get_op(), **objects) if objects else op.get_op()
    kwargs = {name: value for name, value in sample.kwargs.items() if name not in objects}
    plain = SampleInput(sample.input, args=sample.args, kwargs=kwargs)
    plain.output_process_fn_grad = sample.output_process_fn_grad
    return _Run(aot_function(function, nop), plain)


class _Run:
    """One run on copies of a sample."""

    def __init__(self, function: Callable[..., Any], sample: SampleInput) -> None:
        call = (sample.input, *sample.args), sample.kwargs
        copies: dict[int, torch.Tensor] = {}

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            return copies.setdefault(id(tensor), _copy_with_memory(tensor))

        args, kwargs = pytree.tree_map_only(torch.Tensor, copy, call)
        torch.manual_seed(_SEED)
        self._result = function(*args, **kwargs)
        self._process = sample.output_process_fn_grad
        self.inputs = list(copies.values())
        self.outputs = [out for out in pytree.tree_leaves(self._result) if isinstance(out, torch.Tensor)]

    def gradients(self, *, create_graph: bool = False) -> list[torch.Tensor | None]:
        processed = [t for t in pytree.tree_leaves(self._process(self._result)) if isinstance(t, torch.Tensor)]
        return _gradients(processed, self.inputs, create_graph=create_graph)

    def second_gradients(self) -> list[torch.Tensor]:
        first = [gradient for gradient in self.gradients(create_graph=True) if gradient is not None]
        found = _gradients(first, self.inputs, create_graph=False)
        wanted = [value for value in self.inputs if value.requires_grad]
        # Where a gradient does not depend on an input, eager may say None or zero.
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True)]


def _gradients(
    values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, create_graph: bool
) -> list[torch.Tensor | None]:
    wanted = [value for value in inputs if value.requires_grad]
    sources = [value for value in values if value.requires_grad]
    if not sources or not wanted:
        return [None] * len(wanted)
    cotangents = list(_cotangents(sources))
    return list(
        torch.autograd.grad(
            sources, wanted, cotangents, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
    )


def _cotangents(values: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    for value in values:
        # The same numbers in every type, so that gradients can be compared with those in double precision.
        yield (torch.randint(1, 256, value.shape, generator=generator) / 256).to(value.dtype)


def _copy_with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at the same place of a memory of the same size: some samples reach beyond what the tensor shows."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    memory = tensor.untyped_storage().clone()
    with torch.no_grad():
        copy = torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)


def _assert_same(ours: Sequence[torch.Tensor | None], eager: Sequence[torch.Tensor | None], *, bits: bool) -> None:
    assert len(ours) == len(eager)
    for our, their in zip(ours, eager, strict=True):
        assert (our is None) == (their is None), "one side has no gradient"
        if our is not None and their is not None:
            assert our.requires_grad == their.requires_grad, "one side requires no gradient"
            torch.testing.assert_close(our, their, equal_nan=True, **({"rtol": 0.0, "atol": 0.0} if bits else {}))
