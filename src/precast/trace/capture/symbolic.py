"""Symbolic tracing: runs a module's forward on proxies, which record the operations on them.

Before: ``self.second(self.first(x).relu())``, two linear layers
After:  ``linear(x, first.weight, first.bias); relu(); linear(…, second.weight, second.bias)``

Needs neither data nor weights: a module on the meta device is enough. Submodules are always entered, so a graph has
``call_function``, ``call_method`` and ``get_attr`` nodes, and no ``call_module``.

Factory functions are patched in ``torch`` while tracing, so that they are recorded:

Before: ``torch.arange(x.shape[1])`` raises: ``arange`` does not accept a proxy
After:  ``arange = call_function(torch.arange, (getitem,))``

Parameters and buffers are read as proxies; ``torch.nn.Module.__setattr__`` is patched while tracing, so that
assignments to buffers are recorded:

Before: ``self.count = self.count + 1`` adds to the module's own buffer while tracing
After:  ``count = get_attr(count); add = count + 1; copy_ = count.copy_(add)``
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.fx._symbolic_trace import PH
from torch.fx.proxy import TraceError
from torch.utils import _pytree as pytree

from precast.errors import CaptureError, DataDependentError, InputTypeError
from precast.trace.capture.call import as_identifier
from precast.trace.provenance import innermost_users_line, users_line

# Create tensors: always recorded, so that they do not become constants, and a program on the meta device stays there.
_MAKERS = (
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "from_numpy", "full", "linspace", "logspace",
    "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
)  # fmt: skip
# Create no tensor: recorded if an argument is a traced value.
_INQUIRERS = ("finfo", "iinfo")


@contextmanager
def recorded_factories(tracer: fx.Tracer) -> Iterator[None]:
    """While active, factory functions of ``torch`` are recorded as nodes of the graph."""
    originals = {name: getattr(torch, name) for name in (*_MAKERS, *_INQUIRERS)}
    try:
        for name, original in originals.items():
            setattr(torch, name, _recording(original, tracer, always=name in _MAKERS))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _recording(original: Callable[..., Any], tracer: fx.Tracer, *, always: bool) -> Callable[..., Any]:
    @wraps(original, updated=())
    def record(*args: Any, **kwargs: Any) -> Any:
        if always or has_proxy((args, kwargs)):
            return tracer.create_proxy("call_function", original, args, kwargs)
        return original(*args, **kwargs)

    return record


def has_proxy(value: Any) -> bool:
    """Whether ``value`` contains a proxy."""
    return any(isinstance(leaf, fx.Proxy) for leaf in pytree.tree_leaves(value))


class StateProxy(fx.Proxy):
    """A proxy for a tensor of the module, whose sizes are known."""

    def __init__(self, node: fx.Node, tracer: fx.Tracer, tensor: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self._tensor = tensor

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    @property
    def ndim(self) -> int:
        return self._tensor.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self._tensor.numel()


@contextmanager
def recorded_assignments() -> Iterator[None]:
    """While active, the assignment of a proxy to a buffer is recorded as a ``copy_``."""
    original = torch.nn.Module.__setattr__

    def assign(module: torch.nn.Module, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy) and isinstance(module._buffers.get(name), torch.Tensor):
            getattr(module, name).copy_(value)
        else:
            original(module, name, value)

    torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]


_FX_FOLDER = os.path.join(os.path.dirname(fx.__file__), "")
_NN_FOLDER = os.path.join(os.path.dirname(torch.nn.__file__), "")
_CHECKS = ("_check_input_dim", "_verify_batch_size", "_verify_spatial_size")


def symbolic_trace(
    module: torch.nn.Module | Callable[..., Any],
    concrete_args: Mapping[str, Any] | None = None,
    *,
    assume_false: bool = False,
) -> fx.GraphModule:
    """Trace ``module`` symbolically, without example inputs.

    Arguments without a default become placeholders, others keep their default. ``concrete_args`` overrides this by
    name: tensors in it, also in containers, stand for placeholders, everything else is a constant. A Python branch on a
    traced value is an error; with ``assume_false`` the branch is not taken.

    >>> traced = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3, device="meta"), torch.nn.ReLU()))
    >>> [node.op for node in traced.graph.nodes]
    ['placeholder', 'get_attr', 'get_attr', 'call_function', 'call_function', 'output']
    """
    call = _plan(module, dict(concrete_args or {}))
    tracer = _Tracer(call, assume_false=assume_false)
    root = module if isinstance(module, torch.nn.Module) else torch.nn.Module()
    try:
        with recorded_factories(tracer), recorded_assignments():
            graph = tracer.trace(module)
    except (TraceError, _UnknownValueError) as error:
        raise _explained(error) from error
    name = type(module).__name__ if isinstance(module, torch.nn.Module) else getattr(module, "__name__", "function")
    return fx.GraphModule(root, graph, name)


@dataclass(frozen=True)
class _Planned:
    """One call of the module: its leaves, the name of each traced leaf (None for constants), and their tree."""

    leaves: tuple[Any, ...]
    names: tuple[str | None, ...]
    tree: pytree.TreeSpec


def _plan(module: torch.nn.Module | Callable[..., Any], concrete: dict[str, Any]) -> _Planned:
    signature = inspect.signature(module.forward if isinstance(module, torch.nn.Module) else module)
    unknown = [name for name in concrete if not _takes(signature, name)]
    if unknown:
        raise InputTypeError(
            f"concrete_args names {', '.join(unknown)}.",
            why=f"the signature is {signature}",
            fix="Name arguments of the forward.",
        )
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= {key: value for key, value in concrete.items() if key not in signature.parameters}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += concrete.get(name, ())
        else:
            default = PH if parameter.default is parameter.empty else parameter.default
            value = concrete.get(name, default)
            if parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
    return _flattened(signature, args, kwargs)


def _takes(signature: inspect.Signature, name: str) -> bool:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return name in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _flattened(signature: inspect.Signature, args: list[Any], kwargs: dict[str, Any]) -> _Planned:
    with_paths, tree = pytree.tree_flatten_with_path((tuple(args), kwargs))
    positional = [p.name for p in signature.parameters.values() if p.kind < p.VAR_POSITIONAL]
    names = []
    path: Any
    for path, leaf in with_paths:
        kind, top, *rest = path
        head = (
            str(top.key) if kind.idx == 1 else (positional[top.idx] if top.idx < len(positional) else f"arg_{top.idx}")
        )
        is_traced = isinstance(leaf, torch.Tensor) or leaf is PH
        tail = "".join(f"_{getattr(key, 'key', getattr(key, 'idx', getattr(key, 'name', '')))}" for key in rest)
        names.append(as_identifier(f"{head}{tail}") if is_traced else None)
    return _Planned(tuple(leaf for _, leaf in with_paths), tuple(names), tree)


class _UnknownValueError(Exception):
    """The program needs the number or truth value of a proxy."""


class _Tracer(fx.Tracer):
    """A tracer that enters every module.

    Buffers are traced like parameters, so that operations on them are recorded and not executed.
    """

    def __init__(self, call: _Planned, *, assume_false: bool) -> None:
        super().__init__()
        self._call = call
        self._assume_false = assume_false
        self._state_names: dict[int, str] = {}
        self.record_stack_traces = True

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return False

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Placeholders for the tensors of the planned call, constants for its other leaves."""
        leaves = [
            leaf if name is None else self.create_proxy("placeholder", name, (), {})
            for leaf, name in zip(self._call.leaves, self._call.names, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._call.tree)
        return lambda *own: root_fn(*own, **kwargs), [*([self.root] if is_module else []), *args]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if not self._state_names:
            state = (*self.root.named_parameters(), *self.root.named_buffers())
            self._state_names = {id(tensor): name for name, tensor in state}
        name = self._state_names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy(
                "get_attr", name, (), {}, proxy_factory_fn=lambda node: StateProxy(node, self, attr_val)
            )
        return parameter_proxy_cache[name]

    def to_bool(self, obj: fx.Proxy) -> bool:
        if self._assume_false or _is_in_torchs_check():
            return False
        raise DataDependentError(
            "The program branches in Python on a value that is only traced.",
            at=innermost_users_line(),
            why=f"{obj.node.name} has no value while tracing symbolically, so neither branch can be chosen",
            fix="Write torch.where or torch.cond, or call precast.symbolic_trace yourself: with what decides in "
            "concrete_args, or with assume_false=True if the branch is never taken.",
        )

    def iter(self, obj: fx.Proxy) -> Any:
        try:
            return super().iter(obj)
        except TraceError as error:
            raise _UnknownValueError(f"{obj.node.name} cannot be iterated over: its length is unknown") from error


def _is_in_torchs_check() -> bool:
    """Whether the branch is in an input check of torch's own layers, which does nothing but raise."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_FX_FOLDER):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name in _CHECKS and frame.f_code.co_filename.startswith(_NN_FOLDER)


def _explained(error: Exception) -> CaptureError:
    return DataDependentError(
        "The program needs a value that is only traced.",
        at=users_line(error.__traceback__),
        why=str(error).splitlines()[0],
        fix='Pass what decides in concrete_args, or capture by running the program (capture="aten").',
    )
