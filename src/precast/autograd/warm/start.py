"""Looks a call up among those stored on disk, and stores newly compiled ones."""

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precast.autograd.call_parts import CallParts
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.guards.state import StateGuards
from precast.autograd.uncaptured import NotCapturedError, failure_texts
from precast.autograd.variants.compiled import CompiledVariant
from precast.autograd.warm.call_identity import describe_call, environment
from precast.autograd.warm.dependencies import ENVIRONMENT, Dependency, DependencyRecorder, describe
from precast.autograd.warm.description import Description, refusing_unruly
from precast.autograd.warm.later import Later
from precast.autograd.warm.stored_variant import (
    FoundState,
    call_of,
    compilers_by_kind,
    graph_data,
    variant_data,
    variant_of,
)
from precast.backend import CompiledFunction, Compiler
from precast.cache import Indescribable, Store, content_key, open_store
from precast.errors import CaptureError, PrecastError
from precast.graph.compilation import Compilation
from precast.options import as_options
from precast.trace.state.reads import MODULES, Reads, Variable

if TYPE_CHECKING:
    from precast.trace.executed_code import ExecutedCode

KIND = "calls"
_MOST_ALIKE = 8
"""How many calls with the same identity are stored: they may differ in guards on symbolic sizes."""
_NAME_SETS = ("functions", "opened", "appended")

_UNCAPTURED = "uncaptured"
_IMPOSSIBLE = "a start without a trace is not possible, since the call depends on %s"
_log = logging.getLogger("precast.autograd")


class WarmStart:
    """One call that is looked up on disk, and stored there once it is compiled.

    Made by ``warm_start``. First comes ``restore``; if that fails, the call is traced under ``watching``, which records
    its dependencies; then ``keep``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        description: Description,
        compilers: Mapping[str, Compiler],
        store: Store,
    ) -> None:
        self._function = function
        self._description = description
        self._compilers = compilers
        self._store = store
        self._key = ""
        self._recorder: DependencyRecorder | None = None
        self._executed: ExecutedCode | None = None

    def restore(
        self,
        values: Sequence[Any],
        compilation: Compilation,
        later: Callable[[StateGuards], Later],
        *,
        may_break: bool,
    ) -> CompiledVariant | None:
        """The stored variant of the call, if its dependencies are unchanged.

        Of several for calls with the same identity, the one whose size guards hold for ``values``. Raises
        ``NotCapturedError`` if the call is stored as impossible to capture, provided that graph breaks are allowed
        (``may_break``).
        """
        for number in range(_MOST_ALIKE):
            self._key = content_key([self._description.hexdigest(), str(number)])
            found = self._store.get(KIND, self._key)
            if found is None:
                return None
            content = json.loads(found)
            now = self._description.copy()
            try:
                with refusing_unruly():
                    _describe_all(content, now)
                if now.hexdigest() == content["digest"] and (may_break or _UNCAPTURED not in content):
                    _raise_uncaptured(content)
                    variant = self._variant(content, values, compilation, later)
                    if variant is None:
                        continue
                    return variant
                _log.info("traced again, since code or data that the program reads have changed")
            except (Indescribable, PrecastError) as error:
                _log.info("traced again: %s", error)
            self._store.discard(KIND, self._key)
            return None
        return None

    def _variant(
        self,
        content: Mapping[str, Any],
        values: Sequence[Any],
        compilation: Compilation,
        later: Callable[[StateGuards], Later],
    ) -> CompiledVariant | None:
        """Rebuild the stored variant; None if it is for other sizes."""
        data = content["variant"]
        variant = variant_of(data, values, FoundState(self._function, _reads(content["reads"])))
        if variant is None or not variant.fits_inputs(values):
            return None
        assert variant.guards is not None, "a stored variant has guards"
        return replace(variant, call=call_of(data, self._compilers, compilation, later(variant.guards)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, record what the program depends on."""
        from precast.trace.executed_code import noted_code

        self._recorder = DependencyRecorder(self._description)
        with noted_code(self._recorder.observe) as self._executed:
            yield

    def keep(self, variant: CompiledVariant, parts: CallParts | None) -> None:
        """Store the compiled call, if its identity and dependencies can be described."""
        assert self._recorder is not None, "the call was watched"
        assert self._executed is not None, "the call was watched"
        try:
            if parts is None or not self._executed.is_complete:
                raise Indescribable("inputs that overlap, or a debugger at work")
            if parts.training is not None and self._recorder.runs_in_backward:
                raise Indescribable("code that runs in the backward")
            reads = Reads.of(self._executed)
            data = variant_data(variant, parts, FoundState(self._function, reads))
            content = self._dependencies(self._recorder)
        except Indescribable as reason:
            _log.info(_IMPOSSIBLE, reason)
            return
        content |= {"reads": _reads_data(reads), "variant": data}
        self._put_when_complete(content, parts.graphs)

    def keep_uncaptured(self, error: Exception) -> None:
        """Store that the call could not be captured: later processes run it in pieces without tracing it."""
        assert self._recorder is not None, "the call was watched"
        try:
            content = self._dependencies(self._recorder)
        except Indescribable as reason:
            _log.info(_IMPOSSIBLE, reason)
            return
        content[_UNCAPTURED] = failure_texts(error)
        self._store.put(KIND, self._key, json.dumps(content).encode())

    def _dependencies(self, recorder: DependencyRecorder) -> dict[str, Any]:
        """The names of everything that the trace depended on, and a hash of their values. Raises Indescribable."""
        recorder.finish()
        code = list(recorder.code)
        if self._description.reads_caches and ENVIRONMENT not in code:
            code.append(ENVIRONMENT)
        if ENVIRONMENT in code:
            _describe_environment(self._description)
        return {"data": list(recorder.data), "code": code, "digest": self._description.hexdigest()}

    def _put_when_complete(self, content: dict[str, Any], graphs: Mapping[str, CompiledFunction]) -> None:
        """Store the call once all of its graphs are complete."""
        compilers, store, key, remaining = self._compilers, self._store, self._key, len(graphs)

        def put() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining:
                return
            try:
                stored = {kind: graph_data(graph, compilers[kind]) for kind, graph in graphs.items()}
            except Indescribable as reason:
                _log.info(_IMPOSSIBLE, reason)
                return
            content["variant"]["graphs"] = stored
            store.put(KIND, key, json.dumps(content).encode())

        for kind, graph in graphs.items():
            compilers[kind].when_complete(graph, put)


