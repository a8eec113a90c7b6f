"""Normalizes ``dynamic_shapes`` in all its spellings: what users declare about the sizes and numbers of a call.

Before: ``{"x": {0: batch}}`` next to ``(args, kwargs)``. After: one spec per dimension of every tensor, and per number.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.opened_objects import Opened, opened
from precast.trace.capture.dims import DerivedDim, Dim, DimHint, DimSpec, as_dim_spec, root_of


@dataclass(frozen=True)
class TensorDims:
    """The spec and the example's size of every dimension of one tensor, and where the tensor is (``args[0]['x']``)."""

    path: str
    dims: tuple[DimSpec, ...]
    sizes: tuple[int, ...]

    def described(self) -> Iterator[tuple[str, DimSpec, int]]:
        """For each size: its path, its spec, and the example's size."""
        for number, (spec, size) in enumerate(zip(self.dims, self.sizes, strict=True)):
            yield f"{self.path}.shape[{number}]", spec, size


@dataclass(frozen=True)
class NumberDim:
    """The spec of an integer argument, its path, and the example's value."""

    path: str
    spec: DimSpec
    value: int

    def described(self) -> Iterator[tuple[str, DimSpec, int]]:
        yield self.path, self.spec, self.value


LeafDims = TensorDims | NumberDim | None
"""The spec of one leaf of a call; ``None`` for leaves that cannot be dynamic."""


@dataclass(frozen=True)
class Frozen:
    """``dynamic_shapes`` in which some sizes that are 0 or 1 in the example are static."""

    declared: Any
    freezes: Callable[[DimSpec], bool]

    def applied(self, leaf: LeafDims) -> LeafDims:
        if not isinstance(leaf, TensorDims):
            return leaf
        pairs = zip(leaf.dims, leaf.sizes, strict=True)
        return replace(
            leaf, dims=tuple(None if size in (0, 1) and self.freezes(spec) else spec for spec, size in pairs)
        )


def normalize_dynamic_shapes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[LeafDims]:
    """One entry per leaf of ``(args, kwargs)``, in flattening order.

    ``dynamic_shapes`` may also be an object that describes a call, such as a ``ShapesCollection``. An object among the
    arguments is described by its attributes, or by a list with one entry for each tensor in it.
    """
    if isinstance(dynamic_shapes, Frozen):
        return list(
            map(dynamic_shapes.applied, normalize_dynamic_shapes(function, args, kwargs, dynamic_shapes.declared))
        )
    if callable(described := getattr(dynamic_shapes, "dynamic_shapes", None)):
        dynamic_shapes = described(function, tuple(args), dict(kwargs))
    args, kwargs = opened(tuple(args)), opened(dict(kwargs))
    positional, keywords = _by_position(function, args, kwargs, dynamic_shapes)
    leaves = [
        entry
        for name, arg, spec in zip(numbered_names(function, len(args)), args, positional, strict=True)
        for entry in _walk(arg, spec, name)
    ]
    for name, value in kwargs.items():
        leaves += _walk(value, keywords.get(name), name)
    _check_agreement([leaf for leaf in leaves if leaf is not None])
    return leaves


def _check_agreement(leaves: Sequence[TensorDims | NumberDim]) -> None:
    """Check that a name stands for one range and, in the example, for one size."""
    seen: dict[str, tuple[Dim | DimHint, int, str]] = {}
    for path, spec, size in (each for leaf in leaves for each in leaf.described()):
        if (named := _named(spec, size, path)) is None:
            continue
        name, root, root_size = named
        first, first_size, first_path = seen.setdefault(name, (root, root_size, path))
        if first != root:
            raise InputValueError(
                f"Two Dims are called {name!r}, with the ranges {first.range} and {root.range}.",
                why="the same name means the same size",
                fix="Make one Dim and use it in both places, or give them two names.",
            )
        if first_size != root_size:
            raise InputValueError(
                f"In the example {name} is {first_size} at {first_path} and {root_size} at {path}.",
                why="the same Dim in two places means that the sizes are equal",
                fix="Give an example whose sizes obey that, or use two Dims.",
            )


def _named(spec: DimSpec, size: int, path: str) -> tuple[str, Dim | DimHint, int] | None:
    if isinstance(spec, DimHint):
        return None if spec.name is None else (spec.name, spec, size)
    if isinstance(spec, (Dim, DerivedDim)):
        root, root_size = root_example(spec, size, path)
        return root.name, root, root_size
    return None


