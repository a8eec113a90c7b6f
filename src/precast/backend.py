"""The backends people choose by name: ours, those registered in this process, those that installed packages offer.

Nothing here imports torch or a compiler; a backend is loaded when it is first asked for.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeVar

from precast.errors import InputTypeError, InputValueError

if TYPE_CHECKING:
    from torch.fx import GraphModule

CompiledFunction = Callable[..., object]
Compiler = Callable[["GraphModule", Sequence[object]], CompiledFunction]
PartitionFunction = Callable[..., "tuple[GraphModule, GraphModule]"]
DecompositionTable = Mapping[Callable[..., object], Callable[..., object]]
CompilerType = TypeVar("CompilerType", bound=Compiler)

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


@dataclass(frozen=True)
class Backend:
    """A named choice of compilers; what is None is left to the caller's defaults."""

    name: str
    fw_compiler: Compiler
    bw_compiler: Compiler | None = None
    inference_compiler: Compiler | None = None
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
    bw_compiler: Compiler | None = None,
    inference_compiler: Compiler | None = None,
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


def get_backend(backend: str | Backend | Compiler) -> Backend:
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


def _checked_compiler(compiler: object, what: str) -> Compiler:
    if callable(compiler):
        return compiler
    raise InputTypeError(
        f"{what} must be callable, not {type(compiler).__name__}",
        why="a compiler is called with (graph_module, example_inputs) and returns a callable",
        fix="pass such a function, a Backend, or the name of a registered one",
    )
