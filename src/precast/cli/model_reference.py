"""Models by name on the command line: ``package.module:factory`` or ``file.py:factory``.

The factory takes nothing and returns ``(module, args)``, ``(module, args, kwargs)`` or
``(module, args, kwargs, dynamic_shapes)``.

Calls of a user's model for the command line: eagerly, compiled, with gradients or without.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.api import compile
from precast.errors import InputTypeError, InputValueError, PrecastError


@dataclass(frozen=True)
class Model:
    """What a factory returned."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None


def load_model(reference: str) -> Model:
    """Import what the reference names and call it."""
    return model_of(call_factory(reference), reference)


def call_factory(reference: str) -> Any:
    """What the function that the reference names returns."""
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise InputValueError(
            f"{reference!r} names no model.",
            why="a model is named by a module or a file and a function in it",
            fix="Write package.module:factory or file.py:factory.",
        )
    factory = _attribute(_module(place), name, reference)
    try:
        return factory()
    except PrecastError:
        raise
    except Exception as problem:
        raise InputValueError(
            f"{reference} failed: {type(problem).__name__}: {problem}",
            why="the factory itself raised this",
            fix="mend the factory; precast --debug … shows where it failed",
        ) from problem


def model_of(result: Any, reference: str) -> Model:
    """A factory's result, taken apart."""
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4 or not isinstance(result[1], tuple | list):
        raise InputTypeError(
            f"{reference} returned a {type(result).__name__}.",
            why="a factory returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes)",
            fix="Return such a tuple.",
        )
    module, args, kwargs, dynamic_shapes = [*result, None, None][:4]
    return Model(module, tuple(args), dict(kwargs or {}), dynamic_shapes)


def _attribute(module: ModuleType, name: str, reference: str) -> Callable[[], Any]:
    factory = getattr(module, name, None)
    if not callable(factory):
        raise InputValueError(
            f"{reference!r} names no function.",
            why=f"{module.__name__} has no function {name!r}",
            fix="Check the name behind the colon.",
        )
    found: Callable[[], Any] = factory
    return found


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        # As with `python -m`, modules of the current folder can be named.
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as problem:
            raise InputValueError(
                f"{place!r} cannot be imported.", why=str(problem), fix="Check the name, and what is installed."
            ) from problem
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise InputValueError(f"{place} does not exist.", why="it is no file", fix="Check the path before the colon.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


Call = Callable[[], Any]


def calls_to_compare(reference: str, *, threads: int | None, train: bool, freeze: bool) -> dict[str, Call]:
    """The model eagerly and compiled."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = load_model(reference)
    compiled = compile(model.module, options={"freeze": True} if freeze else None)
    return {"eager": call_of(model.module, model, train=train), "precast": call_of(compiled, model, train=train)}


def call_of(callee: Callable[..., Any], model: Model, *, train: bool) -> Call:
    """One call of ``callee`` with the model's arguments, and, to train, of the backward of all that it gives."""

    def infer() -> Any:
        with torch.no_grad():
            return callee(*model.args, **model.kwargs)

    def step() -> Any:
        result = callee(*model.args, **model.kwargs)
        leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
        torch.autograd.backward(leaves, [torch.ones_like(each) for each in leaves])
        return result

    return step if train else infer
