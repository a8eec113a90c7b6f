"""Every operator that torch itself tests, as a model of one call, exported to ONNX and compared in onnxruntime."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from precast.onnx import export

OPS: dict[str, OpInfo] = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu") and not op.name.startswith("jiterator")
}
GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("op_gaps.toml").read_text(encoding="utf-8"))
"""What cannot be exported, or not compared, and why. May only shrink: an entry that works fails its test."""


def samples(op: OpInfo, *, count: int) -> list[SampleInput]:
    """At most ``count`` of the op's sample calls, spread evenly.

    Calls with empty tensors are left out: about those, onnxruntime's kernels do not agree with torch.
    """
    torch.manual_seed(0)
    found = [sample for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False) if not _is_empty(sample)]
    return found[:: max(1, -(-len(found) // count))]


def _is_empty(sample: SampleInput) -> bool:
    leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
    return any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves)


def assert_exports(name: str, *, count: int) -> None:
    """Verification compares with eager on the sample itself."""
    op = OPS[name]
    for sample in samples(op, count=count):
        leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        # What is only in the gap list of numbers must still export.
        is_compared = name not in GAPS["numbers"]
        program = export(_model(op, leaves, tree), tuple(tensor.clone() for tensor in tensors), verify=is_compared)
        assert not program.verification.skipped, program.verification


def _model(op: OpInfo, leaves: list[Any], tree: pytree.TreeSpec) -> Callable[..., list[torch.Tensor]]:
    """The sample as a function of its tensors alone."""

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        remaining = iter(tensors)
        filled = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, tree)
        with patch.object(common_methods_invocations, "wrapper_set_seed", _unseeded):
            results = pytree.tree_leaves(op.get_op()(*args, **kwargs))
        return [_as_real(result) for result in results if isinstance(result, torch.Tensor)]

    return call


def _unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What torch's samples seed, which no exported program can."""
    return function(*args, **kwargs)


def _as_real(result: torch.Tensor) -> torch.Tensor:
    """ONNX models give no complex numbers, but pairs of real ones."""
    return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
