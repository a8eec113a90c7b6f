"""The guard key of a call: everything about it that tracing depends on. Variants are looked up by it.

Also keeps the modes around a call (autocast, train/eval), for rerunning its program later.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._device import DeviceContext

from precast.graph.opened_objects import is_wrapper
from precast.trace.capture.module_state import root_modules

if TYPE_CHECKING:
    from precast.trace.record import FlatFunction

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# Used in every call: attribute lookups would be a visible part of a small call's cost.
_is_any_autocast_enabled, _get_default_dtype = torch._C._is_any_autocast_enabled, torch.get_default_dtype
_facts_on_cpu = attrgetter("dtype", "shape", "requires_grad", "layout", "is_cpu")
_facts_anywhere = attrgetter("dtype", "shape", "requires_grad", "layout", "device")
_stride, _is_neg = torch.Tensor.stride, torch.Tensor.is_neg
_is_deterministic = torch._C._get_deterministic_algorithms
_count_dispatch_modes, _count_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_function_mode = torch._C._get_function_stack_at
_is_grad_enabled, _is_inference_mode_enabled = torch.is_grad_enabled, torch.is_inference_mode_enabled


def ambient_key() -> tuple[Any, ...]:
    """The ambient modes of a call that change what a program computes."""
    modes = (_is_grad_enabled(), _is_inference_mode_enabled(), _get_default_dtype(), _is_deterministic())
    if not _is_any_autocast_enabled():
        return modes
    autocast = tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )
    return (*modes, autocast)


def are_modes_watching() -> bool:
    """Whether a mode is active that sees each operation, such as a counter of operations; not one for a device."""
    if _count_dispatch_modes():
        return True
    return any(not isinstance(_function_mode(i), DeviceContext) for i in range(_count_function_modes()))


def static_key(values: Sequence[Any]) -> tuple[Any, ...]:
    """The key of the inputs, sizes included.

    Plain tensors are strided, and neither lazily conjugated nor lazily negated.
    """
    strided = torch.strided
    return tuple(
        [
            (value.shape, value.dtype, value.requires_grad, value.stride(), value.device, type(value))
            if type(value) in _PLAIN_TYPES and value.layout is strided and not (value.is_neg() or value.is_conj())
            else _other_key(value)
            for value in values
        ]
    )


def is_resized(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two entries of static keys are of plain tensors that differ only in sizes and strides."""
    if len(before) != 6 or len(now) != 6 or len(before[0]) != len(now[0]):
        return False
    (sizes, dtype, grad, _, device, kind), (other_sizes, *others) = before, now
    return bool(sizes != other_sizes) and [dtype, grad, device, kind] == [others[0], others[1], *others[3:]]