def _by_position(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Split the user's spec into one for each positional argument and one for each keyword."""
    if dynamic_shapes is None:
        return [None] * len(args), {}
    if isinstance(dynamic_shapes, (tuple, list)) and (by_name := _by_name(function, args, kwargs, dynamic_shapes)):
        dynamic_shapes = by_name
    if isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(args) + len(kwargs):
            raise InputValueError(
                f"dynamic_shapes has {len(dynamic_shapes)} entries for {len(args) + len(kwargs)} arguments.",
                why="given as a sequence, it must have one entry per argument, in order",
                fix="Add the missing entries (None keeps an argument static), or use a dict by argument name.",
            )
        return list(dynamic_shapes[: len(args)]), dict(zip(kwargs, dynamic_shapes[len(args) :], strict=True))
    if not isinstance(dynamic_shapes, Mapping):
        raise InputTypeError(
            f"dynamic_shapes is of type {type(dynamic_shapes).__name__}.",
            why="it describes arguments by name or by position",
            fix='Pass a dict such as {"x": {0: Dim("batch")}}, or a tuple with one entry per argument.',
        )
    names = positional_names(function, len(args))
    remaining = dict(dynamic_shapes)
    positional: list[Any] = []
    variadic = _variadic_name(function)
    for name in dict.fromkeys(names):
        spec = remaining.pop(name, None)
        # The elements of *args are described together, under its name.
        positional += list(spec or [None] * names.count(name)) if name == variadic else [spec]
    keywords = {name: remaining.pop(name) for name in list(remaining) if name in kwargs}
    if (rest := _variadic_name(function, inspect.Parameter.VAR_KEYWORD)) in remaining:
        keywords |= remaining.pop(rest) or {}
    if remaining:
        raise InputValueError(
            f"dynamic_shapes names {', '.join(map(repr, remaining))}, which is not an argument of this call.",
            why=f"the arguments are {', '.join([*dict.fromkeys(names), *kwargs])}",
            fix="Use these names, or a tuple with one entry per argument.",
        )
    return positional, keywords


def _by_name(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Any]
) -> dict[str, Any] | None:
    """The entries by the function's parameter names, if there is one entry for each parameter that the call binds."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        given = inspect.signature(target).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    described = dict(zip(given, shapes, strict=False))
    rest = _variadic_name(function) or ""
    # If *args takes one argument, the entry may describe it directly, or be a sequence of one description.
    is_one = rest in described and len(given[rest]) == 1 and described[rest] is not None
    is_flat = is_one and not _is_one_description(described[rest])
    return described if len(given) == len(shapes) and not is_flat else None


def _is_one_description(spec: Any) -> bool:
    is_sequence = isinstance(spec, (tuple, list)) and len(spec) == 1
    return is_sequence and isinstance(spec[0], (tuple, list, Mapping, type(None)))


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """The function's own names for its first ``count`` arguments; those that ``*args`` takes share its name."""
    parameters = _parameters(function)
    if parameters is None:
        return [f"arg{i}" for i in range(count)]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return named + [_variadic_name(function) or "arg"] * (count - len(named))


def numbered_names(function: Callable[..., Any], count: int) -> list[str]:
    """Unique names for the first ``count`` arguments: those that ``*args`` takes are numbered from 0."""
    names, variadic = positional_names(function, count), _variadic_name(function)
    if variadic not in names and len(set(names)) == len(names):
        return names
    return [f"{name}_{i - names.index(name)}" if i >= names.index(names[-1]) else name for i, name in enumerate(names)]


def _variadic_name(function: Callable[..., Any], kind: Any = inspect.Parameter.VAR_POSITIONAL) -> str | None:
    """The function's name for its ``*args`` (or ``**kwargs``), if it has them."""
    return next((p.name for p in _parameters(function) or () if p.kind is kind), None)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function or of a module's forward; ``None`` for builtins without a signature."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def named_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, in order; those that ``*args`` takes as one tuple."""
    names, variadic = positional_names(function, len(args)), _variadic_name(function)
    named = dict(zip(names, args, strict=True))
    if variadic in named:
        named[variadic] = tuple(args[names.index(variadic) :])
    return named | dict(kwargs)


def _walk(value: Any, spec: Any, path: str) -> Iterator[LeafDims]:
    children, tree = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if isinstance(value, torch.Tensor):
        yield TensorDims(path, _tensor_dims(value, spec, path), tuple(value.shape))
    elif isinstance(value, Opened) and isinstance(spec, (tuple, list)):
        yield from _walk_object(value, spec, path)
    elif not tree.is_leaf():
        entries: list[Any] = [key for (key,), _ in children]
        for entry, (_, child), child_spec in zip(entries, children, _child_specs(entries, spec, path), strict=True):
            yield from _walk(child, child_spec, f"{path}{entry}")
    elif isinstance(value, int) and not isinstance(value, bool):
        spec = as_dim_spec(spec, path)
        _check_dim(spec, value, path)
        yield NumberDim(path, spec, value)
    else:
        if spec is not None and not (isinstance(spec, DimHint) and spec.is_static):
            raise InputValueError(
                f"dynamic_shapes describes {path}, which is {value!r} and neither a tensor nor a whole number.",
                why="only tensors have sizes, and only whole numbers can be free",
                fix="Put None there.",
            )
        yield None


