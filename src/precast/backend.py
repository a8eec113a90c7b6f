"""What a compiler is, what a backend is, and the registry of backends by name.

These are the built-in ones, those registered in this process, and those that installed packages offer as entry points.
Nothing here imports torch or a compiler; a backend is loaded when it is first asked for.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from precast.errors import InputTypeError, InputValueError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule

    from precast.options import Options

CompiledFunction = Callable[..., Any]
CompilerFunction = Callable[["GraphModule", Sequence[Any]], CompiledFunction]
PartitionFunction = Callable[..., "tuple[GraphModule, GraphModule]"]
DecompositionTable = Mapping[Callable[..., object], Callable[..., object]]
CompilerType = TypeVar("CompilerType", bound=CompilerFunction)

_TAKEN = (
    "cache_key", "get_ready", "options", "restore", "restore_alone", "start", "store", "store_alone", "when_complete",
    "with_options",
)  # fmt: skip
"""The members of ``Compiler`` that are taken over from objects that do not derive from it."""

ENTRY_POINT_GROUP = "precast.backends"

_BUILT_IN = {
    "debug": "precast.debug.checking_interpreter:debug_nop",
    "debug_nop": "precast.debug.checking_interpreter:debug_nop",
    "interpret": "precast.native.interpreted:interpret",
    "native": "precast.native.backend:BACKEND",
    "nop": "precast.debug.unchanged:nop",
    "print": "precast.debug.unchanged:print_compile",
    "ts": "precast.compilers.torchscript:ts_compile",
}

_registered: dict[str, "Backend"] = {}


class Compiler(ABC):
    """Base class of compilers, which turn functional graphs of ATen operators into callables.

    A plain function ``(graph_module, example_inputs) -> callable`` is accepted wherever a compiler is. Derive from this
    class to take options or to cache results: a subclass defines ``__call__`` and overrides the defaults that do not
    fit. One compilation calls the methods in this order::

        with_options    when precast.compile is called
        restore_alone   on the first call of a kind, if store_alone kept a result for it: everything below is skipped
        get_ready       before the call is traced
        restore         for each graph, if store kept an equivalent one; otherwise
        start           for each graph, then the function that it returned, once all graphs of the call are started
        store           for each newly compiled graph
        when_complete   for each graph of the call; once it is complete, store_alone

    Results are cached on disk if there is a ``cache_key``; ``docs/guides/add-a-backend.md`` has a complete example.
    """

    options: "Options | None" = None
    """The options to compile with; those of the environment if None. They are part of every cache key."""

    cache_key: str | None = None
    """Everything that determines its results besides the graph and the options: its version, flags, libraries, device.

    None, the default, stores no results. With a key, ``store`` and ``restore`` have to be defined as well.
    """

    @abstractmethod
    def __call__(self, graph_module: "GraphModule", example_inputs: Sequence[Any], /) -> CompiledFunction:
        """Compile one graph for inputs like the fake tensors and numbers in ``example_inputs``.

        The result takes the graph's inputs one by one and returns a sequence of its outputs. With a true attribute
        ``_boxed_call`` it takes one list instead, which it may empty to free inputs early. The graph belongs to the
        caller: it is not to be changed, and may be kept.
        """

    def start(self, graph_module: "GraphModule", example_inputs: Sequence[Any], /) -> Callable[[], CompiledFunction]:
        """Start compiling a graph; return a function that waits for the result and returns it. It is called once.

        Forward and backward are both started before either is waited for. The default compiles synchronously.
        """
        compiled = self(graph_module, example_inputs)
        return lambda: compiled

    def get_ready(self, state: "Sequence[Tensor]", /) -> None:  # noqa: B027 - there may be nothing to do
        """Prepare what does not depend on the graph; ``state`` is what the graph will read. The default does nothing.

        Called on the compiler of the forward only.
        """

    def with_options(self, options: "Options", /) -> "Compiler":
        """Return a compiler with these options; the default returns itself."""
        return self

    def holds_state(self) -> bool:
        """Return whether compiled graphs keep the parameters and buffers of their first call, so that later calls need
        not read them. Asked once per compiled function, of the compiler for inference; False by default.
        """
        return False

    def random_source(self) -> str:
        """Return the source of random numbers of compiled graphs; by default ``"eager"``, torch's generator.

        A backward may have to repeat the draws of its forward. If the sources of the two compilers differ,
        ``drawing_as_torch`` is used for both.
        """
        return "eager"

    def drawing_as_torch(self) -> "Compiler":
        """Return the compiler to use where random numbers must come from torch's generator; by default itself."""
        return self

    def store(self, compiled: Any, /) -> bytes | None:
        """Serialize ``compiled`` for ``restore`` in another process; return None if it cannot be stored.

        Called only if there is a ``cache_key``.
        """
        raise NotImplementedError(f"{self.qualified_name} has no store")

    def restore(self, data: bytes, graph_module: "GraphModule", example_inputs: Sequence[Any], /) -> CompiledFunction:
        """Rebuild a result from what ``store`` returned for an equivalent graph.

        Raise a PrecastError if the data cannot be used here: it is dropped, and the graph is compiled.
        """
        raise NotImplementedError(f"{self.qualified_name} has no restore")

    def when_complete(self, compiled: Any, then: Callable[[], None], /) -> None:
        """Call ``then`` once ``store_alone`` can be called with ``compiled``; by default immediately.

        For results that are complete only after their first call.
        """
        then()

    def store_alone(self, compiled: Any, /) -> bytes | None:
        """Serialize ``compiled`` as UTF-8 text for ``restore_alone``, which has no graph; None if that is not possible.

        If all compilers in use define both methods, a call that was compiled before starts without tracing.
        """
        return None

    def restore_alone(self, data: bytes, /) -> CompiledFunction:
        """Rebuild a result from what ``store_alone`` returned; raise a PrecastError if the data cannot be used."""
        raise NotImplementedError(f"{self.qualified_name} has no restore_alone")

    @property
    def qualified_name(self) -> str:
        """The name used in errors and cache keys."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def defines(self, *methods: str) -> bool:
        """Return whether all these methods are overridden."""
        return all(getattr(self, name) != MethodType(getattr(Compiler, name), self) for name in methods)


class FunctionCompiler(Compiler):
    """A function as a compiler, or an object that has methods of a compiler but does not derive from ``Compiler``.

    The members named in ``_TAKEN`` are copied from it when it is wrapped.
    """

    def __init__(self, function: CompilerFunction) -> None:
        self.function = function
        for name in _TAKEN:
            if (member := getattr(function, name, None)) is not None:
                setattr(self, name, member)

    def __call__(self, graph_module: "GraphModule", example_inputs: Sequence[Any], /) -> CompiledFunction:
        return self.function(graph_module, example_inputs)

    @property
    def qualified_name(self) -> str:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}.{named.__qualname__}"


def as_compiler(compiler: CompilerFunction) -> Compiler:
    """Wrap a function, or an object like one, as a compiler; return a ``Compiler`` unchanged."""
    return compiler if isinstance(compiler, Compiler) else FunctionCompiler(_checked_compiler(compiler, "a compiler"))


@dataclass(frozen=True)
class Backend:
    """A set of compilers under one name; fields that are None use the caller's defaults.

    Each is a ``Compiler`` or a function ``(graph_module, example_inputs) -> callable``.
    """

    name: str
    fw_compiler: CompilerFunction
    bw_compiler: CompilerFunction | None = None
    inference_compiler: CompilerFunction | None = None
    partition_fn: PartitionFunction | None = None
    decompositions: DecompositionTable | None = None

    @property
    def description(self) -> str:
        """The first line of the forward compiler's docstring."""
        lines = (self.fw_compiler.__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""


def register_backend(
    name: str,
    *,
    bw_compiler: CompilerFunction | None = None,
    inference_compiler: CompilerFunction | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: DecompositionTable | None = None,
) -> Callable[[CompilerType], CompilerType]:
    """Register the decorated compiler as the backend ``name``; a name can be registered once.

    >>> @register_backend("identity")
    ... def identity(graph_module, example_inputs):
    ...     return graph_module
    >>> get_backend("identity").fw_compiler is identity
    True
    """
    _check_name(name)

    def register(compiler: CompilerType) -> CompilerType:
        _checked_compiler(compiler, f"what @register_backend({name!r}) decorates")
        backend = Backend(name, compiler, bw_compiler, inference_compiler, partition_fn, decompositions)
        taken = name in _BUILT_IN or name in _offered()
        if taken or _registered.setdefault(name, backend) is not backend:
            raise InputValueError(
                f"a backend called {name!r} is there already",
                why="one name that means two backends would depend on import order",
                fix="choose another name",
            )
        return compiler

    return register


def get_backend(backend: str | Backend | CompilerFunction) -> Backend:
    """Return the backend of this name; a compiler is taken for a backend that uses it for every graph."""
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str):
        name = getattr(backend, "__name__", type(backend).__name__)
        return Backend(name, _checked_compiler(backend, "backend"))
    if backend in _registered:
        return _registered[backend]
    entry = _find_entry(backend)
    found = entry.load() if backend in _BUILT_IN else _offered_by(entry)
    if isinstance(found, Backend):
        return found
    return Backend(backend, _checked_compiler(found, f"backend {backend!r}, defined as {entry.value},"))


