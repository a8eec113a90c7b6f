"""What users say about sizes: ``Dim``, relations between dims, and ``dynamic_shapes`` in all its spellings.

Before: ``{"x": {0: batch}}`` next to ``(args, kwargs)``. After: one plan per dimension of every tensor leaf.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.sizes import SizeRange


class DimHint(Enum):
    """What to do with a dimension that has no name: decide from the program, or keep the example's size."""

    AUTO = "auto"
    DYNAMIC = "dynamic"
    STATIC = "static"


@dataclass(frozen=True)
class Dim:
    """A size that may differ from call to call. The same ``Dim`` in two places means that the sizes are equal.

    >>> batch = Dim("batch", min=1, max=64)
    >>> 2 * batch + 1
    2*batch + 1
    """

    name: str
    min: int = 0
    max: int | None = None

    AUTO: ClassVar[DimHint] = DimHint.AUTO
    DYNAMIC: ClassVar[DimHint] = DimHint.DYNAMIC
    STATIC: ClassVar[DimHint] = DimHint.STATIC

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InputValueError(
                f"{self.name!r} cannot name a dimension.",
                why="the name appears in generated code and messages",
                fix='Use a Python identifier, such as Dim("batch").',
            )
        if self.min < 0 or (self.max is not None and self.max < self.min):
            raise InputValueError(
                f"Dim {self.name!r} has the empty range {self.min}..{self.max}.",
                why="min must be at least 0 and at most max",
                fix="Give min <= max, or leave them out.",
            )

    @property
    def range(self) -> SizeRange:
        return SizeRange(self.min, self.max)

    def __add__(self, offset: int) -> "DerivedDim":
        return DerivedDim(self, 1, offset)

    def __sub__(self, offset: int) -> "DerivedDim":
        return DerivedDim(self, 1, -offset)

    def __mul__(self, scale: int) -> "DerivedDim":
        return DerivedDim(self, scale, 0)

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DerivedDim:
    """A size that follows from another one: ``scale * root + offset``."""

    root: Dim
    scale: int
    offset: int

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise InputValueError(
                f"{self} cannot be a size.",
                why="the scale of a derived dimension must be positive",
                fix="Name the smaller dimension with Dim and derive the larger one from it.",
            )

    def __add__(self, offset: int) -> "DerivedDim":
        return DerivedDim(self.root, self.scale, self.offset + offset)

    def __sub__(self, offset: int) -> "DerivedDim":
        return self + -offset

    def __mul__(self, scale: int) -> "DerivedDim":
        return DerivedDim(self.root, self.scale * scale, self.offset * scale)

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        scaled = self.root.name if self.scale == 1 else f"{self.scale}*{self.root.name}"
        return scaled if self.offset == 0 else f"{scaled} {'-' if self.offset < 0 else '+'} {abs(self.offset)}"


DimSpec = Dim | DerivedDim | DimHint | int | None
"""What a user may write for one dimension; an int or ``None`` keeps it static."""


@dataclass(frozen=True)
class TensorDims:
    """The spec and the example's size of every dimension of one tensor, and where the tensor is (``args[0]['x']``)."""

    path: str
    dims: tuple[DimSpec, ...]
    sizes: tuple[int, ...]


def normalize_dynamic_shapes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[TensorDims | None]:
    """One entry per leaf of ``(args, kwargs)``, in flattening order: dims for tensors, ``None`` for other leaves."""
    positional, keywords = _by_position(function, args, kwargs, dynamic_shapes)
    leaves = [
        entry
        for i, (arg, spec) in enumerate(zip(args, positional, strict=True))
        for entry in _walk(arg, spec, f"args[{i}]")
    ]
    for name, value in kwargs.items():
        leaves += _walk(value, keywords.get(name), f"kwargs[{name!r}]")
    _check_agreement([leaf for leaf in leaves if leaf is not None])
    return leaves


def _check_agreement(tensors: Sequence[TensorDims]) -> None:
    """A name stands for one range and, in the example, for one size."""
    seen: dict[str, tuple[Dim, int, str]] = {}
    for tensor in tensors:
        for number, (spec, size) in enumerate(zip(tensor.dims, tensor.sizes, strict=True)):
            if not isinstance(spec, (Dim, DerivedDim)):
                continue
            path = f"{tensor.path}.shape[{number}]"
            root, root_size = root_example(spec, size, path)
            first, first_size, first_path = seen.setdefault(root.name, (root, root_size, path))
            if first != root:
                raise InputValueError(
                    f"Two Dims are called {root.name!r}, with the ranges {first.range} and {root.range}.",
                    why="the same name means the same size",
                    fix="Make one Dim and use it in both places, or give them two names.",
                )
            if first_size != root_size:
                raise InputValueError(
                    f"In the example {root.name} is {first_size} at {first_path} and {root_size} at {path}.",
                    why="the same Dim in two places means that the sizes are equal",
                    fix="Give an example whose sizes obey that, or use two Dims.",
                )


