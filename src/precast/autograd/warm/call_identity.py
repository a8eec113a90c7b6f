"""Everything about a call that can be seen without tracing it, as one description."""

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.size_names import Indescribable
from precast.autograd.warm.description import Description
from precast.autograd.warm.surroundings import surroundings
from precast.options import as_options, telling

_TENSORS = (torch.Tensor, torch.nn.Parameter)


def describe_call(
    function: Callable[..., Any], values: Sequence[Any], circumstances: tuple[Any, ...], compilers: CompilersInUse
) -> Description:
    """The function, its modules, inputs, compilers and surroundings. Raises Indescribable.

    ``values`` are the tensors of the modules' state and the leaves of the arguments, ``circumstances`` what else
    tells variants of the function apart.
    """
    description = Description()
    for word in surroundings():
        description.word(word)
    _describe_compilers(compilers, description)
    tree, (modes, layout, _), _ = circumstances
    description.word(str(modes))
    description.word(layout)
    _describe_tree(tree, description)
    _describe_values(values, description)
    description.add(torch.Tensor)
    _describe_function(function, description)
    return description


def _describe_tree(tree: Any, description: Description) -> None:
    """The containers of the arguments; a number stands for that many plain tensors."""
    if not isinstance(tree, pytree.TreeSpec):
        description.add(tree)
        return
    description.add(tree.type)
    description.add(tree.context)
    children = tree.children()
    description.word(str(len(children)))
    for child in children:
        _describe_tree(child, description)


def _describe_function(function: Callable[..., Any], description: Description) -> None:
    if not isinstance(function, torch.nn.Module | FunctionType | MethodType | partial):
        raise Indescribable(f"a callable of type {type(function).__name__}")
    description.add(function)


def _describe_compilers(compilers: CompilersInUse, description: Description) -> None:
    for compiler in (compilers.forward, compilers.backward, compilers.inference):
        description.word(f"{type(compiler).__module__} {type(compiler).__qualname__} {compiler.cache_key}")  # type: ignore[attr-defined]
        description.word(telling(as_options(getattr(compiler, "options", None))))
    description.add(compilers.partition)
    _describe_decompositions(compilers.decompositions, description)
    description.word(str(compilers.keep_inference_input_mutations))


def _describe_decompositions(table: Any, description: Description) -> None:
    """A table that is copied by making it again is what its maker makes."""
    if table is None:
        return
    if "__reduce__" not in vars(type(table)):
        raise Indescribable("decompositions of the caller's own")
    description.add(table.__reduce__())


def _describe_values(values: Sequence[Any], description: Description) -> None:
    """Inputs by what tracing sees of them, and which of them are one object, or lie in the same memory."""
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    for value in values:
        if not isinstance(value, torch.Tensor):
            description.add(value)
            continue
        if type(value) not in _TENSORS or value.layout is not torch.strided or value.is_quantized:
            raise Indescribable(f"an input of type {type(value).__name__}")
        standing = (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference())
        place = objects.setdefault(id(value), len(objects))
        memory = memories.setdefault(value.untyped_storage()._cdata, len(memories))
        description.word(
            f"{type(value).__name__} {value.dtype} {value.device} {tuple(value.shape)} {value.stride()} "
            f"{value.storage_offset()} {standing} {place} {memory}"
        )
        if vars(value):
            description.attributes(value)
