"""What a compiler is, what a backend is, and the backends people choose by name.

Those are ours, those registered in this process, and those that installed packages offer. Nothing here imports torch
or a compiler; a backend is loaded when it is first asked for.
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
"""What is found of a compiler in objects that are not of its class."""

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
    """Makes a callable of a functional graph of ATen operators.

    A plain function ``(graph_module, example_inputs) -> callable`` is a compiler already; whoever takes compilers makes
    one of this class of it. Derive from the class for what a function cannot say: a subclass defines ``__call__``, and
    whatever else it does otherwise than the defaults here. One compilation calls, in this order::

        with_options    when precast.compile is called
        restore_alone   when a call is first met, if store_alone kept one like it: the rest is left out
        get_ready       before the call is traced
        restore         for each graph, if store kept one that means the same; else
        start           for each graph, and what that returns once all graphs of the call are started
        store           for each graph that was compiled now
        when_complete   for each graph of the call, and when it is, store_alone

    Results are kept on disk if there is a ``cache_key``; ``docs/guides/add-a-backend.md`` is a complete example.
    """

    options: "Options | None" = None
    """The options that it works by; those of the environment if None. They are part of every key of the cache."""

    cache_key: str | None = None
    """Whatever decides its results beside the graph and the options: its version, flags, libraries, the device.

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
        """Begin to compile a graph; what is returned is called once, waits for the rest, and returns the result.

        Forward and backward are both started before either is waited for. By default, all is done at once.
        """
        compiled = self(graph_module, example_inputs)
        return lambda: compiled

    def get_ready(self, state: "Sequence[Tensor]", /) -> None:  # noqa: B027 - there may be nothing to do
        """Begin what can be done before there is a graph, which will read this state; by default nothing.

        Called of the forward's compiler.
        """

    def with_options(self, options: "Options", /) -> "Compiler":
        """Return the compiler that works by these options; by default itself, since it knows none."""
        return self

    def holds_state(self) -> bool:
        """Whether compiled graphs keep the parameters and buffers of their first call, so that later calls need not
        read them. Asked of the compiler for inference, once for each compiled function; False by default.
        """
        return False

    def random_source(self) -> str:
        """Whose random numbers its results draw; by default those of torch's generator, ``"eager"``.

        A backward may draw again what its forward drew. If the sources of their compilers differ, both are asked to
        go ``drawing_as_torch``.
        """
        return "eager"

    def drawing_as_torch(self) -> "Compiler":
        """Return the compiler whose results draw the numbers of torch's generator; by default itself."""
        return self

    def store(self, compiled: Any, /) -> bytes | None:
        """Return what ``restore`` needs to make ``compiled`` again, in another process; None if this one cannot be.

        Called if there is a ``cache_key``.
        """
        raise NotImplementedError(f"{self.qualified_name} has no store")

    def restore(self, data: bytes, graph_module: "GraphModule", example_inputs: Sequence[Any], /) -> CompiledFunction:
        """Make a result again of what ``store`` returned for a graph that means the same as this one.

        A PrecastError says that the data does not serve here: it is dropped, and the graph compiled.
        """
        raise NotImplementedError(f"{self.qualified_name} has no restore")

    def when_complete(self, compiled: Any, then: Callable[[], None], /) -> None:
        """Call ``then`` once ``store_alone`` can be asked of ``compiled``; by default at once.

        For results that are made as a whole only when they are first called.
        """
        then()

    def store_alone(self, compiled: Any, /) -> bytes | None:
        """Return text, in UTF-8, that ``restore_alone`` needs to make ``compiled`` again without its graph; else None.

        If all compilers in use define the two, a call that was compiled before starts without being traced.
        """
        return None

    def restore_alone(self, data: bytes, /) -> CompiledFunction:
        """Make a result again of what ``store_alone`` returned. A PrecastError says that the data does not serve."""
        raise NotImplementedError(f"{self.qualified_name} has no restore_alone")

    @property
    def qualified_name(self) -> str:
        """What it is called in errors and in keys of the cache."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def defines(self, *methods: str) -> bool:
        """Whether these methods are its own, and not the defaults of this class."""
        return all(getattr(self, name) != MethodType(getattr(Compiler, name), self) for name in methods)


class FunctionCompiler(Compiler):
    """A function as a compiler; or an object that has methods of one, though it is not of that class.

    Such objects, and functions that carry these names as attributes, are taken as they are when they are passed.
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
    """The compiler that a function, or an object like one, stands for; what is one already is returned as it is."""
    return compiler if isinstance(compiler, Compiler) else FunctionCompiler(_checked_compiler(compiler, "a compiler"))


@dataclass(frozen=True)
class Backend:
    """A named choice of compilers; what is None is left to the caller's defaults.

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
    """Make the decorated compiler a backend called ``name``; a name is given once.

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
    """Return the backend called so; a compiler stands for a backend that uses it for every graph."""
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str):
        name = getattr(backend, "__name__", type(backend).__name__)
        return Backend(name, _checked_compiler(backend, "backend"))
    if backend in _registered:
        return _registered[backend]
    entry = _find_entry(backend)
    found: object = entry.load()
    if isinstance(found, Backend):
        return found
    return Backend(backend, _checked_compiler(found, f"backend {backend!r}, defined as {entry.value},"))


def list_backends() -> list[str]:
    """Return the names of all backends, sorted, loading none."""
    return sorted({*_BUILT_IN, *_registered, *_offered()})


def _find_entry(name: str) -> EntryPoint:
    if name in _BUILT_IN:
        # Not even looked for among what is installed: that reads a file of every package.
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