def list_backends() -> list[str]:
    """Return the names of all backends, sorted, without loading them."""
    return sorted({*_BUILT_IN, *_registered, *_offered()})


def _find_entry(name: str) -> EntryPoint:
    if name in _BUILT_IN:
        # Installed packages are not searched: that reads a file of each.
        return EntryPoint(name, _BUILT_IN[name], ENTRY_POINT_GROUP)
    offers = _offered().get(name, [])
    if not offers:
        raise _unknown(name)
    if len({offer.value for offer in offers}) > 1:
        raise InputValueError(
            f"backend {name!r} is defined more than once: {', '.join(offer.value for offer in offers)}",
            why="we do not guess which of two installed backends is meant",
            fix="uninstall one of the packages, or pass the compiler itself: backend=the_function",
        )
    return offers[0]


def _offered() -> dict[str, list[EntryPoint]]:
    offers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        offers.setdefault(entry.name, []).append(entry)
    return offers


def _offered_by(entry: EntryPoint) -> object:
    """Load what another package offers; whatever its import raises is reported as that package's fault."""
    try:
        return entry.load()
    except Exception as problem:
        package = f"the package {entry.dist.name}" if entry.dist else "an installed package"
        raise InputValueError(
            f"backend {entry.name!r} cannot be loaded: {type(problem).__name__}: {problem}",
            why=f"{package} offers it as {entry.value}, and importing that raised this",
            fix="mend or update that package, or choose another backend: precast backends lists them",
        ) from problem


def _unknown(name: str) -> InputValueError:
    names = list_backends()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return InputValueError(
        f"no backend is called {name!r}",
        why=f"{hint}known backends: {', '.join(names)}",
        fix="use one of these names, register yours with @precast.register_backend, or pass the compiler itself",
    )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InputTypeError(
            f"a backend's name must be a non-empty string, not {name!r}",
            why="backends are chosen by name: precast.compile(model, backend='name')",
            fix="write @register_backend('name'), with the name in parentheses",
        )


def _checked_compiler(compiler: object, what: str) -> CompilerFunction:
    if isinstance(compiler, type) and issubclass(compiler, Compiler):
        raise InputTypeError(
            f"{what} is the class {compiler.__name__}, not a compiler of that class",
            why="calling a class makes an object, where calling a compiler compiles a graph",
            fix=f"pass an object: {compiler.__name__}()",
        )
    if callable(compiler):
        return compiler
    raise InputTypeError(
        f"{what} must be callable, not {type(compiler).__name__}",
        why="a compiler is called with (graph_module, example_inputs) and returns a callable",
        fix="pass such a function, a Backend, or the name of a registered one",
    )