def _walk_object(value: Opened, specs: Sequence[Any], path: str) -> Iterator[LeafDims]:
    leaves, _ = pytree.tree_flatten_with_path(value)
    tensors = [f"{path}{pytree.keystr(place)}" for place, leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(specs) != len(tensors):
        raise InputValueError(
            f"dynamic_shapes for {path} has {len(specs)} entries for {len(tensors)} tensors.",
            why=f"a list describes the tensors of an object in order: {', '.join(tensors)}",
            fix="Give one entry for each, or describe the object by its attributes.",
        )
    remaining = iter(specs)
    for place, leaf in leaves:
        spec = next(remaining) if isinstance(leaf, torch.Tensor) else None
        yield from _walk(leaf, spec, f"{path}{pytree.keystr(place)}")


def _child_specs(entries: Sequence[Any], spec: Any, path: str) -> list[Any]:
    keys = [getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", None))) for entry in entries]
    if spec is None:
        return [None] * len(keys)
    if isinstance(spec, Mapping) and set(spec) <= set(keys):
        return [spec.get(key) for key in keys]
    if isinstance(spec, (tuple, list)) and len(spec) == len(keys):
        return list(spec)
    raise InputValueError(
        f"dynamic_shapes for {path} does not have the structure of the argument.",
        why=f"the argument holds {keys}, the entry is {spec!r}",
        fix="Nest dynamic_shapes exactly as the argument is nested; None keeps a part static.",
    )


def _tensor_dims(tensor: torch.Tensor, spec: Any, path: str) -> tuple[DimSpec, ...]:
    if spec is None:
        return (None,) * tensor.dim()
    if isinstance(spec, Mapping):
        outside = [dim for dim in spec if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim()]
        if outside:
            raise InputValueError(
                f"dynamic_shapes for {path} names dimension {outside[0]!r}.",
                why=f"the tensor has {tensor.dim()} dimensions",
                fix="Use dimension numbers of the tensor.",
            )
        by_dimension = {dim % tensor.dim(): value for dim, value in spec.items()}
        written = [by_dimension.get(dim) for dim in range(tensor.dim())]
    elif isinstance(spec, (tuple, list)) and len(spec) == tensor.dim():
        written = list(spec)
    else:
        raise InputValueError(
            f"dynamic_shapes for {path} is {spec!r}.",
            why=f"a tensor with {tensor.dim()} dimensions needs a dict from dimension to Dim, or one entry for each",
            fix='Write for example {0: Dim("batch")}.',
        )
    dims = tuple(as_dim_spec(each, f"{path}.shape[{dim}]") for dim, each in enumerate(written))
    for dim, (value, size) in enumerate(zip(dims, tensor.shape, strict=True)):
        _check_dim(value, size, f"{path}.shape[{dim}]")
    return dims


def _check_dim(spec: DimSpec, size: int, path: str) -> None:
    if isinstance(spec, int) and spec != size:
        raise InputValueError(
            f"dynamic_shapes says {spec} for {path}, but the example has {size}.",
            why="a number keeps the dimension static at that size",
            fix="Give an example of that size, or a Dim.",
        )
    if (named := _named(spec, size, path)) is not None:
        name, root, root_size = named
    elif isinstance(spec, DimHint) and (spec.min, spec.max) != (None, None):
        name, root, root_size = path, spec, size
    else:
        return
    if root_size not in root.range:
        raise InputValueError(
            f"The example has size {size} at {path}, outside of {spec!r}.",
            why=f"{name} was declared with the range {root.range}",
            fix="Widen the Dim, or give an example inside its range.",
        )


def _root_size(spec: Any, size: int, path: str) -> int:
    """The size of the root dimension that a derived dimension of this size implies."""
    if not isinstance(spec, DerivedDim):
        return size
    root_size, rest = divmod(size - spec.offset, spec.scale)
    if rest:
        raise InputValueError(
            f"The example has size {size} at {path}, which {spec!r} cannot be.",
            why="no whole number solves it",
            fix="Give an example whose sizes obey the relation.",
        )
    return root_size


def root_example(spec: Dim | DerivedDim, size: int, path: str) -> tuple[Dim, int]:
    """The root dimension of a spec, and its size in the example."""
    root = root_of(spec)
    assert root is not None, "dims have roots"
    return root, _root_size(spec, size, path)
