"""Other ways to declare dynamic sizes: by the tensors themselves, and by further example calls.

Before: ``shapes = ShapesCollection(); shapes[x] = {0: batch}``, where ``x`` is somewhere among the arguments
After:  ``shapes.dynamic_shapes(model, ({"ids": x},))`` → ``{"batch": {"ids": {0: batch}}}``
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.graph.opened_objects import opened
from precast.trace.capture.dims import Dim
from precast.trace.capture.dynamic_shapes import named_arguments

Call = tuple[tuple[Any, ...], dict[str, Any]]


class ShapesCollection:
    """Dynamic shapes by tensor, for tensors anywhere in the arguments; tensors without an entry are static.

    >>> x, y = torch.ones(2, 3), torch.ones(2)
    >>> shapes = ShapesCollection()
    >>> shapes[x] = {0: Dim.DYNAMIC}
    >>> shapes.dynamic_shapes(lambda inputs: None, ([x, y],))
    {'inputs': [{0: Dim.DYNAMIC}, None]}
    """

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[torch.Tensor, Any]] = {}

    def __setitem__(self, tensor: torch.Tensor, shape: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise InputTypeError(
                f"A shape was given for a {type(tensor).__name__}.",
                why="values other than tensors cannot be told apart from equal ones",
                fix="Describe it in dynamic_shapes by the argument's name.",
            )
        _, known = self._shapes.setdefault(id(tensor), (tensor, shape))
        if known != shape:
            raise InputValueError(
                f"Two shapes were given for one tensor: {known!r} and {shape!r}.",
                why="a tensor has one",
                fix="Give it once.",
            )

    def __getitem__(self, tensor: torch.Tensor) -> Any:
        return self._shapes.setdefault(id(tensor), (tensor, {}))[1]

    def __len__(self) -> int:
        return len(self._shapes)

    def dynamic_shapes(
        self, m: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return ``dynamic_shapes`` for this call, by argument name."""
        arguments = named_arguments(m, args, kwargs or {})
        found = {id(leaf) for leaf in pytree.tree_leaves(opened(arguments))}
        if not self._shapes.keys() <= found:
            raise InputValueError(
                "A shape was given for a tensor that is not among the arguments.",
                why="tensors are known by identity: a copy is another one",
                fix="Pass the same tensor object, in containers that are registered with torch.utils._pytree.",
            )
        return {name: _mapped(value, self._shape_of) for name, value in arguments.items()}

    def _shape_of(self, leaf: Any) -> Any:
        return self._shapes[id(leaf)][1] if id(leaf) in self._shapes else None


class AdditionalInputs:
    """Further calls that the program must accept; sizes and integers that differ between them become dynamic.

    >>> more = AdditionalInputs()
    >>> more.add((torch.ones(7, 3),))
    >>> more.dynamic_shapes(torch.nn.Linear(3, 1), (torch.ones(2, 3),))
    {'input': (Dim.DYNAMIC, None)}
    """

    def __init__(self) -> None:
        self._examples: list[Call] = []

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Add a call."""
        if type(args) is not tuple or not isinstance(kwargs, (dict, type(None))):
            raise InputTypeError(
                f"The call is given by a {type(args).__name__} and a {type(kwargs).__name__}.",
                why="a call is a tuple of positional arguments and a dict of named ones",
                fix="Write (x,) with a comma for a single argument.",
            )
        self._examples.append((args, dict(kwargs or {})))

    def dynamic_shapes(
        self, m: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return ``dynamic_shapes`` that are dynamic where the calls differ."""
        calls = [(tuple(args), dict(kwargs or {})), *self._examples]
        arguments = [named_arguments(m, *call) for call in calls]
        leaves = [pytree.tree_leaves(opened(each)) for each in arguments]
        if len({len(each) for each in leaves}) > 1:
            raise InputValueError(
                "The additional inputs do not have the structure of the first ones.",
                why=f"the calls hold {', '.join(str(len(each)) for each in leaves)} values",
                fix="Nest all of them alike.",
            )
        described = iter([_difference(values) for values in zip(*leaves, strict=True)])
        return {name: _mapped(value, lambda _: next(described)) for name, value in arguments[0].items()}

    def verify(self, exported: Any) -> None:
        """Raise an error if the exported program does not accept all of the calls."""
        for args, kwargs in self._examples:
            exported.call_convention.normalized(args, kwargs)


def _difference(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(isinstance(value, torch.Tensor) and value.dim() == first.dim() for value in values):
        sizes = zip(*(value.shape for value in values), strict=True)
        return tuple(Dim.DYNAMIC if len(set(each)) > 1 else None for each in sizes)
    if len({type(value) for value in values}) == 1 and not isinstance(first, torch.Tensor):
        if all(value == first for value in values):
            return None
        if type(first) is int:
            return Dim.DYNAMIC
    raise InputValueError(
        f"The additional inputs differ where nothing can be free; they cannot be marked as dynamic: "
        f"({', '.join(map(_brief, values))}).",
        why="only sizes of tensors of one rank, and whole numbers, can be free",
        fix="Export a program for each kind of input.",
    )


def _brief(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _mapped(value: Any, describe: Callable[[Any], Any]) -> Any:
    """``dynamic_shapes`` for ``value``: dicts by key, other containers by position."""
    children, tree = pytree.tree_flatten_with_path(opened(value), is_leaf=lambda node: node is not value)
    if tree.is_leaf():
        return describe(value)
    mapped = [_mapped(child, describe) for _, child in children]
    if isinstance(value, Mapping):
        return dict(zip(_keys(path for path, _ in children), mapped, strict=True))
    return mapped


def _keys(paths: Iterator[Any]) -> Iterator[Any]:
    return (path[0].key for path in paths)
