"""Functions that are traced as they behave in eager, where torch's tracing differs.

``quantile`` and ``nanquantile`` check the quantiles, which torch does not do on fake tensors.

Before: ``quantile(x, q)`` is decomposed without a check; a ``q`` of -0.1 returns the minimum.
After:  ``q`` goes through a ``gather`` whose index is out of bounds unless ``q`` is from 0 to 1.

``one_hot`` checks classes, which torch's decomposition for fake tensors does not do.

Before: ``one_hot(x, 3)`` is traced as ``eq(unsqueeze(x), arange(3))``.
After:  it is traced as ``scatter(zeros(…, 3), unsqueeze(x), 1)``.

``linear`` with a bias of another dtype, and an input that eager does not flatten, adds the bias in place.

Before: ``linear(f32[2, 3, 4] that is not contiguous, f32[5, 4], f64[5])`` is traced as ``f64[2, 3, 5]``.
After:  as ``f32[2, 3, 5]``. On fake tensors, torch does not add in place.

Dropout that is turned off returns its input as in eager; torch copies it if sizes are symbolic.

Before: ``dropout(x, 0.5, training=False)`` is traced as ``clone(x)``.
After:  it is ``x`` itself.

Resizing a tensor to its own sizes does nothing, whatever its strides; torch's functionalization changes the strides.

``tensor.data = other``, which calls no operator, becomes one that functionalization sees.

Before: ``x.data = x * 2``
After:  ``x.set_(x * 2)``, unseen by autograd

``module.to(…)`` inside a traced program does nothing if nothing changes; otherwise it is an error.

Before: ``self.router = self.router.to(torch.float32)``, whose parameters have that dtype already
After:  the same module; its parameters, which tracing has stand-ins for, are not replaced
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from precast.errors import CaptureError, StateMutationError
from precast.trace.provenance import innermost_users_line

_QUANTILES = frozenset({torch.quantile, torch.nanquantile, Tensor.quantile, Tensor.nanquantile})


def is_quantile(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is a call whose quantiles are a tensor; Python numbers are checked while tracing."""
    share = _share(args, kwargs) if func in _QUANTILES else None
    return isinstance(share, Tensor) and share.device.type == "cpu" and share.is_floating_point()


def checked_quantile(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call, with an error at run time if a quantile is not from 0 to 1."""
    share = _share(args, kwargs)
    is_none = ~((share >= 0) & (share <= 1))
    nothing = share.new_zeros(1).gather(0, is_none.reshape(-1).long()).reshape(share.shape)
    if "q" in kwargs:
        return func(*args, **{**kwargs, "q": share + nothing})
    return func(args[0], share + nothing, *args[2:], **kwargs)


def _share(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return kwargs["q"] if "q" in kwargs else args[1] if len(args) > 1 else None


def is_one_hot(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is a call with a number of classes; torch reports the errors of other calls."""
    if func is not torch.nn.functional.one_hot:
        return False
    given = dict(zip(("tensor", "num_classes"), args, strict=False)) | dict(kwargs)
    tensor, classes = given.get("tensor"), given.get("num_classes", -1)
    is_count = isinstance(classes, int | torch.SymInt) and classes > 0
    return isinstance(tensor, Tensor) and tensor.dtype is torch.int64 and is_count


def one_hot(tensor: Tensor, num_classes: int) -> Tensor:
    """One at the class, else zero; a class out of bounds is an error."""
    none = tensor.new_zeros((*tensor.shape, num_classes))
    return none.scatter(-1, tensor.unsqueeze(-1), 1)


def is_mixed_linear(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is such a call; torch reports the errors of other calls."""
    if func is not torch.nn.functional.linear or torch.is_autocast_enabled("cpu"):
        return False
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | dict(kwargs)
    source, bias = given.get("input"), given.get("bias")
    if not isinstance(source, Tensor) or not isinstance(bias, Tensor):
        return False
    # The bias last: tensors are lifted in the order in which they are inspected.
    is_flattened = source.ndim < 3 or source.is_contiguous()
    return not is_flattened and bias.dtype is not source.dtype and bias.ndim == 1


def mixed_linear(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What eager computes, in the dtype of the input."""
    return torch.matmul(input, weight.t()).add_(bias)


_NAMES = {
    torch.nn.functional.dropout: ("input", "p", "training", "inplace"),
    torch.dropout: ("input", "p", "train"),
}


def is_idle_dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call returns its first argument; torch reports the errors of other calls."""
    if func not in (torch.nn.functional.dropout, torch.dropout):
        return False
    given = {"p": 0.5} | dict(zip(_NAMES[func], args, strict=False)) | dict(kwargs)
    is_off = given.get("training", given.get("train", True)) is False
    is_plain = bool(args) and isinstance(args[0], Tensor) and isinstance(given["p"], int | float)
    return is_off and is_plain and 0 <= given["p"] <= 1


_RESIZES = (torch.Tensor.resize_, torch.Tensor.resize_as_)


def is_idle_resize(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes nothing; one with a memory format, or that eager refuses, may not."""
    if func not in _RESIZES or kwargs or args[0].requires_grad:
        return False
    tensor, *sizes = args
    if func is torch.Tensor.resize_as_:
        sizes = list(sizes[0].shape)
    elif len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = list(sizes[0])
    return list(tensor.shape) == sizes


_SETTER = torch.Tensor.data.__set__  # type: ignore[attr-defined]


_GETTER = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def is_data_access(func: Any) -> bool:
    return bool(func == _GETTER)


def is_data_assignment(func: Any) -> bool:
    return bool(func == _SETTER)


def assign_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.dtype != value.dtype:
        raise CaptureError(
            f"The program assigns data of type {value.dtype} to a tensor of type {tensor.dtype}.",
            why="a tensor keeps its type in a program that is compiled",
            fix="Make a new tensor: `tensor = other.detach()`.",
        )
    with torch.no_grad():
        tensor.set_(value)  # type: ignore[call-overload]


@contextmanager
def idle_conversions(
    is_real: Callable[[object], bool], substitute: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """While active, conversions of modules with real tensors are allowed on this thread if they change nothing.

    ``substitute`` returns the stand-in of a real tensor; a conversion that returns exactly that has changed nothing.
    """
    thread = threading.get_ident()
    original: Callable[..., Any] = torch.nn.Module._apply

    def apply(module: torch.nn.Module, convert: Callable[[torch.Tensor], Any], recurse: bool = True) -> Any:
        own = [*module._parameters.values(), *module._buffers.values()]
        if threading.get_ident() != thread or not any(is_real(tensor) for tensor in own):
            return original(module, convert, recurse)
        for child in module.children() if recurse else ():
            child._apply(convert)
        for tensor in own:
            if tensor is None:
                continue
            with torch.no_grad():
                converted = convert(tensor)
            if converted is not tensor and converted is not substitute(tensor):
                raise StateMutationError(
                    f"The program converts the parameters or buffers of a {type(module).__qualname__}.",
                    at=innermost_users_line(),
                    why="a captured program has the parameters that its modules had before",
                    fix="Convert the module before it is compiled.",
                )
        return module

    with patch.object(torch.nn.Module, "_apply", apply):
        yield
