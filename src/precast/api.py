"""The one-line entry points: thin functions over the stages."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, overload

import torch

from precast.autograd.compiled_module import CompiledModule, compile_module
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.entry import compile_callable
from precast.backend import Backend, CompilerFunction, get_backend
from precast.errors import InputTypeError, OptionError
from precast.options import Options, as_options

Model = TypeVar("Model", bound=Callable[..., Any])


@overload
def compile(
    model: Model,
    *,
    backend: str | Backend | CompilerFunction = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    mode: str | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Model: ...


@overload
def compile(
    model: None = None,
    *,
    backend: str | Backend | CompilerFunction = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    mode: str | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[Model], Model]: ...


def compile(
    model: Any = None,
    *,
    backend: str | Backend | CompilerFunction = "native",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    options: Options | Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or module; the work is done on the first call. Also usable as a decorator.

    The keywords are those of ``torch.compile``:

    - ``backend``: the name of a backend (``precast backends`` lists them), or a compiler. ``"native"`` needs a C++
      compiler on this machine, ``"interpret"`` does not.
    - ``dynamic``: ``False`` compiles again for every new size, ``True`` compiles once for all sizes, and ``None`` (the
      default) makes a size dynamic when it changes.
    - ``fullgraph``: raise an error where the program cannot be captured as one graph. By default there is a graph
      break: the module in question runs in Python, the modules that it calls are compiled, and a ``GraphBreakWarning``
      says why.
    - ``mode``: ``"default"``; ``"reduce-overhead"``, the same on the CPU; ``"max-autotune"`` (with or without
      ``-no-cudagraphs``) autotunes large matrix products (``measure=True``).
    - ``options``: an ``Options`` object or a mapping of its fields.
    - ``disable``: return ``model`` unchanged.

    Exported programs, including PyTorch's own, are compiled as the module that they describe.

    >>> import torch
    >>> @compile
    ... def double(x):
    ...     return x * 2
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    chosen = _for_compiling(as_options(options), mode)
    if model is None:
        return functools.partial(
            compile, backend=backend, dynamic=dynamic, fullgraph=fullgraph, options=chosen, disable=disable
        )
    if disable:
        return model
    if any(kind.__name__ == "ExportedProgram" for kind in type(model).__mro__):
        # Imported here: callers without an exported program should not wait for the code that reads them.
        from precast.export.torch_files.convert import from_torch, is_program

        model = from_torch(model).module() if is_program(model) else model
    _check(model, dynamic)
    if isinstance(model, CompiledModule):
        model = model.original_module
    compilers = CompilersInUse.of_backend(get_backend(backend), chosen)
    compile_function = functools.partial(
        compile_callable, compilers=compilers, dynamic=dynamic, graph_breaks=not fullgraph
    )
    return compile_module(model, compile_function) if isinstance(model, torch.nn.Module) else compile_function(model)


def _check(model: Any, dynamic: object) -> None:
    if not callable(model):
        raise InputTypeError(
            f"precast.compile got an object of type {type(model).__name__}.",
            why="it compiles functions and modules",
            fix="Pass an nn.Module or a function.",
        )
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise InputTypeError(
            f"precast.compile got the class {model.__name__}, not a module.",
            why="it compiles functions and modules",
            fix=f"Pass an instance: precast.compile({model.__name__}(…)).",
        )
    if dynamic not in (None, True, False):
        raise OptionError(
            f"dynamic cannot be {dynamic!r}.",
            why="True makes all sizes dynamic, False none, None those that change",
            fix="Pass True, False or None; precast.export takes dynamic_shapes for single sizes.",
        )


_MODES = {"default": False, "reduce-overhead": False, "max-autotune": True, "max-autotune-no-cudagraphs": True}
"""The modes of ``torch.compile``, and whether each one autotunes."""


def _for_compiling(options: Options, mode: str | None) -> Options:
    if options.precision is not None:
        raise OptionError(
            f"precision={options.precision!r} is an option of packages.",
            why="what is compiled follows the model's own types, and torch.autocast",
            fix='Call it under torch.autocast("cpu", dtype=torch.bfloat16), or compile model.to(torch.bfloat16).',
        )
    if mode is not None and mode not in _MODES:
        raise OptionError(
            f"There is no mode {mode!r}.", why=f"the modes are {', '.join(_MODES)}", fix="Name one of these, or none."
        )
    return replace(options, measure=True) if mode is not None and _MODES[mode] else options
