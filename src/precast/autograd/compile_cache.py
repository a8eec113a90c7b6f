"""Keeps what compilers make on disk, for those that say how.

A compiler says so by carrying what ``StoringCompiler`` lists; see ``docs/guides/cache.md``.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import fx

from precast._version import __version__
from precast.autograd.boxing import Compiled, Compiler
from precast.autograd.graph_names import compiling
from precast.autograd.graph_text import graph_text
from precast.autograd.size_names import Indescribable, SizeNames
from precast.cache import CacheWarning, content_key, open_store, processor_identity
from precast.errors import InputTypeError, PrecastError
from precast.ir.graphs import placeholders_of
from precast.ir.node_meta import value_of
from precast.options import Options, as_options, telling

Finish = Callable[[], Compiled]

KIND = "graphs"

_log = logging.getLogger("precast.autograd")


class StoringCompiler(Protocol):
    """A compiler whose results can be stored.

    ``cache_key`` tells apart compilers of the same class whose results differ: their version, flags, libraries. It may
    also carry ``options``, the ``precast.options.Options`` that it works by; else those of the environment hold.
    """

    cache_key: str

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], /) -> Compiled: ...

    def store(self, compiled: Compiled, /) -> bytes | None:
        """What ``restore`` needs to make ``compiled`` again; None if this one cannot be stored."""

    def restore(self, data: bytes, graph_module: fx.GraphModule, example_inputs: Sequence[Any], /) -> Compiled:
        """The compiled graph again; a PrecastError says that the data does not serve here, and compiles anew."""


@runtime_checkable
class StartingCompiler(Protocol):
    """A compiler that gives way before it is done: what ``start`` returns waits for the rest, once, and gives it."""

    def start(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], /) -> Finish: ...


def start_graph(compiler: Compiler, module: fx.GraphModule, name: str) -> Finish:
    """Hand one graph to a compiler, or to its cache, under its name, with its placeholders' fake values as examples.

    What is returned gives the compiled graph; a compiler may be at work in between.
    """
    examples = [value_of(node) for node in placeholders_of(module.graph)]
    with compiling(name):
        return start_or_restore(compiler, module, examples)


def start_or_restore(compiler: Compiler, module: fx.GraphModule, examples: Sequence[Any]) -> Finish:
    """Begin to make what ``compiler`` makes of the graph, or find what it made of one that means the same."""
    storing = as_storing(compiler)
    if storing is None:
        return _start(compiler, module, examples)
    options = as_options(getattr(storing, "options", None))
    sizes = SizeNames()
    try:
        key = compile_key(storing, module, examples, options, sizes)
    except Indescribable as error:
        _log.info("compiled without the cache, since the graph holds %s", error)
        return _start(compiler, module, examples)
    store = open_store(options)
    data = store.get(KIND, key)
    if data is not None:
        try:
            restored = storing.restore(data, module, examples)
            return lambda: restored
        except PrecastError as error:
            store.discard(KIND, key)
            warnings.warn(f"a stored graph is compiled anew: {error}", CacheWarning, stacklevel=2)
    assumed = sizes.assumptions()
    finish = _start(compiler, module, examples)
    # A condition that the compiler put on the sizes would be missing in a process that only restores.
    if sizes.assumptions() != assumed:
        _log.info("not stored, since compiling added conditions on sizes")
        return finish

    def finish_and_store() -> Compiled:
        compiled = finish()
        if (made := storing.store(compiled)) is not None:
            store.put(KIND, key, made)
        return compiled

    return finish_and_store


def _start(compiler: Compiler, module: fx.GraphModule, examples: Sequence[Any]) -> Finish:
    starting: object = compiler
    if isinstance(starting, StartingCompiler):
        return starting.start(module, examples)
    compiled = compiler(module, examples)
    return lambda: compiled


def as_storing(compiler: Compiler) -> StoringCompiler | None:
    """The compiler, if its results can be stored; one that says so by halves is a mistake."""
    key = getattr(compiler, "cache_key", None)
    if key is None:
        return None
    missing = [name for name in ("store", "restore") if not callable(getattr(compiler, name, None))]
    if missing or not isinstance(key, str):
        raise InputTypeError(
            f"the compiler {_name_of(compiler)} cannot be cached",
            why=f"it has a cache_key, but no {' and no '.join(missing)}" if missing else f"its cache_key is {key!r}",
            fix="give it a text as cache_key, store(compiled) and restore(data, graph_module, example_inputs)",
        )
    return compiler  # type: ignore[return-value]


def compile_key(
    compiler: StoringCompiler, module: fx.GraphModule, examples: Sequence[Any], options: Options, sizes: SizeNames
) -> str:
    """A hash of everything that decides what ``compiler`` makes of the graph. Raises Indescribable."""
    text = graph_text(module, examples, sizes)
    circumstances = [telling(options), *_identity(compiler), *_surroundings(), processor_identity()]
    return content_key([text, sizes.assumptions(), *circumstances])


def _identity(compiler: StoringCompiler) -> list[str]:
    package = getattr(compiler, "__module__", type(compiler).__module__).partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return [_name_of(compiler), str(version), compiler.cache_key]


def _name_of(compiler: object) -> str:
    named = compiler if hasattr(compiler, "__qualname__") else type(compiler)
    return f"{named.__module__}.{named.__qualname__}"


def _surroundings() -> list[str]:
    """What holds for the whole process: versions, and torch's switches that change what ops compute."""
    return [
        f"precast {__version__}",
        f"torch {torch.__version__} {torch.version.git_version}",
        f"python {sys.version_info[:2]}",
        str(torch.get_default_dtype()),
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"precision {torch.get_float32_matmul_precision()}",
    ]