class PlainTensors:
    """A call's values, if all are plain tensors, for a cheap comparison with another call's.

    Equivalent to comparing ``static_key``, without building or hashing keys.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._types = list(map(type, values))
        # Creating device objects takes time.
        self._ask = _facts_on_cpu if all(value.is_cpu for value in values) else _facts_anywhere
        self._facts, self._strides = list(map(self._ask, values)), list(map(_stride, values))

    @classmethod
    def of(cls, values: Sequence[Any]) -> "PlainTensors | None":
        """None if there are other values than plain tensors."""
        return cls(values) if all(map(_is_plain, values)) else None

    def are_like(self, values: Sequence[Any]) -> bool:
        return (
            # First: the other checks apply to plain tensors only.
            list(map(type, values)) == self._types
            and list(map(self._ask, values)) == self._facts
            and list(map(_stride, values)) == self._strides
            and not any(map(_is_neg, values))
        )


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN_TYPES and value.layout is torch.strided and not (value.is_neg() or value.is_complex())


def dynamic_key(values: Sequence[Any]) -> tuple[Any, ...]:
    """The key of the inputs without dynamic sizes; sizes 0 and 1 always count."""
    strided = torch.strided
    return tuple(
        [
            (_special_sizes(value), value.dtype, value.requires_grad, memory_order(value), value.device, type(value))
            if type(value) in _PLAIN_TYPES and value.layout is strided and not (value.is_neg() or value.is_conj())
            else _other_key(value)
            for value in values
        ]
    )


def _other_key(value: Any) -> tuple[Any, ...]:
    if is_wrapper(value):
        names, context = value.__tensor_flatten__()
        inner = static_key([getattr(value, name) for name in names])
        return (type(value), repr(context), value.shape, value.stride(), value.requires_grad, inner)
    if isinstance(value, torch.Tensor):
        if is_lazy(value):
            # It has no sizes until its module has run once.
            return (type(value), value.dtype, value.device, value.requires_grad)
        memory = value.stride() if value.layout is torch.strided else value.layout
        lazy = (value.is_conj(), value.is_neg())
        return (value.shape, value.dtype, value.requires_grad, memory, value.device, type(value), lazy)
    if isinstance(value, float):
        # 0.0 == -0.0 and nan != nan.
        return (float, value.hex())
    if isinstance(value, slice):
        # Not hashable before Python 3.12.
        return (slice, *map(_other_key, (value.start, value.stop, value.step)))
    if type(value).__hash__ is None:
        # Not a supported leaf; tracing raises the error.
        return (type(value), id(value))
    # True == 1 == 1.0 in Python, but they are different constants of a program.
    return (type(value), value)


def _special_sizes(tensor: torch.Tensor) -> tuple[int | None, ...]:
    return tuple([size if size < 2 else None for size in tensor.shape])


def memory_order(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """``None`` for contiguous tensors; the order of dimensions for dense ones; the strides themselves for others.

    A tensor that is contiguous only because strides of dimensions of size 1 are ignored has its order of dimensions
    as key: eager distinguishes it, too.
    """
    if tensor.is_contiguous():
        inner_to_outer = range(tensor.dim() - 1, -1, -1)
        if 1 not in tensor.shape or sorted(inner_to_outer, key=tensor.stride) == [*inner_to_outer]:
            return None
    order = sorted(range(tensor.dim()), key=tensor.stride)
    dense = 1
    for dim in order:
        if tensor.stride(dim) != dense and tensor.shape[dim] != 1:
            return ("strides", *tensor.stride())
        dense *= tensor.shape[dim]
    return ("order", *order)


def what_changes(keys: Sequence[tuple[Any, ...]], names: Sequence[str]) -> str:
    """A description of the parts in which the calls' keys differ; ``names`` are those of the inputs."""
    structures_of_calls, modules, ambients, inputs = zip(*keys, strict=True)
    trees, repeated = zip(*map(_without_repeated, structures_of_calls), strict=True)
    modes, layouts, structures = zip(*modules, strict=True)
    parts = [
        name
        for name, values in (
            ("the structure of the arguments", trees),
            ("which arguments are one tensor", repeated),
            ("train/eval modes", modes),
            ("which parameters, buffers and submodules there are", [*zip(layouts, structures, strict=True)]),
            ("grad mode, autocast, default dtype or deterministic algorithms", ambients),
        )
        if len(set(values)) > 1
    ]
    positions: dict[int, dict[Any, None]] = {}
    for key in inputs:
        for position, value in enumerate(key):
            positions.setdefault(position, {})[value] = None
    changing = sorted(positions, key=lambda position: -len(positions[position]))
    for position in [position for position in changing if len(positions[position]) > 1][:3]:
        first, second = list(positions[position])[:2]
        name = names[position] if position < len(names) else f"input {position}"
        parts.append(f"{name} ({_difference(first, second)})")
    return "; ".join(parts) or "sizes that do not satisfy the guards, or which inputs overlap"


def _without_repeated(structure: Any) -> tuple[Any, Any]:
    """The tree of a call's arguments, and which of them are repeated."""
    return (structure[0], structure[1:]) if isinstance(structure, tuple) else (structure, ())


def _value_in_words(key: tuple[Any, ...]) -> str:
    if key[0] is float:
        return repr(float.fromhex(key[1]))
    return "a tensor" if len(key) > 2 else repr(key[-1])


def _difference(left: tuple[Any, ...], right: tuple[Any, ...]) -> str:
    names = ("sizes", "dtype", "requires_grad", "strides", "device", "type")
    if len(left) != len(names) or len(right) != len(names):
        return f"value {_value_in_words(left)}, then {_value_in_words(right)}"
    pairs = [(name, *map(_plain, values)) for name, *values in zip(names, left, right, strict=True)]
    return ", ".join(f"{name} {a}, then {b}" for name, a, b in pairs if a != b)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value


Ambient = Callable[[], AbstractContextManager[None]]
"""Re-enters modes that were recorded earlier."""


def ambient_of(function: Callable[..., Any]) -> Ambient:
    """Record the autocast and train/eval modes that hold now for ``function``, to re-enter them later."""
    autocast = [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")
    ]
    modes = [(module, module.training) for root in root_modules(function).values() for module in root.modules()]

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype, is_enabled in autocast:
                if is_enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled=is_enabled))
            stack.enter_context(_module_modes(modes))
            yield

    return entered


def in_ambient(ambient: Ambient, run: "FlatFunction") -> "FlatFunction":
    """``run``, always under the recorded modes."""

    def run_again(*inputs: Any) -> Any:
        with ambient():
            return run(*inputs)

    return run_again


@contextmanager
def _module_modes(modes: list[tuple[torch.nn.Module, bool]]) -> Iterator[None]:
    before = [module.training for module, _ in modes]
    for module, training in modes:
        module.training = training
    try:
        yield
    finally:
        for (module, _), training in zip(modes, before, strict=True):
            module.training = training
