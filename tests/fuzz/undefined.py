"""Programs of which eager's own kernels make nonsense: nobody can be judged by them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.judge import run
from tests.fuzz.observe import observe_inference, observe_recorded
from tests.fuzz.programs import Program

_SUSPECTS = (
    "F.max_pool", "F.batch_norm", "F.instance_norm", "F.group_norm", "F.pixel_", "torch.lstm", ".topk", ".sort",
)  # fmt: skip
_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")


class UndefinedError(Exception):
    """A kernel was about to be called that makes nonsense of what it is given."""


class _Watch(TorchDispatchMode):
    """Looks at what kernels are given and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.is_defined = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in _NORMS:
            self.is_defined &= not _is_ambiguous(args[0])
        if name == "native_group_norm":
            self.is_defined &= not _is_without_gradient(*args[:2])
        if name == "mkldnn_rnn_layer":
            self.is_defined &= _do_weights_fit(args)
        if name in ("pixel_shuffle", "pixel_unshuffle"):
            # Of no elements the kernel returns a copy; its own rule for shapes says otherwise.
            self.is_defined &= bool(args[0].numel())
        if name == "topk":
            self.is_defined &= not _has_ties(*args)
        if name == "sort" and not (kwargs or {}).get("stable"):
            self.is_defined &= not _has_ties(args[0], args[0].numel(), *args[1:2])
        if not self.is_defined:
            raise UndefinedError(name)
        result = func(*args, **(kwargs or {}))
        if name.startswith("max_pool"):
            # The gradient of a maximum over padding alone is written outside of the input.
            values = result[0] if isinstance(result, tuple) else result
            self.is_defined &= not bool(values.isneginf().any())
        return result


def _is_channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.ndim in formats and tensor.is_contiguous(memory_format=formats[tensor.ndim])


def _is_ambiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is channels last only because of sizes of 1: gradients of batch norms mix up their elements."""
    return _is_channels_last(tensor) and not tensor.is_contiguous() and 1 in tensor.shape[1:]


def _is_without_gradient(source: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Whether the weights of a group norm alone want gradients: channels last, eager writes those of the input, too."""
    wants = torch.is_grad_enabled() and weight is not None and weight.requires_grad
    return wants and not source.requires_grad and _is_channels_last(source)


def _do_weights_fit(args: Sequence[Any]) -> bool:
    """Whether weights, biases and cells have the sizes that the state asks for: the library reads as if they had."""
    source, state, cells = args[0], args[5], args[6]
    shapes = [tuple(each.shape) for each in args[1:5]]
    gates = 4 * state.shape[-1]
    return (
        source.shape[1] == state.shape[-2]
        and cells.shape == state.shape
        and shapes
        == [
            (gates, source.shape[-1]),
            (gates, state.shape[-1]),
            (gates,),
            (gates,),
        ]
    )


def _has_ties(source: torch.Tensor, count: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> bool:
    """Whether it is open which of equal elements come first, or at all."""
    if not source.ndim or source.shape[dim] < 2:
        return False
    chosen = source.sort(dim, descending=largest).values.narrow(dim, 0, min(count + 1, source.shape[dim]))
    return bool((chosen.diff(dim=dim) == 0).any())


def is_defined(program: Program, seed: int, given: str) -> bool:
    """Whether eager may be asked; `given` says what inputs are to autograd."""
    if not any(step.function.startswith(_SUSPECTS) for step in program.steps):
        return True
    sizes = [program, *([program.grown()] if program.other_size is not None else [])]
    with _Watch() as watch:
        for each in sizes:
            for observe in (observe_inference, partial(observe_recorded, given=given)):
                if watch.is_defined:
                    run(each, seed, observe)
    return watch.is_defined