def _raise_uncaptured(content: Mapping[str, Any]) -> None:
    if _UNCAPTURED in content:
        at, why, fix = content[_UNCAPTURED]
        raise NotCapturedError(CaptureError(why, at=at or None, why="", fix=fix))


def _describe_all(content: Mapping[str, Any], description: Description) -> None:
    names: list[Dependency] = [(module, name) for module, name in (*content["data"], *content["code"])]
    describe([name for name in names if name != ENVIRONMENT], description)
    if ENVIRONMENT in names:
        _describe_environment(description)


def _reads_data(reads: Reads) -> dict[str, Any]:
    variables = [(module, name) for _, module, name in reads.variables]
    unbound = [(module, name) for _, module, name in reads.unbound]
    data = {name: sorted(getattr(reads, name)) for name in _NAME_SETS}
    names = None if reads.names is None else sorted(reads.names)
    return data | {"names": names, "variables": variables, "unbound": unbound}


def _reads(data: Mapping[str, Any]) -> Reads:
    names = None if data["names"] is None else frozenset(data["names"])
    variables, unbound = list(map(_variable, data["variables"])), list(map(_variable, data["unbound"]))
    for found, is_bound in ((variables, True), (unbound, False)):
        for namespace, module, name in found:
            if (name in namespace) is not is_bound:
                raise Indescribable(f"{module}.{name}, which is {'not ' if is_bound else ''}there")
    functions, opened, appended = (frozenset(data[name]) for name in _NAME_SETS)
    return Reads(names, tuple(variables), functions, opened, appended, tuple(unbound))


def _variable(dependency: Sequence[str]) -> Variable:
    module, name = dependency
    if module == MODULES:
        return sys.modules, module, name
    return vars(sys.modules[module]) if module in sys.modules else {}, module, name


def _describe_environment(description: Description) -> None:
    for word in environment():
        description.word(word)


def warm_start(
    function: Callable[..., Any],
    values: Sequence[Any],
    guard_key: tuple[Any, ...],
    compilers: CompilersInUse,
    symbols: Mapping[tuple[int, int], str],
    numbers: Collection[int] = (),
) -> WarmStart | None:
    """The warm start for a call; None if the compilers do not support it, or the call cannot be described.

    Sizes that are ``symbols`` may differ; values at the positions ``numbers`` stand for Python numbers.
    """
    able = compilers_by_kind(compilers)
    if able is None:
        return None
    try:
        with refusing_unruly():
            description = describe_call(function, values, guard_key, compilers, symbols, numbers)
    except Indescribable as reason:
        _log.info("traced, since the call depends on %s", reason)
        return None
    options = as_options(compilers.forward.options)
    return WarmStart(function, description, able, open_store(options))
