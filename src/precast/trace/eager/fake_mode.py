"""Torch's fake tensors, with fewer guards on sizes, and corrected to behave as in eager.

Before: ``pad`` and ``conv2d`` on ``f32[s0, 3, 8, 8]`` add the guards ``s0 == 2`` and ``s0 < 16``.
After:  they add none; the sizes of their results are still expressions over ``s0``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils import _pytree as pytree

from precast._torch_compat import arguments_for_shape, python_kernels, slice_by_data
from precast.errors import CaptureError
from precast.trace.eager.empty_operands import empty_answer
from precast.trace.eager.fake_rules import CertainAnswers, SparseTensors, fake_lstsq, with_masks_of_eager
from precast.trace.eager.layouts import with_layout_of_eager
from precast.trace.eager.operand_types import checking_dispatch
from precast.trace.eager.resampling import whole_resampling
from precast.trace.eager.symbolic_numbers import quotients_of_kernels
from precast.trace.storages import refuse_operators_on_storages

_aten = torch.ops.aten
# Torch lists a shape function for these but does not install it, and their kernels specialize sizes.
_BY_DECOMPOSITION = {_aten.constant_pad_nd.default, _aten.rot90.default, _aten.as_strided_scatter.default}
_CONVOLUTIONS = {_aten.convolution.default, _aten.convolution_backward.default}
_COMPRESSIONS = {
    _aten._to_sparse_csr.default,
    _aten._to_sparse_csc.default,
    _aten._to_sparse_bsr.default,
    _aten._to_sparse_bsc.default,
}


def make_fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """A fake mode whose sizes stay symbolic if the op does not depend on them.

    It is an instance of torch's own class, since control-flow operators look up their rule by the exact class of a
    mode.
    """
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    dispatch = partial(_dispatch, mode, mode.dispatch, CertainAnswers(), SparseTensors())
    mode.dispatch = checking_dispatch(dispatch, mode)  # type: ignore[method-assign]
    return mode


def _dispatch(
    mode: FakeTensorMode,
    original: Callable[..., Any],
    certain: CertainAnswers,
    sparse: SparseTensors,
    func: Any,
    types: Any,
    args: Any = (),
    kwargs: Any = None,
) -> Any:
    if (answer := certain.answer(func, args)) is not None:
        return answer
    refuse_operators_on_storages(func)
    sparse.check(func, args)
    if (nothing := empty_answer(func, args, mode)) is not None:
        return nothing
    if func in _BY_DECOMPOSITION and _has_symbolic_sizes(args) and not _pads_by_data(func, args):
        with mode:
            if func is _aten.constant_pad_nd.default and all(type(each) is int and each <= 0 for each in args[1]):
                # Eager copies the rest in its memory order.
                return _cropped(*args[:2]).clone()
            return decomposition_table[func](*args, **(kwargs or {}))
    if func in _CONVOLUTIONS and _has_symbolic_sizes(args):
        assert mode.shape_env is not None, "symbolic sizes come from a shape environment"
        with _backend_chosen_without_guards(mode.shape_env):
            return original(func, types, args, kwargs)
    if (cut := slice_by_data(func, args, kwargs or {})) is not None:
        return cut
    if func is _aten.linalg_lstsq.default:
        with mode:
            return fake_lstsq(*args, **(kwargs or {}))
    if func in _COMPRESSIONS and args[0].requires_grad:
        raise CaptureError(
            "The program compresses a tensor that requires grad into a sparse one.",
            why="torch cannot record gradients of fake tensors in the CSR, CSC, BSR and BSC layouts",
            fix="Compress under no_grad, or use to_sparse().",
        )
    result = original(func, types, with_masks_of_eager(func, arguments_for_shape(func, args), mode), kwargs)
    if result is NotImplemented:
        # A subclass among the arguments takes precedence.
        return result
    certain.note(func, args, result)
    sparse.note(func, result)
    return with_layout_of_eager(func, args, result, mode)


def _pads_by_data(func: Any, args: Sequence[Any]) -> bool:
    """Whether the sign of a padding is data-dependent, on which the decomposition would branch."""
    is_padding = func is _aten.constant_pad_nd.default
    return is_padding and any(isinstance(each, torch.SymInt) and free_unbacked_symbols(each) for each in args[1])


def _cropped(source: torch.Tensor, pad: Sequence[int]) -> torch.Tensor:
    """The view that remains after padding by numbers that are not positive; the last dimension comes first."""
    for number, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), start=1):
        dim = source.ndim - number
        source = source.narrow(dim, -before, source.shape[dim] + before + after)
    return source


def dispatch_for(inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """For symbolic sizes, use Python kernels of operators where they exist: C++ kernels need concrete numbers."""
    return _kernels_for_symbolic_sizes() if _has_symbolic_sizes(inputs) else nullcontext()


@contextmanager
def _kernels_for_symbolic_sizes() -> Iterator[None]:
    with python_kernels(), whole_resampling(), quotients_of_kernels():
        yield


def _has_symbolic_sizes(args: Any) -> bool:
    leaves = pytree.tree_leaves(args)
    return any(
        leaf._has_symbolic_sizes_strides if isinstance(leaf, torch.Tensor) else isinstance(leaf, torch.SymInt)
        for leaf in leaves
    )


@contextmanager
def _backend_chosen_without_guards(shape_env: ShapeEnv) -> Iterator[None]:
    """While active, choosing a convolution's backend adds no guards: its result does not depend on the choice."""
    choose = torch._C._select_conv_backend

    def choose_quietly(*args: Any, **kwargs: Any) -> Any:
        with shape_env.suppress_guards():
            return choose(*args, **kwargs)

    with patch.object(torch._C, "_select_conv_backend", choose_quietly):
        yield
