"""The one-line ways in: thin functions over the stages."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from precast.autograd.compiled_module import CompiledModule, compile_module
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.entry import compile_callable
from precast.backend import Backend, CompilerFunction, get_backend
from precast.errors import InputTypeError
from precast.options import Options, as_options

Model = TypeVar("Model", bound=Callable[..., Any])


@overload
def compile(
    model: Model,
    *,
    backend: str | Backend | CompilerFunction = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    options: Options | Mapping[str, Any] | None = ...,
) -> Model: ...


@overload
def compile(
    model: None = None,
    *,
    backend: str | Backend | CompilerFunction = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    options: Options | Mapping[str, Any] | None = ...,
) -> Callable[[Model], Model]: ...


def compile(
    model: Any = None,
    *,
    backend: str | Backend | CompilerFunction = "native",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    options: Options | Mapping[str, Any] | None = None,
) -> Any:
    """A function or module that does what ``model`` does, compiled when first called; also a decorator.

    ``backend`` is the name of a registered backend (``precast backends`` lists them) or a compiler; ``"native"`` needs
    a C++ compiler on this machine, ``"interpret"`` does not. ``dynamic=False`` compiles for every size anew, ``True``
    for all sizes at once, ``None`` turns a size dynamic when it changes.
    Where a module's forward cannot be captured, it runs in Python and the modules that it calls are compiled, with one
    warning; ``fullgraph=True`` raises instead.
    ``options`` are for compilers that know them: see ``Compiler.with_options``.
    An exported program, PyTorch's own too, is compiled as the module that it describes.

    >>> import torch
    >>> @compile
    ... def double(x):
    ...     return x * 2
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    if model is None:
        return functools.partial(compile, backend=backend, dynamic=dynamic, fullgraph=fullgraph, options=options)
    if any(kind.__name__ == "ExportedProgram" for kind in type(model).__mro__):
        # Whoever compiles no exported program need not wait for what reads them.
        from precast.export.torch_files.convert import from_torch, is_program

        model = from_torch(model).module() if is_program(model) else model
    if not callable(model):
        raise InputTypeError(
            f"precast.compile got a {type(model).__name__}.",
            why="it compiles functions and modules",
            fix="Pass an nn.Module or a function.",
        )
    if isinstance(model, CompiledModule):
        model = model.original_module
    compilers = CompilersInUse.of_backend(get_backend(backend), as_options(options))
    compile_function = functools.partial(
        compile_callable, compilers=compilers, dynamic=dynamic, graph_breaks=not fullgraph
    )
    return compile_module(model, compile_function) if isinstance(model, torch.nn.Module) else compile_function(model)
