"""A compiled function: one variant for each kind of call, compiled at the first call of its kind.

A variant serves every later call that is equivalent to tracing: same pytree, dtypes, devices, ranks,
``requires_grad``, grad mode, autocast, Python values, train/eval modes, and sizes (or, if dynamic, sizes that satisfy
the variant's guards). Any other call is recompiled.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from precast.autograd.call_parts import Gradients, Job
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.guards.call_key import (
    PlainTensors,
    ambient_key,
    ambient_of,
    are_modes_watching,
    dynamic_key,
    in_ambient,
)
from precast.autograd.guards.changing_values import ChangingNumbers, SizeRoots, SizesMet, all_sizes, sizes_of_numbers
from precast.autograd.guards.state import StateGuards
from precast.autograd.pieces import Pieces
from precast.autograd.state_slots import ModuleSlots
from precast.autograd.uncaptured import (
    NotCapturedError,
    Region,
    name_of,
    named_modules,
    reported_failures,
    warn_at_users_line,
)
from precast.autograd.variants.compiled import CompiledVariant, EagerVariant
from precast.autograd.variants.table import InputNames, Record, Variant, VariantTable, in_words
from precast.autograd.warm.later import Later
from precast.autograd.warm.start import WarmStart, warm_start
from precast.errors import CaptureError, PrecastError
from precast.graph.compilation import is_compiler_running, new_compilation
from precast.graph.opened_objects import flatten_opened, repeated_tensors
from precast.trace.capture.module_state import WithModules, module_state, root_modules
from precast.trace.graph_breaks import GraphBreak, allowed_breaks
from precast.trace.raising_checks import is_failed_check
from precast.trace.session import ProcessLock, in_tracing_session
from precast.trace.state.reachable import hook_state

if TYPE_CHECKING:
    from precast.graph.boundary import BoundaryFacts
    from precast.trace.capture.number_inputs import NumberInputs
    from precast.trace.record import FlatFunction

_log = logging.getLogger("precast.autograd")
_MANY_VARIANTS = 8
_MOST_VARIANTS = 64
_PLAIN = {torch.Tensor}
_peek_transform = torch._C._functorch.peek_interpreter_stack
# Raised if a program or a compiler cannot use a symbol in place of a number. Errors with other causes recur on retry.
_REFUSALS_OF_NUMBERS = (NotCapturedError, PrecastError, RuntimeError, TypeError, ValueError)


class _Repeated(NamedTuple):
    """The last call, if it repeated the one before: probably the next one, too. The first ``held`` values are fixed."""

    guard_key: tuple[Any, ...]
    held: int
    tensors: PlainTensors
    variant: CompiledVariant

    def is_like(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> bool:
        return self.guard_key == guard_key and self.tensors.are_like(values[self.held :]) and self.variant.fits(values)


class _Call(NamedTuple):
    """A call that no variant serves: its arguments, its flat values, the rest of its guard key, and which values are
    numbers.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: Sequence[Any]
    guard_key: tuple[Any, ...]
    numbers: "NumberInputs | None"


