"""Models by name on the command line, ``package.module:factory`` or ``file.py:factory``, and calls of them.

The factory takes nothing and returns ``(module, args)``, ``(module, args, kwargs)`` or
``(module, args, kwargs, dynamic_shapes)``.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import precast
from precast.cli.unexpected import users_place
from precast.errors import InputTypeError, InputValueError, PrecastError


@dataclass(frozen=True)
class Model:
    """The result of a factory."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None


def load_model(reference: str) -> Model:
    """Import the referenced function and call it."""
    return model_of(call_factory(reference), reference)


def call_factory(reference: str) -> Any:
    """The result of the referenced function."""
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise InputValueError(
            f"{reference!r} does not name a model.",
            why="a model is named by a Python file or module and a function in it",
            fix=f"Add the name of a function: {reference}:make."
            if reference.endswith(".py")
            else "Write package.module:factory or file.py:factory. (precast run, verify and inspect take packages.)",
        )
    # If torch is missing, report that, and not that the user's file cannot be imported.
    importlib.import_module("torch")
    factory = _attribute(_module(place), name, reference)
    _check_takes_nothing(factory, reference)
    try:
        return factory()
    except PrecastError:
        raise
    except Exception as problem:
        raise InputValueError(
            f"{reference} failed: {type(problem).__name__}: {problem}",
            at=users_place(problem.__traceback__),
            why="the factory itself raised this error",
            fix="Fix the error there; precast --debug … shows the traceback.",
        ) from problem


def model_of(result: Any, reference: str) -> Model:
    """Unpack and check a factory's result."""
    why = "a factory returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes)"
    if not isinstance(result, tuple):
        raise InputTypeError(
            f"{reference} returned an object of type {type(result).__name__}, not a tuple.",
            why=why,
            fix="Return the example arguments as well: return model, (x,).",
        )
    if not 2 <= len(result) <= 4:
        raise InputTypeError(f"{reference} returned a tuple of {len(result)}.", why=why, fix="Return such a tuple.")
    if not isinstance(result[1], tuple | list):
        raise InputTypeError(
            f"{reference} returned example arguments of type {type(result[1]).__name__}, not a tuple.",
            why=why,
            fix="Write return model, (x,): a tuple with a comma, also for a single argument.",
        )
    module, args, kwargs, dynamic_shapes = [*result, None, None][:4]
    return Model(module, tuple(args), dict(kwargs or {}), dynamic_shapes)


def _attribute(module: ModuleType, name: str, reference: str) -> Callable[[], Any]:
    factory = getattr(module, name, None)
    if callable(factory) and not hasattr(factory, "state_dict"):
        found: Callable[[], Any] = factory
        return found
    functions = [key for key, value in vars(module).items() if isinstance(value, FunctionType)]
    own = [key for key in functions if getattr(module, key).__module__ == module.__name__]
    close = get_close_matches(name, own, n=1)
    has = f"its functions are {', '.join(own)}" if own else "it has no functions"
    is_what = (
        f"{name!r} is of type {type(factory).__name__}" if hasattr(module, name) else f"there is no {name!r} in it"
    )
    raise InputValueError(
        f"{reference!r} does not name a function.",
        why=f"{is_what}; {has}",
        fix=f"Did you mean {close[0]!r}?" if close else "Write a function that returns (module, args), and name it.",
    )


def _check_takes_nothing(factory: Callable[..., Any], reference: str) -> None:
    try:
        inspect.signature(factory).bind()
    except TypeError as problem:
        raise InputTypeError(
            f"{reference} cannot be called without arguments: {problem}.",
            why="a factory is called without arguments",
            fix="Give its parameters defaults, or name another function.",
        ) from None


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        # As with `python -m`, modules in the current folder can be named.
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as problem:
            raise InputValueError(
                f"{place!r} cannot be imported.",
                why=str(problem),
                fix="Check the name and the installed packages; to name a file, write it with .py.",
            ) from problem
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise InputValueError(
            f"{place} does not exist.", why="there is no such file", fix="Check the path before the colon."
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except PrecastError:
        raise
    except Exception as problem:
        at = f"{problem.filename}:{problem.lineno}" if isinstance(problem, SyntaxError) else None
        raise InputValueError(
            f"{place} cannot be imported: {type(problem).__name__}: {problem}",
            at=at or users_place(problem.__traceback__),
            why="the file itself raised this error",
            fix="Fix the error there; precast --debug … shows the traceback.",
        ) from problem
    return module


Call = Callable[[], Any]


def calls_to_compare(reference: str, *, threads: int | None, train: bool, freeze: bool) -> dict[str, Call]:
    """The model in eager and compiled."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    model = load_model(reference)
    compiled = precast.compile(model.module, options={"freeze": True} if freeze else None)
    return {"eager": call_of(model.module, model, train=train), "precast": call_of(compiled, model, train=train)}


def call_of(callee: Callable[..., Any], model: Model, *, train: bool) -> Call:
    """One call of ``callee`` with the model's arguments and, to train, of the backward of all its results."""
    import torch
    from torch.utils import _pytree as pytree

    def infer() -> Any:
        with torch.no_grad():
            return callee(*model.args, **model.kwargs)

    def step() -> Any:
        result = callee(*model.args, **model.kwargs)
        leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
        torch.autograd.backward(leaves, [torch.ones_like(each) for each in leaves])
        return result

    return step if train else infer
