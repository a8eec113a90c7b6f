"""Looks a call up among those compiled before, and keeps those that are compiled now."""

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
from precast.autograd.uncaptured import NotCapturedError, told_of
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
from precast.trace.state.reads import Reads, Variable

if TYPE_CHECKING:
    from precast.trace.executed_code import ExecutedCode

KIND = "calls"
_MOST_ALIKE = 8
"""How many calls that look alike before they are traced are kept: what they do may depend on sizes that are symbols."""
_NAME_SETS = ("functions", "opened", "appended")

_UNCAPTURED = "uncaptured"
_IMPOSSIBLE = "a start without a trace is not possible, since the call depends on %s"
_log = logging.getLogger("precast.autograd")


class WarmStart:
    """One call that is looked for on disk, and kept there once it is compiled.

    Made by ``warm_start``. ``restore`` comes first; while the call is traced, ``watching`` notes what it depends on;
    then ``keep``.
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
        """The call as it was compiled before, if all that it depended on is now as it was then.

        Of several that were compiled for calls that look alike, the one for sizes as those of ``values``. Raises
        ``NotCapturedError`` if the call could not be captured, and ``may_break``: if it may run in pieces.
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
        """The stored variant; None if it is for other sizes."""
        data = content["variant"]
        variant = variant_of(data, values, FoundState(self._function, _reads(content["reads"])))
        if variant is None or not variant.fits_inputs(values):
            return None
        assert variant.guards is not None, "a stored variant has guards"
        return replace(variant, call=call_of(data, self._compilers, compilation, later(variant.guards)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, what the program depends on is noted."""
        from precast.trace.executed_code import noted_code

        self._recorder = DependencyRecorder(self._description)
        with noted_code(self._recorder.observe) as self._executed:
            yield

    def keep(self, variant: CompiledVariant, parts: CallParts | None) -> None:
        """Keep the compiled call, if it can be found again with certainty."""
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
        """Keep that the call could not be captured: it then runs in pieces without being traced again."""
        assert self._recorder is not None, "the call was watched"
        try:
            content = self._dependencies(self._recorder)
        except Indescribable as reason:
            _log.info(_IMPOSSIBLE, reason)
            return
        content[_UNCAPTURED] = told_of(error)
        self._store.put(KIND, self._key, json.dumps(content).encode())

    def _dependencies(self, recorder: DependencyRecorder) -> dict[str, Any]:
        """The names of all that the trace depended on, and a hash of what they stand for. Raises Indescribable."""
        recorder.finish()
        code = list(recorder.code)
        if self._description.reads_caches and ENVIRONMENT not in code:
            code.append(ENVIRONMENT)
        if ENVIRONMENT in code:
            _describe_environment(self._description)
        return {"data": list(recorder.data), "code": code, "digest": self._description.hexdigest()}

    def _put_when_complete(self, content: dict[str, Any], graphs: Mapping[str, CompiledFunction]) -> None:
        """Store the call when all of its graphs can be."""
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
    data = {name: sorted(getattr(reads, name)) for name in _NAME_SETS}
    return data | {"names": None if reads.names is None else sorted(reads.names), "variables": variables}


def _reads(data: Mapping[str, Any]) -> Reads:
    names = None if data["names"] is None else frozenset(data["names"])
    variables: list[Variable] = []
    for module, name in data["variables"]:
        namespace = vars(sys.modules[module]) if module in sys.modules else {}
        if name not in namespace:
            raise Indescribable(f"{module}.{name}, which is not there")
        variables.append((namespace, module, name))
    functions, opened, appended = (frozenset(data[name]) for name in _NAME_SETS)
    return Reads(names, tuple(variables), functions, opened, appended)


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
    """The way to start without a trace; None where compilers cannot, or where the call cannot be told from others.

    Of the values, sizes that are ``symbols`` may be others; those at the positions ``numbers`` stand for Python's.
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