class AotCallable:
    """``function``, compiled; called like it, with its results, effects and gradients.

    ``dynamic`` says whether sizes are symbols; with ``None``, those that change are. The first ``leading_state`` inputs
    persist between calls. With ``graph_breaks``, what cannot be captured runs in Python, and its modules are compiled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        compilers: CompilersInUse,
        *,
        dynamic: bool | None = False,
        order: int = 0,
        leading_state: int = 0,
        logs: bool = True,
        graph_breaks: bool = False,
    ) -> None:
        self._function = function
        self._compilers = compilers
        self._dynamic = dynamic
        self._order = order
        self._leading_state = leading_state
        self._log_level = logging.INFO if logs else logging.DEBUG
        self._variants = VariantTable(dynamic)
        self._latest: CompiledVariant | None = None
        self._repeated: _Repeated | None = None
        self._sizes_met = SizesMet()
        self._numbers = ChangingNumbers(from_start=dynamic is True and not order)
        self._slots: ModuleSlots | None = None
        self._holds_state = compilers.inference.holds_state()
        self._held: list[torch.Tensor] = []
        self._lock = ProcessLock()
        self._warned = self._has_warned_eager = False
        self._graph_breaks = graph_breaks
        self._pieces = Pieces(function, partial(self._compiled_alike, graph_breaks=True))
        self._broken: dict[Any, EagerVariant] = {}
        self._bound_to: dict[Any, AotCallable] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if in_tracing_session() and not is_compiler_running():
            # Called by a function that is being traced: inlined into it.
            return self._function(*args, **kwargs)
        if _peek_transform() is not None or are_modes_watching():
            # Called under vmap, grad or another transform, or under a mode, which must see every operation.
            return self._function(*args, **kwargs)
        if (kwargs or not _PLAIN.issuperset(map(type, args))) and (modules := _modules_among(args, kwargs)):
            return self._call_with_modules(modules, args, kwargs)
        values: Sequence[Any]
        values, guard_key, numbers = self._values(args, kwargs)
        variant = self._find(values, guard_key)
        if variant is None:
            try:
                variant, values = self._compile(_Call(args, kwargs, values, guard_key, numbers))
            except NotCapturedError as failure:
                error, keep = failure.error, failure.keep
            if variant is None:
                return self._run_uncaptured(args, kwargs, error, keep)
        try:
            return variant.run(values, (args, kwargs))
        except Exception as failed:
            if not (is_failed_check(failed) and self._may_run_again(variant)):
                raise
        # A failed check: the graph has written nothing, so rerun the program in eager, which raises its error.
        return self._function(*args, **kwargs)

    def _may_run_again(self, variant: CompiledVariant) -> bool:
        is_graph = not isinstance(variant, EagerVariant) and not self._compilers.disable_functionalization
        return is_graph and not self._order

    def _call_with_modules(
        self, modules: dict[int | str, torch.nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function compiled for these modules: not they are inputs, but their parameters and buffers."""
        key = tuple((place, id(module)) for place, module in modules.items())
        with self._lock:
            bound = self._bound_to.get(key)
            if bound is None:
                bound = self._bound_to[key] = self._compiled_alike(WithModules(self._function, modules))
        others = [each for place, each in enumerate(args) if place not in modules]
        return bound(*others, **{name: each for name, each in kwargs.items() if name not in modules})

    def compile_for(self, *args: Any, **kwargs: Any) -> bool:
        """Compile the variant for a call, without running it; returns whether it is a single graph.

        Raises if it must be one and cannot.
        """
        values, guard_key, numbers = self._values(args, kwargs)
        variant = self._find(values, guard_key)
        if variant is None:
            try:
                variant, _ = self._compile(_Call(args, kwargs, values, guard_key, numbers))
            except NotCapturedError as failure:
                error = failure.error
            if variant is None and not self._graph_breaks:
                raise error
        return variant is not None and not isinstance(variant, EagerVariant)

    def _values(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "tuple[list[Any], tuple[Any, ...], NumberInputs | None]":
        """The module state and leaves of a call, the rest of its guard key, and which values are numbers.

        Numbers that are inputs are among the leaves, and after them.
        """
        leaves: Sequence[Any]
        tree: Any
        if not kwargs and set(map(type, args)) <= _PLAIN:
            # The common case, without the cost of a pytree.
            leaves, tree = args, len(args)
        else:
            leaves, tree = flatten_opened((args, kwargs))
        numbers = self._numbers.inputs_of(tree, leaves)
        if len(set(map(id, leaves))) < len(leaves) and (repeated := repeated_tensors(leaves)):
            tree = (tree, *repeated.items())
        if numbers is not None:
            leaves = numbers.inputs(leaves)
        slots = self._slots
        if self._holds_state and slots is not None:
            return [*self._held, *leaves], (tree, slots.guard_key(), ambient_key()), numbers
        state = None if slots is None else slots.read_current()
        if slots is None or state is None:
            slots = self._slots = ModuleSlots(self._function)
            state = slots.read()
        if self._holds_state:
            self._held = state
        return [*state, *leaves], (tree, slots.guard_key(), ambient_key()), numbers

    def _find(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> CompiledVariant | None:
        repeated = self._repeated
        if repeated is not None and repeated.is_like(values, guard_key):
            return repeated.variant
        found = self._variants.look_up(values, guard_key, has_numbers=bool(self._numbers))
        is_again = found is not None and found is self._latest
        held = len(self._held)
        tensors = PlainTensors.of(values[held:]) if is_again else None
        self._latest, self._repeated = found, None
        if found is not None and tensors is not None:
            self._repeated = _Repeated(guard_key, held, tensors, found)
        return found

    def _compile(self, call: _Call) -> tuple[CompiledVariant, Sequence[Any]]:
        """The variant for a call, and the values to call it with."""
        with self._lock:
            # Another thread may have compiled it meanwhile.
            if (found := self._find(call.values, call.guard_key)) is not None:
                return found, call.values
            if (broken := self._broken.get(call.guard_key[-1])) is not None and broken.fits(call.values):
                return broken, call.values
            names = partial(self._input_names, call.args, call.kwargs)
            reason = self._variants.reason(call.values, call.guard_key, names)
            if self._meet_numbers(call):
                call = _Call(call.args, call.kwargs, *self._values(call.args, call.kwargs))
                if (found := self._find(call.values, call.guard_key)) is not None:
                    return found, call.values
            while True:
                try:
                    variant = self._compile_new(call, reason)
                    break
                except _REFUSALS_OF_NUMBERS as error:
                    if call.numbers is None:
                        raise
                    _log.info("numbers of %s stay constants: %s", self._name, error)
                self._numbers.give_up()
                call = _Call(call.args, call.kwargs, *self._values(call.args, call.kwargs))
                if (found := self._find(call.values, call.guard_key)) is not None:
                    return found, call.values
            self._bound(names)
            return variant, call.values

    def _meet_numbers(self, call: _Call) -> bool:
        """Note the numbers and tensor sizes in which this call differs; returns whether new ones became inputs."""
        if self._order:
            return False
        leaves, tree = flatten_opened((call.args, call.kwargs))
        changed = self._variants.changed_numbers(call.values, call.guard_key)
        resized = () if self._dynamic is False else self._variants.resized_tensors(call.values, call.guard_key)
        # A list, so that both are noted.
        return any([self._numbers.meet(tree, leaves, changed), self._numbers.meet_tensors(resized)])

    def _compile_new(self, call: _Call, reason: str) -> CompiledVariant:
        roots = self._size_roots(call)
        started = time.perf_counter()
        with new_compilation(self._order) as compilation:
            ambient = partial(ambient_of, self._function)
            job = Job(self._compilers, compilation, self._second_order, ambient, tuple(range(self._leading_state)))
            try:
                variant = self._restored_or_compiled(call, job, roots)
            except GraphBreak as found:
                variant = self._broken[call.guard_key[-1]] = self._in_pieces(found)
                reason = f"{reason}; in pieces, since {found.reason}"
        seconds = time.perf_counter() - started
        name = compilation.graph_name("*")
        _log.log(self._log_level, "compiled %s as %s in %.2f s: %s", self._name, name, seconds, reason)
        record = Record(variant, name, datetime.now(), seconds, reason, in_words((call.args, call.kwargs)))
        self._variants.add(call.values, call.guard_key, record, any_size=bool(self._dynamic or roots))
        if variant.replaces_state:
            self._holds_state, self._held = False, []
        self._warn_eager(variant)
        return variant

    def _restored_or_compiled(self, call: _Call, job: Job, roots: SizeRoots) -> CompiledVariant:
        assert self._slots is not None, "state is read before anything is compiled"
        args, kwargs, values, _, numbers = call
        slots = self._slots
        if numbers is not None and numbers.leaves:
            leaves, tree = flatten_opened((args, kwargs))
            args, kwargs = pytree.tree_unflatten(numbers.inputs(leaves)[: len(leaves)], tree)
        start = self._warm_start(call, len(slots), roots)
        if start is not None:
            later = partial(Later, self._function, args, kwargs, slots, job, roots, numbers)
            restored = start.restore(values, job.compilation, later, may_break=self._graph_breaks)
            if restored is not None:
                return restored
        self._compilers.forward.get_ready(slots.read())
        # Imported here: loading the tracer takes longer than a whole warm start.
        from precast.autograd.variants.compile import compile_call

        breaks = nullcontext() if self._order else allowed_breaks()
        try:
            with breaks, _noted_code() if start is None else start.watching():
                variant, parts = compile_call(self._function, args, kwargs, slots, job, roots, numbers)
        except NotCapturedError as failure:
            if start is not None:
                failure.keep = partial(start.keep_uncaptured, failure.error)
            raise
        if isinstance(variant, EagerVariant):
            return replace(variant, function=partial(self._run_in_pieces, None, False))
        if start is not None:
            start.keep(variant, parts)
        return variant

    def _warm_start(self, call: _Call, state_count: int, roots: SizeRoots) -> WarmStart | None:
        """The warm start for this call: its entry in the cache on disk."""
        numbers = call.numbers
        if self._order or self._leading_state or (numbers is not None and numbers.all_places):
            return None
        symbols = {(state_count + leaf, dimension): name for (leaf, dimension), name in roots.items()}
        positions = () if numbers is None else numbers.leaves
        return warm_start(self._function, call.values, call.guard_key, self._compilers, symbols, positions)

    def _run_uncaptured(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, keep: Callable[[], None]
    ) -> Any:
        """Run a call that cannot be captured in Python, and later calls like it; the program's errors are eager's."""
        if not self._graph_breaks:
            raise error
        started = time.perf_counter()
        # Read before the run: a program that creates layers or buffers in its first run has another key afterwards.
        values, guard_key, _ = self._values(args, kwargs)
        results = self._run_in_pieces(error, False, *args, **kwargs)
        keep()
        seconds = time.perf_counter() - started
        reason, arguments = f"in pieces: {error}", in_words((args, kwargs))
        variant = EagerVariant.of(partial(self._run_in_pieces, None, False))
        record = Record(variant, self._name, datetime.now(), seconds, reason, arguments)
        self._variants.add(values, guard_key, record, any_size=self._dynamic is not False)
        return results

    def _in_pieces(self, found: GraphBreak) -> EagerVariant:
        """A variant that runs in Python, guarded by the hooks that caused the graph break."""
        if not self._graph_breaks:
            raise CaptureError(
                f"{self._name} cannot be captured as one graph.",
                why=found.reason,
                fix="Remove the hook while this runs. precast.compile without fullgraph=True runs it in Python, and "
                "compiles the modules around it.",
            ) from None
        run = partial(self._run_in_pieces, None, found.module is self._function)
        return EagerVariant.of(run, StateGuards(hook_state(found.module)))

    def _run_in_pieces(self, error: Exception | None, below_hooks: bool, /, *args: Any, **kwargs: Any) -> Any:
        """Run in Python, with modules compiled, what cannot be one graph because of hooks or a capture ``error``."""
        named = [module for root in named_modules(self._function).values() for module in root.modules()]
        modules = named if self._slots is None else [*self._slots.modules, *named]
        with reported_failures(self._function, error):
            return self._pieces.run(args, kwargs, modules, below_hooks=below_hooks)

    def _compiled_alike(self, function: Callable[..., Any], *, graph_breaks: bool | None = None) -> "AotCallable":
        graph_breaks = self._graph_breaks if graph_breaks is None else graph_breaks
        return AotCallable(function, self._compilers, dynamic=self._dynamic, graph_breaks=graph_breaks)

    def _size_roots(self, call: _Call) -> SizeRoots:
        assert self._slots is not None, "state is read before anything is compiled"
        leaves = call.values[len(self._slots) :]
        changing = {} if call.numbers is None else sizes_of_numbers(call.numbers, leaves)
        if self._dynamic is None:
            return {**changing, **self._sizes_met.changing((*call.guard_key, dynamic_key(call.values)), leaves)}
        return all_sizes(leaves) if self._dynamic else changing

    def _second_order(self, function: "FlatFunction", facts: "BoundaryFacts") -> Gradients:
        """The gradients of a compiled call as a compiled function, made when they are first differentiated."""
        from precast.trace.joint import gradient_function

        made: dict[tuple[bool, ...], AotCallable] = {}
        ambient, is_enabled, count = ambient_of(self._function), torch.is_grad_enabled(), len(facts.inputs)
        compilers = replace(self._compilers, disable_functionalization=False)

        def gradients(values: Sequence[Any]) -> Sequence[Any]:
            given = tuple(tangent is not None for tangent in values[count:])
            if given not in made:
                with torch.set_grad_enabled(is_enabled):
                    run = in_ambient(ambient, gradient_function(function, facts.with_tangents(given)))
                made[given] = AotCallable(run, compilers, order=self._order + 1)
            found: Sequence[Any] = made[given](*(value for value in values if value is not None))
            return found

        return gradients

    def _bound(self, names: InputNames) -> None:
        """Bound the number of variants, and warn once about what makes it grow."""
        count = len(self._variants)
        if count > _MANY_VARIANTS and not self._warned:
            self._warned = True
            warn_at_users_line(
                f"{self._name} was compiled {count} times. What keeps changing: "
                f"{self._variants.what_keeps_changing(names)}. Compile with dynamic=True if sizes or numbers differ "
                "from call to call, and keep other Python values the same; precast.variants() lists them."
            )
        while len(self._variants) > _MOST_VARIANTS:
            self._variants.drop_oldest()
            self._latest = self._repeated = None
            _log.info("dropped the oldest variant of %s: more than %d are kept", self._name, _MOST_VARIANTS)

    def _warn_eager(self, variant: CompiledVariant) -> None:
        """Warn once that calls are not compiled, and why."""
        if isinstance(variant, EagerVariant) and variant.reads and not self._has_warned_eager:
            self._has_warned_eager = True
            warn_at_users_line(
                f"{self._name} runs uncompiled, since it reads values that a compiled graph would make constants: "
                f"{'; '.join(variant.reads[:3])}. Pass such values as arguments, or read them outside."
            )

    def _input_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Names for the values of a call: the path for state, the argument's name for leaves."""
        from precast.trace.capture.call import flatten_call

        state = [item.target for item in module_state(root_modules(self._function))]
        numbers = self._numbers.inputs_of(*reversed(flatten_opened((args, kwargs))))
        places = () if numbers is None else numbers.all_places
        names = flatten_call(self._function, args, kwargs, checks_leaves=False).names
        return [*state, *names, *(place.path for place in places)]

    def variants(self) -> list[Variant]:
        """All variants that are kept, in the order of compilation."""
        own = [record.described(self._function) for record in self._variants.records()]
        others = (*self._bound_to.values(), *self._pieces.compiled())
        return [*own, *(variant for each in others for variant in each.variants())]

    def regions(self) -> list[Region]:
        """The regions that run in Python and those that are compiled, the outermost first."""
        records = self._variants.records()
        own = [Region(self._function, isinstance(each.variant, EagerVariant), each.reason) for each in records]
        others = (*self._bound_to.values(), *self._pieces.compiled())
        return [*own, *(region for each in others for region in each.regions())]

    @property
    def compilers(self) -> CompilersInUse:
        """The compilers in use."""
        return self._compilers

    @property
    def dynamic(self) -> bool | None:
        """Whether sizes are symbols; with None, those that change are."""
        return self._dynamic

    @property
    def _name(self) -> str:
        return name_of(self._function)


def _modules_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, torch.nn.Module]:
    """The arguments that are modules, by position or name."""
    given: tuple[tuple[int | str, Any], ...] = (*enumerate(args), *kwargs.items())
    return {place: each for place, each in given if isinstance(each, torch.nn.Module)}


def _noted_code() -> AbstractContextManager[Any]:
    from precast.trace.executed_code import noted_code

    return noted_code(lambda executed: None)
