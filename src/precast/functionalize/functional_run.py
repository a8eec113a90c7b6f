"""Runs a flat function on functional tensors, so that what is recorded below them has no mutation left.

Before: ``f(x): y = x.view(-1); y.add_(1); return y``
After:  ``f(x): y = view(x); y_1 = add(y, 1); x_1 = view(y_1); y_2 = view(x_1); return [x_1, y_2]``
with ``x_1`` the updated input, and views as ordinary data flow.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from precast.ir.boundary import BoundaryFacts, OutputFacts, Relation
from precast.tracing.subclasses import is_wrapper, map_inner
from precast.tracing.trace import FlatFunction


def to_functional(value: Any) -> Any:
    """Wrap a tensor, or the innermost tensors of a subclass, so that writes to it are recorded as new values."""
    if not isinstance(value, torch.Tensor):
        return value
    if is_wrapper(value):
        return map_inner(value, to_functional)
    return FunctionalTensor.to_functional(value)


def from_functional(value: Any) -> Any:
    """The tensor under the wrapper, with all pending writes applied."""
    if is_wrapper(value):
        return map_inner(value, from_functional)
    if not isinstance(value, FunctionalTensor):
        return value
    value.sync()
    return torch._from_functional_tensor(value.elem)


@contextmanager
def functional_mode(*, pre_dispatch: bool = False, discover_tokens: bool = False) -> Iterator[FunctionalTensorMode]:
    """Under it, ops on functional tensors are recorded in their functional form."""
    above = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
    mode = FunctionalTensorMode(pre_dispatch=pre_dispatch, _allow_token_discovery=discover_tokens)
    with above, mode:
        yield mode


def functionalized(function: FlatFunction, facts: BoundaryFacts, *, pre_dispatch: bool = False) -> FlatFunction:
    """A function that returns the updated inputs, the outputs and the intermediate bases, and mutates nothing."""

    def functional(*inputs: Any) -> list[Any]:
        with functional_mode(pre_dispatch=pre_dispatch):
            wrapped = [to_functional(value) for value in inputs]
            outputs = function(*wrapped)
            updated = [wrapped[i] for i in facts.updated]
            hidden = [_hide_view(output, fact) for output, fact in zip(outputs, facts.outputs, strict=True)]
            bases = intermediate_bases(outputs, facts.outputs)
            return [from_functional(value) for value in (*updated, *hidden, *bases)]

    return functional


def _hide_view(output: Any, facts: OutputFacts) -> Any:
    """An output that is the only alias of an intermediate is returned as if it had memory of its own.

    Otherwise the autograd engine would forbid callers to write into it.
    """
    return torch.ops.aten._unsafe_view(output, output.shape) if facts.hides_view else output


def intermediate_bases(outputs: Sequence[Any], facts: Sequence[OutputFacts]) -> list[torch.Tensor]:
    """The tensors that outputs are views of and that are no outputs themselves, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for output, fact in zip(outputs, facts, strict=True):
        if fact.relation is Relation.VIEW_OF_BASE:
            assert fact.base is not None, "a view of a base names it"
            found.setdefault(fact.base, output._base)
    return [found[number] for number in sorted(found)]
