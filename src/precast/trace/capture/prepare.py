"""Turns a user's callable into a flat function on fake tensors that later stages can trace.

Before: ``model(x, mask=m)`` over real tensors.
After:  ``flat(p_weight, b_mean, c_scale, x, mask) -> [outputs]`` and fake inputs for it, state first.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.errors import CaptureError, InputTypeError, StateMutationError
from precast.events import stage
from precast.graph.boundary import NO_GRADIENTS, GradientInputs
from precast.graph.opened_objects import PLAIN_TYPES, repeated_tensors
from precast.graph.signature import InputKind
from precast.graph.sizes import LEAST_NUMBER, SizeRange
from precast.trace.backward_runs import BackwardRuns, GradientSearch, gradient_inputs, noting_backwards
from precast.trace.cached_functions import forgotten_results
from precast.trace.capture.argument_containers import WatchedContainers
from precast.trace.capture.call import FlatCall, as_identifier, check_tensors, flatten_call, shape_env_of
from precast.trace.capture.dims import DerivedDim, Dim, DimHint, DimSpec
from precast.trace.capture.dynamic_shapes import (
    LeafDims,
    NumberDim,
    TensorDims,
    normalize_dynamic_shapes,
    root_example,
)
from precast.trace.capture.failures import explained_failures
from precast.trace.capture.module_state import (
    StateTensor,
    constant_names,
    module_names,
    module_state,
    root_modules,
    unsaved_tensors,
)
from precast.trace.capture.number_inputs import NumberInputs
from precast.trace.capture.own_backwards import running_own_backwards
from precast.trace.capture.stand_ins import averages_by_tensors, steps_as_numbers
from precast.trace.captured_tensors import CapturedTensors, meeting_nothing
from precast.trace.constant_arguments import check_is_same, constants_among, small_numbers
from precast.trace.decisions import MOST_FORKS, Decisions, UndecidedError
from precast.trace.eager.fake_mode import dispatch_for
from precast.trace.fake_inputs import DimensionPlan, DynamicSize, FakeInputs, fresh_copies
from precast.trace.graph_breaks import breaks_at_hooks
from precast.trace.provenance import innermost_users_line, run_users_code
from precast.trace.session import unchanged_modes
from precast.trace.state.places import Home
from precast.trace.state.python_state import watched_python_state
from precast.trace.state.references import Reference, References
from precast.trace.state.snapshot import Write, Writes
from precast.trace.state.stored import NOTHING_STORED, Stored
from precast.trace.tensor_facts import NOTHING_ASKED, AskedFacts

_PREFIXES = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.CONSTANT_TENSOR: "c_"}


class FlatCallable:
    """The user's callable over flat inputs: state first, then the leaves of its arguments.

    Wherever the program uses a tensor of the state, it gets the input instead. ``out_tree``, the tree of the results,
    is known after the first run. With ``returns_changes``, a container of the arguments among the results becomes an
    ``ArgumentContainer``; if the program changed any (``has_changes``), the result is a pair with their new contents.
    With ``returns_leaks``, the result is a pair with the traced values that the program left in Python state
    (``stored``); with ``returns_writes``, its writes to Python state (``writes``) follow. Last comes the new ``.grad``
    of the inputs whose ``.grad`` was replaced (``gradient_owners``). ``spent`` are the results through which the
    program has already run a backward. ``constants`` are leaves that are constants of the program, by position; with
    ``knows_state``, small numbers in the state are, too. ``repeated`` leaves are the same tensors as earlier ones.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        state: Sequence[torch.Tensor],
        tree: pytree.TreeSpec,
        *,
        returns_changes: bool = False,
        returns_writes: bool = False,
        returns_leaks: bool = False,
        numbers: NumberInputs | None = None,
        gradients: GradientInputs | None = None,
        decisions: Decisions | None = None,
        meets_nothing: bool = False,
        constants: Mapping[int, tuple[str, torch.Tensor]] | None = None,
        knows_state: bool = False,
        repeated: Mapping[int, int] | None = None,
    ) -> None:
        self._function = function
        self._state = tuple(state)
        self._tree = tree
        self._returns_changes = returns_changes
        self._returns_writes = returns_writes
        self._returns_leaks = returns_leaks
        self._numbers = numbers or NumberInputs()
        self._gradients = gradients or NO_GRADIENTS
        self._decisions = decisions or Decisions()
        self._meets_nothing = meets_nothing
        self._constants = constants or {}
        self._repeated = repeated or {}
        self._known_state = small_numbers(unsaved_tensors(root_modules(function))) if knows_state else None
        self.out_tree: pytree.TreeSpec | None = None
        self.has_changes = False
        self.writes: Writes = Writes()
        self.stored = NOTHING_STORED
        self.gradient_owners: tuple[int, ...] = ()
        self.spent: tuple[int, ...] = ()
        self.runs_backward = False
        self.applies_transforms = False
        self.asked = NOTHING_ASKED

    def __call__(self, *flat: Any) -> list[Any]:
        inputs, gradients = self._gradients.split(flat)
        stand_ins = dict(zip(map(id, self._state), inputs, strict=False))
        self._gradients.put(inputs, gradients)
        versions = [_version(value) for value in inputs]
        backwards = BackwardRuns()
        program = noting_backwards(self._function, backwards)
        captured = meeting_nothing(stand_ins) if self._meets_nothing else CapturedTensors(stand_ins)
        outputs = self._run(program, captured, inputs[len(self._state) :])
        if backwards.has_run:
            captured.note_own_run()
        changed = [value for value, version in zip(inputs, versions, strict=True) if _version(value) != version]
        outputs = self._without_spent(outputs, backwards, changed)
        self.runs_backward = backwards.has_run
        written = self._gradients.written(inputs, gradients)
        self.gradient_owners = tuple(written)
        return [*outputs, *written.values()]

    def _without_spent(self, outputs: list[Any], backwards: BackwardRuns, changed: Sequence[torch.Tensor]) -> list[Any]:
        values = {id(output): output for output in outputs if backwards.has_spent(output, changed)}
        self.spent = tuple(position for position, output in enumerate(outputs) if id(output) in values)
        detached = {key: value.detach() for key, value in values.items()}
        return [detached.get(id(output), output) for output in outputs]

    def discover(
        self, flat: Sequence[Any], make_stand_in: Callable[[torch.Tensor], torch.Tensor], gradients: GradientSearch
    ) -> list[torch.Tensor]:
        """Run once to find the tensors that the program uses beyond its known state."""
        captured = CapturedTensors(dict(zip(map(id, self._state), flat, strict=False)), make_stand_in, gradients)
        backwards = BackwardRuns()
        program = running_own_backwards(self._function, backwards, captured, flat)
        self._run(program, captured, flat[len(self._state) :])
        self.applies_transforms = captured.applies_transforms
        self.asked = AskedFacts(frozenset(captured.asked), frozenset(captured.looked_up_in_vain))
        self.runs_backward = backwards.has_run
        gradients.finish(runs_backward=backwards.has_run)
        return captured.discovered

    def _with_constants(self, leaves: Sequence[Any], captured: CapturedTensors) -> list[Any]:
        leaves = list(leaves)
        for position, first in self._repeated.items():
            leaves[position] = leaves[first]
        for position, (path, tensor) in self._constants.items():
            with captured.exchanged():
                check_is_same(leaves[position], tensor, path)
            leaves[position] = captured.constants.add(tensor, leaves[position])
        captured.constants.takes_numbers = self._known_state is not None
        for path, tensor in (self._known_state or {}).items():
            stand_in = captured.substitute(tensor)
            with captured.exchanged():
                check_is_same(stand_in, tensor, path)
            captured.constants.add_state(tensor, stand_in)
        return leaves

    def _run(self, program: Callable[..., Any], captured: CapturedTensors, inputs: Sequence[Any]) -> list[Any]:
        leaves = self._with_constants(self._numbers.leaves_of(inputs), captured)
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        containers = WatchedContainers((args, kwargs) if self._returns_changes else ())

        def update_buffer(buffer: torch.Tensor, value: torch.Tensor) -> None:
            captured.constants.check_not_stored([value])
            stand_in = captured.substitute(buffer)
            if stand_in.shape != value.shape or stand_in.dtype != value.dtype:
                raise StateMutationError(
                    "The program replaces a buffer by a tensor of another shape or dtype.",
                    at=innermost_users_line(),
                    why=f"{stand_in.dtype} {tuple(stand_in.shape)} would become {value.dtype} {tuple(value.shape)}",
                    fix="Keep the buffer's shape, or return the tensor instead.",
                )
            stand_in.copy_(value)

        captured.printed = [] if self._returns_writes else None
        watched = watched_python_state(
            self._function, update_buffer, returns_writes=self._returns_writes, allows_leaks=self._returns_leaks
        )
        numbers = self._numbers.put(inputs)
        with (
            explained_failures(),
            numbers,
            watched as written,
            captured.exchanged(),
            averages_by_tensors(),
            steps_as_numbers(),
            breaks_at_hooks(),
            forgotten_results(),
            unchanged_modes() if self._returns_writes else nullcontext(),
        ):
            result = self._decisions.run(partial(run_users_code, program), args, kwargs)
        captured.constants.check_unwritten()
        captured.constants.check_not_stored(write.values for write in written.writes)
        changes = containers.changes()
        self.has_changes = bool(changes)
        results = (result, changes) if changes else result
        if self._returns_leaks:
            references = References(containers, written.homes, (results, [write.values for write in written.writes]))
            self.stored = Stored.of(written.writes, references)
            results = (results, self.stored.traced)
        if not self._returns_writes:
            references = References(containers, {}, ())
            outputs, self.out_tree = references.flatten(results)
            _check_outputs(outputs)
            return [captured.returned(output) for output in outputs]
        writes = [*written.writes, *map(Write.of_printed, captured.printed or ())]
        references = References(containers, written.homes, (results, [write.values for write in writes]))
        outputs, self.out_tree = references.flatten(results)
        _check_outputs(outputs)
        leaves, self.writes = Writes.of(writes, references)
        return [captured.substitute(output) for output in (*outputs, *leaves)]


