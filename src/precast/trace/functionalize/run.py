"""Runs a flat function on functional tensors, so that the recorded graph has no mutation.

Before: ``f(x): y = x.view(-1); y.add_(1); return y``
After:  ``f(x): y = view(x); y_1 = add(y, 1); x_1 = view(y_1); y_2 = view(x_1); return [x_1, y_2]``
with ``x_1`` the updated input, and views as ordinary data flow.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from precast._torch_compat import SHARING_CHECKS
from precast.graph.opened_objects import is_wrapper
from precast.trace.fake_inputs import map_inner, mark_parameter
from precast.trace.functionalize.draws_in_place import draw_as_eager, rows_of_eager
from precast.trace.functionalize.known_values import Journal
from precast.trace.provenance import innermost_users_line
from precast.trace.record import FlatFunction


def to_functional(value: Any) -> Any:
    """Wrap a tensor, or the inner tensors of a subclass, so that writes to it are recorded as new values."""
    if not isinstance(value, torch.Tensor):
        return value
    if is_wrapper(value):
        return map_inner(value, to_functional)
    if value.requires_grad and value.is_leaf:
        # Torch's wrapper would not be a leaf, but a program that runs a backward accumulates gradients here.
        wrapped = FunctionalTensor.to_functional(value.detach()).requires_grad_()
    else:
        wrapped = FunctionalTensor.to_functional(value)
    mark_parameter(value, wrapped)
    return wrapped


def from_functional(value: Any) -> Any:
    """The tensor under the wrapper, with all pending writes applied."""
    if is_wrapper(value):
        return map_inner(value, from_functional)
    if not isinstance(value, FunctionalTensor):
        return value
    value.sync()
    return torch._from_functional_tensor(value.elem)


def _dispatch_as_eager(mode: FunctionalTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Correct torch's mode where it differs from eager: written tensors could be broadcast, draws be reordered."""
    journal: Journal = mode.__dict__["journal"]
    target = _written_in_place(func, args)
    if target is not None and (draw := draw_as_eager(func, target)) is not None:
        with mode:
            return target.copy_(draw(*args[1:], **(kwargs or {})))
    given = args
    before = None if target is None else target.elem.shape
    with mode:
        args = rows_of_eager(func, args)
    result = FunctionalTensorMode.__torch_dispatch__(mode, func, types, args, kwargs)
    if before is not None and (after := target.elem.shape) != before:
        error = RuntimeError(f"output with shape {list(before)} doesn't match the broadcast shape {list(after)}")
        if (line := innermost_users_line()) is not None:
            error.add_note(f"at {line}")
        raise error
    journal.note(func, given, kwargs, result)
    return result


def _written_in_place(func: Any, args: Sequence[Any]) -> Any:
    """The tensor whose data an operator overwrites, without changing its metadata, if there is one."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return None
    is_written = bool(args) and (alias := func._schema.arguments[0].alias_info) is not None and alias.is_write
    return args[0] if is_written and isinstance(args[0], FunctionalTensor) else None


@contextmanager
def functional_mode(*, pre_dispatch: bool = False, discover_tokens: bool = False) -> Iterator[FunctionalTensorMode]:
    """While active, ops on functional tensors are recorded in their functional form.

    With ``pre_dispatch``, composite ops are not decomposed, unless they mutate or may return an alias.
    """
    above = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
    mode = FunctionalTensorMode(pre_dispatch, export=pre_dispatch, _allow_token_discovery=discover_tokens)
    mode.__dict__["journal"] = Journal()
    # Not a subclass: functionalization of control flow is registered for FunctionalTensorMode itself.
    mode.__torch_dispatch__ = MethodType(_dispatch_as_eager, mode)  # type: ignore[method-assign]
    with above, mode, ExitStack() as stack:
        for rules in SHARING_CHECKS:
            stack.enter_context(patch.object(rules, "_check_alias_and_mutation", _may_share))
        # Its own method computes below autograd, which then has no gradient.
        stack.enter_context(patch.object(FunctionalTensor, "to_dense", torch.Tensor.to_dense))
        yield mode


def _may_share(*_: Any) -> None:
    """Branches may read one memory as several operands: that they write none of it has been checked."""


def functionalized(function: FlatFunction, *, pre_dispatch: bool = False) -> FlatFunction:
    """``function``, run on functional tensors, so that the recorded graph has no mutation."""

    def functional(*inputs: Any) -> list[Any]:
        with functional_mode(pre_dispatch=pre_dispatch) as mode:
            mode._tokens = tokens = _Tokens()
            outputs = function(*[to_functional(value) for value in inputs])
            results = [from_functional(value) for value in outputs]
        if tokens:
            torch.ops.prims._sink_tokens([from_functional(token) for token in tokens.values()])
        return results

    return functional


class _Tokens(dict[Any, torch.Tensor]):
    """The tokens that order side effects, one chain for each kind of effect, started on demand.

    Chains begin and end inside the graph, so that callers never see them.
    """

    def __contains__(self, effect: object) -> bool:
        return True

    def __missing__(self, effect: Any) -> torch.Tensor:
        self[effect] = torch.ops.prims._make_token()
        return self[effect]
