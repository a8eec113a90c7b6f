"""Runs a function in eager and compiled, on equal inputs under one seed, and compares all that a caller can see."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd import aot_function

Inputs = tuple[Sequence[torch.Tensor], Sequence[Any]]
"""The leaves whose gradients are compared, and the arguments of the call, which may be views or results of them."""


def leaf(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype, requires_grad=True)


def leaves() -> Inputs:
    """Two leaves that require grad, as they are."""
    inputs = [leaf(3, 3), leaf(3, 3)]
    return inputs, inputs


def results_of_leaves() -> Inputs:
    """Two tensors that require grad and may be written into."""
    inputs = [leaf(3, 3), leaf(3, 3)]
    return inputs, [inputs[0] * 1, inputs[1] * 1]


def constants() -> Inputs:
    """Two tensors that require no grad."""
    inputs = [leaf(3, 3).detach(), leaf(3, 3).detach()]
    return inputs, inputs


def copying(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler whose results lie in memory of their own, and there as in eager: what real compilers do."""

    def copy(value: torch.Tensor) -> torch.Tensor:
        copied = value.clone()
        if copied.stride() == value.stride():
            return copied
        memory = value.detach().untyped_storage().clone()
        return value.detach().new_empty(0).set_(memory, value.storage_offset(), value.size(), value.stride())

    def run(*inputs: Any) -> list[Any]:
        return [copy(value) if isinstance(value, torch.Tensor) else value for value in module(*inputs)]

    return run


def assert_like_eager(
    function: Callable[..., Any],
    make: Callable[[], Inputs] = leaves,
    *,
    dynamic: bool = False,
    compiler: Callable[..., Any] = copying,
    compile: Callable[..., Any] = aot_function,
) -> None:
    """Values and effects on inputs are eager's bit for bit; so are aliasing, gradients and their gradients."""
    compiled = compile(function, compiler, dynamic=dynamic)
    torch.manual_seed(1)
    eager_leaves, eager_args = make()
    torch.manual_seed(1)
    our_leaves, our_args = make()
    torch.manual_seed(2)
    eager = pytree.tree_leaves(function(*eager_args))
    torch.manual_seed(2)
    ours = pytree.tree_leaves(compiled(*our_args))
    assert torch.initial_seed() == 2
    assert_same_values(ours, eager)
    assert_same_values(our_args, eager_args)
    assert aliasing(our_args, ours) == aliasing(eager_args, eager)
    assert_same_gradients((our_leaves, [*our_args, *ours]), (eager_leaves, [*eager_args, *eager]))


def assert_same_values(ours: Sequence[Any], eager: Sequence[Any]) -> None:
    assert len(ours) == len(eager)
    for our, their in zip(ours, eager, strict=True):
        if not isinstance(their, torch.Tensor):
            assert our == their
            continue
        assert our.requires_grad == their.requires_grad
        assert our.is_leaf == their.is_leaf
        assert (our.shape, our.dtype, our.stride()) == (their.shape, their.dtype, their.stride())
        torch.testing.assert_close(our, their, equal_nan=True, rtol=0.0, atol=0.0)


def aliasing(args: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[bool, bool, bool]]:
    """For each pair of tensors among arguments and outputs: the same object, the same memory, a view of an argument."""
    tensors = [value for value in (*args, *outputs) if isinstance(value, torch.Tensor)]
    return [
        (left is right, _memory(left) == _memory(right), left._base is right and any(right is arg for arg in args))
        for left in tensors
        for right in tensors
        if left.numel() and right.numel()
    ]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def assert_same_gradients(ours: Inputs, eager: Inputs) -> None:
    """Gradients of the differentiable values among the second parts for the leaves, and the gradients of those."""
    # Without create_graph the compiled backward runs, with it the compiled gradient of the gradient.
    _assert_same_optional(*(_gradients(*side, create_graph=False) for side in (ours, eager)))
    first = [_gradients(*side, create_graph=True) for side in (ours, eager)]
    _assert_same_optional(first[0], first[1])
    second = [
        _gradients(leaves, [g for g in found if g is not None], create_graph=False)
        for (leaves, _), found in zip((ours, eager), first, strict=True)
    ]
    # Where a gradient does not depend on a leaf, eager may say None or zero.
    _assert_same_optional(_with_zeros(second[0], ours[0]), _with_zeros(second[1], eager[0]))


def _gradients(
    leaves: Sequence[torch.Tensor], values: Sequence[Any], *, create_graph: bool
) -> list[torch.Tensor | None]:
    sources = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not sources or not wanted:
        return [None] * len(wanted)
    # A sine of every value makes its gradient depend on it, so that mixed-up values show.
    loss = sum((source * (position + 1)).sin().abs().sum() for position, source in enumerate(sources))
    return list(torch.autograd.grad(loss, wanted, retain_graph=True, create_graph=create_graph, allow_unused=True))


def _with_zeros(gradients: Sequence[torch.Tensor | None], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, wanted, strict=True)]


def _assert_same_optional(ours: Sequence[torch.Tensor | None], eager: Sequence[torch.Tensor | None]) -> None:
    for our, their in zip(ours, eager, strict=True):
        assert (our is None) == (their is None)
        if our is not None:
            # Gradients that come together on several ways may be added in another order: an element that large terms
            # cancel in is as wrong as these are.
            largest = float(their.detach().nan_to_num(0, 0, 0).abs().amax()) if their.numel() else 0.0
            torch.testing.assert_close(our, their, equal_nan=True, rtol=1e-12, atol=1e-12 * max(largest, 0.1))


class CompilationCount:
    """A compiler that runs graphs as they are, and counts and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(module)
        return module.forward

    def __len__(self) -> int:
        return len(self.graphs)