@dataclass(frozen=True)
class PreparedCall:
    """A call that is ready to be traced.

    ``flat(*fake_inputs)`` runs it; ``state`` are the real tensors of the first inputs, in order.
    """

    flat: FlatCallable
    call: FlatCall
    state: tuple[StateTensor, ...]
    fakes: FakeInputs
    fake_inputs: tuple[Any, ...]
    input_names: tuple[str, ...]
    module_names: Mapping[int, str]
    gradients: GradientInputs = NO_GRADIENTS
    exchanged: frozenset[Home] = frozenset()
    """The places in Python state that the program assigns."""
    decisions: Decisions = field(default_factory=Decisions)
    """The program's branches on data-dependent values."""
    constants: Mapping[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    """Tensors among the arguments that are constants of the program, by position: their path and value."""
    applies_transforms: bool = False
    """Whether the program itself applies transforms of ``torch.func``."""
    asked: AskedFacts = NOTHING_ASKED


@stage
def prepare(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    size_roots: Mapping[tuple[int, int], str] | None = None,
    keeps_writes: bool = False,
    numbers: NumberInputs | None = None,
    takes_fakes: bool = False,
    may_fork: bool = False,
    returns_leaks: bool = False,
    meets_nothing: bool = False,
    constant_arguments: Sequence[str] = (),
    knows_state: bool = False,
) -> PreparedCall:
    """Flatten the call, find its state, make fake inputs. Must run inside a ``tracing_session``.

    ``size_roots`` names the symbols of sizes by leaf and dimension, instead of ``dynamic_shapes``. ``keeps_writes``:
    the program may leave tensors in Python state; the caller will put them there. ``numbers`` become inputs, too; those
    among the leaves have been replaced already. ``takes_fakes``: inputs and state may be fake tensors, whose sizes are
    kept. ``may_fork``: a data-dependent branch becomes a ``cond``. ``returns_leaks``: tensors left in Python state are
    results. ``meets_nothing``: no discovery run; a use of tensors beyond the known state raises ``UnknownStateError``.
    ``constant_arguments`` and, if it ``knows_state``, small numbers in the state are constants, which each run checks.
    """
    call = _with_numbers(flatten_call(function, args, kwargs), numbers)
    roots = root_modules(function)
    state = module_state(roots)
    fakes = _fakes_for(call, state, takes_fakes=takes_fakes)
    dims = normalize_dynamic_shapes(function, args, kwargs or {}, dynamic_shapes) if size_roots is None else None
    fake_leaves = _fake_leaves(fakes, call.leaves, dims, size_roots or {})
    fake_state = [fakes.fake(item.tensor) for item in state]
    decisions = Decisions(MOST_FORKS if may_fork else 0)
    constants = constants_among(constant_arguments, call)
    repeated = repeated_tensors(call.leaves) if keeps_writes else {}
    flat_over = partial(FlatCallable, function, tree=call.tree, numbers=numbers, returns_leaks=returns_leaks)
    flat_over = partial(flat_over, decisions=decisions, constants=constants, knows_state=knows_state, repeated=repeated)
    tensors = [*(item.tensor for item in state), *call.leaves]
    first = flat_over(state=tensors[: len(state)], returns_writes=keeps_writes)
    met = _NOTHING if meets_nothing else _discover(first, tensors, [*fake_state, *fake_leaves], fakes, decisions)
    if not keeps_writes:
        met.refuse_gradients()
    state += _constants(met.discovered, constant_names(roots, function))
    gradients = gradient_inputs(met.gradients, values := [*(item.tensor for item in state), *call.leaves])
    inputs = (*fake_state, *met.stand_ins, *fake_leaves)
    return PreparedCall(
        flat=flat_over(state=values[: len(state)], gradients=gradients, meets_nothing=meets_nothing),
        call=call,
        state=tuple(state),
        fakes=fakes,
        fake_inputs=(*inputs, *_fake_gradients(gradients, inputs, values, fakes)),
        input_names=_input_names(state, call),
        module_names=module_names(roots),
        gradients=gradients,
        exchanged=frozenset(home for write in first.writes.writes for home in write.homes),
        decisions=decisions,
        constants=constants,
        applies_transforms=first.applies_transforms,
        asked=first.asked,
    )


def _fake_leaves(
    fakes: FakeInputs, leaves: Sequence[Any], dims: Sequence[LeafDims] | None, roots: Mapping[tuple[int, int], str]
) -> list[Any]:
    """Fakes of the arguments, with sizes as in ``dims``, or with the symbols that ``roots`` names."""
    if dims is None:
        return [_fake_of_roots(fakes, number, leaf, roots) for number, leaf in enumerate(leaves)]
    return [_fake_leaf(fakes, leaf, dim) for leaf, dim in zip(leaves, dims, strict=True)]


def _fakes_for(call: FlatCall, state: Sequence[StateTensor], *, takes_fakes: bool) -> FakeInputs:
    """Fake inputs over the shape environment of inputs that are fake already, if there are any and they may be."""
    check_tensors(call, state, takes_fakes=takes_fakes)
    fakes = FakeInputs(shape_env_of(call, state))
    fakes.bind(call.leaves)
    return fakes


def _constants(tensors: Sequence[torch.Tensor], names: Mapping[int, str]) -> list[StateTensor]:
    unnamed = (f"lifted_tensor_{number}" for number in count())
    return [StateTensor(names.get(id(t)) or next(unnamed), InputKind.CONSTANT_TENSOR, t) for t in tensors]


def _input_names(state: Sequence[StateTensor], call: FlatCall) -> tuple[str, ...]:
    """Unique names, state first, as PyTorch spells them; where two clash, the argument keeps its name."""
    state_names = [as_identifier(_PREFIXES[item.kind] + item.target.removeprefix("self_").lower()) for item in state]
    names = unique_names([*call.names, *state_names])
    return (*names[len(call.names) :], *names[: len(call.names)])


@dataclass(frozen=True)
class _Met:
    """What the discovery run found: tensors beyond the known state, and tensors whose ``.grad`` the program uses."""

    discovered: list[torch.Tensor]
    stand_ins: list[torch.Tensor]
    gradients: list[torch.Tensor]
    line: str | None

    def refuse_gradients(self) -> None:
        """Raise if the program uses gradients that existed before the call."""
        if any(tensor.grad is not None for tensor in self.gradients):
            raise CaptureError(
                "The program uses .grad of its inputs or parameters from before the call.",
                at=self.line,
                why="a captured program has no gradients except those that it computes itself",
                fix="Compile the function with precast.compile, or use torch.autograd.grad inside of it.",
            )


_NOTHING = _Met([], [], [], None)


def _discover(
    flat: FlatCallable, tensors: Sequence[Any], fake_tensors: Sequence[Any], fakes: FakeInputs, decisions: Decisions
) -> _Met:
    known: list[torch.Tensor] = []
    while True:
        fake_constants: list[torch.Tensor] = []

        def make_stand_in(tensor: torch.Tensor, made: list[torch.Tensor] = fake_constants) -> torch.Tensor:
            made.append(fakes.fake(tensor))
            (copy,) = fresh_copies(made[-1:])
            assert isinstance(copy, torch.Tensor), "copies of tensors are tensors"
            return copy

        with fakes.mode, dispatch_for(fake_tensors), fakes.unrecorded():
            # The run may resize or transpose its inputs, and the trace that follows needs them unchanged.
            copies = fresh_copies(fake_tensors)
            search = GradientSearch(known)
            for tensor, copy in zip(tensors, copies, strict=True):
                if isinstance(tensor, torch.Tensor):
                    search.meet(tensor, copy)
            try:
                discovered = flat.discover(copies, make_stand_in, search)
            except UndecidedError as stop:
                stop.decisions.goes_on(stop.place)
                continue
            except Exception as error:
                if decisions.ends_in(error):
                    continue
                raise
        if (trying := decisions.trying()) is not None:
            trying.goes_on()
            continue
        known = list(search.found.values())
        if not search.is_late:
            return _Met(discovered, fake_constants, known, search.lines[0] if search.lines else None)


def _fake_gradients(
    gradients: GradientInputs, inputs: Sequence[Any], tensors: Sequence[Any], fakes: FakeInputs
) -> list[torch.Tensor]:
    """Fakes for the owners' ``.grad``, with the symbolic sizes of the owners."""
    made = []
    for owner, is_present in zip(gradients.owners, gradients.present, strict=True):
        if is_present:
            like = inputs[owner]
            if any(isinstance(size, torch.SymInt) for size in like.shape):
                with fakes.mode:
                    made.append(torch.empty_like(like, requires_grad=False))
            else:
                made.append(fakes.fake(tensors[owner].grad))
    return made


def _with_numbers(call: FlatCall, numbers: NumberInputs | None) -> FlatCall:
    """The call with one more leaf for every number, or changing tensor, in Python state."""
    if numbers is None:
        return call
    paths = tuple(place.path for place in numbers.all_places)
    leaves = (*call.leaves, *numbers.read_inputs())
    return FlatCall(leaves, call.tree, (*call.names, *map(as_identifier, paths)), (*call.paths, *paths))


def _fake_of_roots(fakes: FakeInputs, number: int, leaf: Any, roots: Mapping[tuple[int, int], str]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    plan: list[DimensionPlan] = [None] * leaf.dim()
    for dimension, size in enumerate(leaf.shape):
        if (name := roots.get((number, dimension))) is not None:
            fakes.declare(name, example=size, seen_at=name)
            plan[dimension] = DynamicSize(name)
    return fakes.fake(leaf, plan)


def _fake_leaf(fakes: FakeInputs, leaf: Any, dims: LeafDims) -> Any:
    if isinstance(dims, NumberDim):
        if isinstance(dims.spec, DimHint) and dims.spec.name is None and not dims.spec.is_static:
            bounds = (dims.spec.min, dims.spec.max)
            return fakes.number(dims.path, leaf, SizeRange(LEAST_NUMBER if bounds[0] is None else bounds[0], bounds[1]))
        return fakes.size(_plan(fakes, dims.spec, leaf, dims.path), leaf)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    assert isinstance(dims, TensorDims), "every tensor leaf has an entry"
    return fakes.fake(leaf, [_plan(fakes, spec, size, path) for path, spec, size in dims.described()])


def _plan(fakes: FakeInputs, spec: DimSpec, size: int, path: str) -> DimensionPlan:
    if isinstance(spec, DimHint) and not spec.is_static:
        root = spec.name or path
        fakes.declare(root, example=size, seen_at=path, size_range=spec.range)
        return DynamicSize(root)
    if isinstance(spec, (Dim, DerivedDim)):
        dim, example = root_example(spec, size, path)
        fakes.declare(dim.name, example=example, seen_at=path, size_range=dim.range)
        return DynamicSize(dim.name) if isinstance(spec, Dim) else DynamicSize(dim.name, spec.scale, spec.offset)
    return None


def _version(value: Any) -> int:
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if is_counted else 0


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a numeric suffix on repeated ones; an existing suffix is counted up."""
    taken = {"self"}  # the first argument of the graph module's forward
    unique: list[str] = []
    for name in names:
        stem, _, number = name.rpartition("_")
        stem, count = (stem, int(number)) if stem and number.isdigit() else (name, 0)
        while name in taken:
            count += 1
            name = f"{stem}_{count}"
        taken.add(name)
        unique.append(name)
    return unique


def _check_outputs(outputs: Sequence[Any]) -> None:
    """Refuse results that a graph cannot return."""
    for output in outputs:
        if not isinstance(output, (torch.Tensor, *PLAIN_TYPES, Reference)):
            raise InputTypeError(
                f"The program returns a {type(output).__name__}.",
                why="results are tensors, plain Python values, and containers of them",
                fix="Return its tensors, or register the type with torch.utils._pytree.register_pytree_node.",
            )
