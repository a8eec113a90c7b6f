"""Flattens and checks a call: its leaves, their tree, and their names in the graph."""

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from precast.errors import CaptureError, InputTypeError, InputValueError
from precast.graph.opened_objects import PLAIN_TYPES, opened
from precast.trace.capture.dynamic_shapes import numbered_names
from precast.trace.capture.module_state import StateTensor

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


@dataclass(frozen=True)
class FlatCall:
    """The arguments of one call as flat leaves.

    ``names`` are identifiers made from the user's argument names; ``paths`` say where each leaf is in the call.
    """

    leaves: tuple[Any, ...]
    tree: pytree.TreeSpec
    names: tuple[str, ...]
    paths: tuple[str, ...]


def flatten_call(function: Callable[..., Any], args: Any, kwargs: Any, *, checks_leaves: bool = True) -> FlatCall:
    """Check the call and flatten it."""
    _check_callable(function)
    args, kwargs = _check_arguments(function, args, kwargs)
    with_paths, tree = pytree.tree_flatten_with_path(opened((tuple(args), dict(kwargs))))
    names, paths = [], []
    first = numbered_names(function, len(args))
    path: Any
    for path, leaf in with_paths:
        names.append(_leaf_name(path, first))
        paths.append(f"{first[path[1].idx] if path[0].idx == 0 else path[1].key}{pytree.keystr(path[2:])}")
        if checks_leaves:
            _check_leaf(leaf, paths[-1])
    return FlatCall(tuple(leaf for _, leaf in with_paths), tree, tuple(names), tuple(paths))


def _leaf_name(path: Sequence[Any], positional: Sequence[str]) -> str:
    kind, top, *rest = path
    head = positional[top.idx] if kind.idx == 0 else str(top.key)
    tail = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in rest]
    return as_identifier("_".join([head, *tail]).lower())


def as_identifier(text: str) -> str:
    """``text`` as an identifier that graphs accept: ASCII, no leading digit, not a Python keyword."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    if keyword.iskeyword(name):
        return f"{name}_"
    return name if name and not name[0].isdigit() else f"_{name}"


def _check_callable(function: Any) -> None:
    if isinstance(function, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise InputValueError(
            "Exporting a ScriptModule is not supported: TorchScript modules and functions cannot be captured.",
            why="TorchScript is compiled already: its Python code is gone",
            fix="Pass the nn.Module or function that it was made from.",
        )
    if not callable(function):
        raise InputTypeError(
            f"{function!r} cannot be called.",
            why="capturing means running a function or module once",
            fix="Pass an nn.Module or a function, and its example inputs as a tuple.",
        )


def _check_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if not isinstance(args, (tuple, list)):
        raise InputTypeError(
            f"The example arguments are a {type(args).__name__}.",
            why="they are given as a tuple with one entry per positional argument",
            fix="Write (x,) with a comma for a single argument.",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputTypeError(
            f"The example keyword arguments are a {type(kwargs).__name__}.",
            why="they are given as a dict from name to value",
            fix='Write {"mask": mask}.',
        )
    kwargs = kwargs or {}
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return args, kwargs
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        if _takes_anything(target):
            # A wrapper that adds arguments of its own, but has the signature of the function that it wraps.
            return args, kwargs
        raise InputTypeError(
            "The example arguments do not fit the function's signature.",
            why=f"{error}; the signature is {signature}",
            fix="Give every required argument, and no other.",
        ) from None
    return args, kwargs


def _takes_anything(function: Callable[..., Any]) -> bool:
    kinds = {each.kind for each in inspect.signature(function, follow_wrapped=False).parameters.values()}
    return kinds >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _check_leaf(leaf: Any, path: str) -> None:
    if not isinstance(leaf, (torch.Tensor, *PLAIN_TYPES)):
        raise InputTypeError(
            f"{path} is of type {type(leaf).__name__}, which cannot be an input.",
            why="inputs are tensors, plain Python values, and containers of them",
            fix=_fix_for(leaf),
        )


def _fix_for(leaf: Any) -> str:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return "Convert it: torch.as_tensor(array)."
    return (
        "Register the type as a container (precast.register_dataclass, torch.utils._pytree.register_pytree_node), "
        "or close over the object instead of passing it."
    )


def shape_env_of(call: FlatCall, state: Sequence[StateTensor]) -> ShapeEnv | None:
    """The shape environment of the fake tensors among the inputs and the state; None if there are none."""
    tensors = [*call.leaves, *(item.tensor for item in state)]
    modes = {id(tensor.fake_mode): tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)}
    if len(modes) > 1:
        raise InputValueError(
            "The inputs are fake tensors of different modes.",
            why="sizes of one mode are not comparable with those of another",
            fix="Make all of them under one FakeTensorMode.",
        )
    return next((mode.shape_env for mode in modes.values()), None)


def check_tensors(call: FlatCall, state: Sequence[StateTensor], *, takes_fakes: bool = False) -> None:
    """Refuse uninitialized parameters, tensors on more than one device (meta included), and, unless ``takes_fakes``,
    fake tensors.
    """
    placed = [
        (path, leaf) for path, leaf in zip(call.paths, call.leaves, strict=True) if isinstance(leaf, torch.Tensor)
    ]
    placed += [(s.target, s.tensor) for s in state]
    for path, tensor in placed:
        if torch.nn.parameter.is_lazy(tensor):
            raise InputValueError(
                f"{path} has no shape yet.",
                why="it belongs to a lazy module, which takes its shapes from the first call",
                fix="Call the module once before capturing it.",
            )
        if is_fake(tensor) and not takes_fakes:
            raise InputValueError(
                f"{path} is a fake tensor.",
                why="capturing makes its own fake tensors, over its own size symbols",
                fix="Pass real tensors, or tensors on the meta device throughout.",
            )
    if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in placed):
        _refuse_compressed(placed)
    # Eager, too, allows a CPU scalar beside tensors on another device.
    homes = {str(t.device): path for path, t in placed if t.dim() > 0 or t.device.type != "cpu"}
    if len(homes) > 1:
        places = ", ".join(f"{path} on {device}" for device, path in homes.items())
        raise InputValueError(
            "The tensors are on more than one device.",
            why=places,
            fix="Move the module and its inputs to one device (for a meta module, make meta inputs too).",
        )


def _refuse_compressed(placed: Sequence[tuple[str, torch.Tensor]]) -> None:
    for path, tensor in placed:
        if tensor.layout in _COMPRESSED:
            raise CaptureError(
                f"{path} is sparse in the layout {tensor.layout}, and gradients are asked for.",
                why="torch cannot record gradients of fake tensors in the CSR, CSC, BSR and BSC layouts",
                fix="Call under no_grad, or pass tensor.to_sparse_coo().",
            )