def _by_position(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Split the user's spec into one for each positional argument and one for each keyword."""
    if dynamic_shapes is None:
        return [None] * len(args), {}
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
            f"dynamic_shapes is a {type(dynamic_shapes).__name__}.",
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
    for name in [name for name in remaining if isinstance(remaining[name], Mapping) and name == "kwargs"]:
        keywords |= remaining.pop(name)
    if remaining:
        raise InputValueError(
            f"dynamic_shapes names {', '.join(map(repr, remaining))}, which is no argument of this call.",
            why=f"the arguments are {', '.join([*dict.fromkeys(names), *kwargs])}",
            fix="Use these names, or a tuple with one entry per argument.",
        )
    return positional, keywords


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """What the function itself calls its first ``count`` arguments; those that ``*args`` takes share its name."""
    parameters = _parameters(function)
    if parameters is None:
        return [f"arg{i}" for i in range(count)]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return named + [_variadic_name(function) or "arg"] * (count - len(named))


def _variadic_name(function: Callable[..., Any]) -> str | None:
    """What the function calls its ``*args``, if it has any."""
    return next((p.name for p in _parameters(function) or () if p.kind is p.VAR_POSITIONAL), None)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function or of a module's forward; ``None`` for builtins that do not tell."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def named_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names, in order; those that ``*args`` takes as one tuple."""
    names, variadic = positional_names(function, len(args)), _variadic_name(function)
    named = dict(zip(names, args, strict=True))
    if variadic in named:
        named[variadic] = tuple(args[names.index(variadic) :])
    return named | dict(kwargs)


def _walk(value: Any, spec: Any, path: str) -> Iterator[TensorDims | None]:
    children, tree = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if isinstance(value, torch.Tensor):
        yield TensorDims(path, _tensor_dims(value, spec, path), tuple(value.shape))
    elif not tree.is_leaf():
        entries: list[Any] = [key for (key,), _ in children]
        for entry, (_, child), child_spec in zip(entries, children, _child_specs(entries, spec, path), strict=True):
            yield from _walk(child, child_spec, f"{path}{entry}")
    else:
        if spec is not None:
            raise InputValueError(
                f"dynamic_shapes describes {path}, which is {value!r} and no tensor.",
                why="only tensors have sizes",
                fix="Put None there.",
            )
        yield None


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
        dims = tuple(by_dimension.get(dim) for dim in range(tensor.dim()))
    elif isinstance(spec, (tuple, list)) and len(spec) == tensor.dim():
        dims = tuple(spec)
    else:
        raise InputValueError(
            f"dynamic_shapes for {path} is {spec!r}.",
            why=f"a tensor with {tensor.dim()} dimensions needs a dict from dimension to Dim, or one entry for each",
            fix='Write for example {0: Dim("batch")}.',
        )
    for dim, (value, size) in enumerate(zip(dims, tensor.shape, strict=True)):
        _check_dim(value, size, f"{path}.shape[{dim}]")
    return dims


def _check_dim(spec: Any, size: int, path: str) -> None:
    if isinstance(spec, bool) or not isinstance(spec, (Dim, DerivedDim, DimHint, int, type(None))):
        raise InputTypeError(
            f"dynamic_shapes says {spec!r} for {path}.",
            why="a dimension is described by a Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None",
            fix='Write for example Dim("batch").',
        )
    if isinstance(spec, int) and spec != size:
        raise InputValueError(
            f"dynamic_shapes says {spec} for {path}, but the example has {size}.",
            why="a number keeps the dimension static at that size",
            fix="Give an example of that size, or a Dim.",
        )
    root_size = _root_size(spec, size, path)
    if isinstance(spec, (Dim, DerivedDim)):
        root = spec if isinstance(spec, Dim) else spec.root
        if root_size not in root.range:
            raise InputValueError(
                f"The example has size {size} at {path}, outside of {spec!r}.",
                why=f"{root.name} was declared with the range {root.range}",
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
    return (spec if isinstance(spec, Dim) else spec.root), _root_size(spec, size, path)
