"""A compiled variant of a function, with the guards that decide which calls it serves.

Before: ``values``, the module state and the leaves of a call that fits
After:  ``CompiledVariant.run(values)``, what the user's function returns
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.boundary import FlatCall
from precast.autograd.guards.call_key import PlainTensors, is_resized, static_key
from precast.autograd.guards.state import StateGuards
from precast.errors import InputValueError
from precast.graph.boundary import NO_GRADIENTS, GradientInputs, has_hooks
from precast.graph.opened_objects import unflatten
from precast.trace.capture.argument_containers import ArgumentContainer, apply_changes, argument_containers
from precast.trace.state.places import NOWHERE, Place, Readings
from precast.trace.state.references import KeptContainer, with_shared
from precast.trace.tensor_facts import NOTHING_ASKED, AskedFacts

if TYPE_CHECKING:
    from precast.autograd.boundary.overlapping_inputs import DuplicatePlan, SyntheticBasePlan, WrittenParts
    from precast.autograd.guards.sizes import SizeCheck
    from precast.trace.state.snapshot import Writes


@dataclass(frozen=True)
class Overlap:
    """The inputs, and inner tensors of wrapper subclasses, that are written into, and how they overlap with others."""

    written: tuple[int, ...]
    duplicates: "DuplicatePlan | None"
    bases: "SyntheticBasePlan | None"
    parts: "WrittenParts | None" = None

    @classmethod
    def of(cls, tensors: Sequence[Any], written: tuple[int, ...], parts: "WrittenParts | None" = None) -> "Overlap":
        # Imported here: most programs write into no input, and should not wait for this.
        from precast.autograd.boundary.overlapping_inputs import (
            plan_duplicates,
            plan_synthetic_bases,
            refuse_shared_parts,
            without_wrappers,
        )

        duplicates = plan_duplicates(tensors, written)
        kept = duplicates.kept if duplicates else range(len(tensors))
        places = frozenset(written)
        still_written = [number for number, place in enumerate(kept) if place in places]
        if parts is not None:
            refuse_shared_parts(tensors, written, parts)
        plain = without_wrappers(tensors, parts)
        return cls(written, duplicates, plan_synthetic_bases([plain[place] for place in kept], still_written), parts)

    @property
    def plans(self) -> "list[DuplicatePlan | SyntheticBasePlan]":
        return [plan for plan in (self.duplicates, self.bases) if plan is not None]


def has_memory(tensors: Sequence[Any], sizes: Mapping[int, int]) -> bool:
    """Whether the storages of the tensors numbered in ``sizes`` have these sizes in bytes."""
    return all(tensors[number].untyped_storage().nbytes() == size for number, size in sizes.items())


class _KnownMemory:
    """A memo of the inputs that passed the slow checks last: these take long for hundreds of inputs."""

    def __init__(self) -> None:
        self._tensors: list[int] = []
        self._addresses: list[int] = []
        self._kinds: PlainTensors | None = None

    def are_like(self, tensors: Sequence[Any]) -> bool:
        """Whether captured tensors and gradients have the keys that were noted."""
        return self._kinds is not None and self._kinds.are_like(tensors)

    def note_kinds(self, tensors: Sequence[Any]) -> None:
        self._kinds = PlainTensors.of(tensors)

    def is_known(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors at the same addresses; their sizes and strides are compared elsewhere."""
        return list(map(id, tensors)) == self._tensors and list(map(_data_ptr, tensors)) == self._addresses

    def note(self, tensors: Sequence[Any]) -> None:
        if all(type(each) in _PLAIN_TYPES and each.layout is torch.strided for each in tensors):
            self._tensors, self._addresses = list(map(id, tensors)), list(map(_data_ptr, tensors))


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_data_ptr = torch.Tensor.data_ptr


@dataclass(frozen=True)
class CompiledVariant:
    """A compiled call. ``places`` are the positions of tensors among the values; captured ones are read each time."""

    call: FlatCall
    places: tuple[int, ...]
    state_count: int
    captured: Readings
    captured_key: tuple[Any, ...]
    sizes: "SizeCheck | None"
    overlap: Overlap
    outputs: "OutputPlan"
    guards: StateGuards | None = None
    gradients: GradientInputs = NO_GRADIENTS
    replaces_state: bool = False
    """Whether a call replaces a parameter or buffer by another tensor."""
    memory_asked: Mapping[int, int] = field(default_factory=dict)
    """The storage sizes that the program asked for, by the number of the input."""
    asked: AskedFacts = NOTHING_ASKED
    asked_key: tuple[bool, ...] | None = ()
    memory: "_KnownMemory" = field(default_factory=lambda: _KnownMemory(), compare=False, repr=False)

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether all guards beyond the key hold: sizes, captured tensors, overlaps and Python state."""
        return self.fits_inputs(values) and (self.guards is None or self.guards.hold())

    def fits_inputs(self, values: Sequence[Any]) -> bool:
        """Whether the guards on tensors hold; Python state is not checked."""
        tensors = self._tensors(values) if self.captured_key else ()
        gradients = self.gradients.read(tensors) if tensors else ()
        if self.captured_key and not self._are_captured_alike(tensors, gradients):
            return False
        if self.sizes is not None and not self.sizes.holds(values):
            return False
        if self.memory_asked and not has_memory(self.inputs(values), self.memory_asked):
            return False
        if self.asked and self.asked.key(self.inputs(values)) != self.asked_key:
            return False
        overlap = self.overlap
        if not overlap.written:
            return True
        inputs = [*tensors, *(each for each in gradients if each is not None)] if tensors else self.inputs(values)
        if self.memory.is_known(inputs):
            return True
        try:
            fits = Overlap.of(inputs, overlap.written, overlap.parts) == overlap
        except InputValueError:
            # No variant can serve it: the call runs in Python, or compiling it raises the same error.
            return False
        if fits:
            self.memory.note(inputs)
        return fits

    def _are_captured_alike(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> bool:
        """Whether captured tensors and gradients match those compiled for."""
        now = [*self._captured_of(tensors), *gradients]
        if not self.outputs.runs_backward and self.memory.are_like(now):
            return True
        fits = self.key_of(tensors, now, self.outputs) == self.captured_key
        if fits:
            self.memory.note_kinds(now)
        return fits

    def _captured_of(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return tensors[self.state_count : self.state_count + len(self.captured.places)]

    def current_key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The key of the current captured tensors and gradients."""
        tensors = self._tensors(values)
        now = [*self._captured_of(tensors), *self.gradients.read(tensors)]
        return self.key_of(tensors, now, self.outputs)

    def changed_tensors(self, values: Sequence[Any]) -> str | None:
        """Describe how the captured tensors and gradients differ from those compiled for; None if they do not."""
        now, start = self.current_key(values) if self.captured_key else (), len(self.captured.places)
        end = start + len(self.gradients.owners)
        absent = static_key([None])[0]
        pairs = [pair for pair in zip(self.captured_key[start:end], now[start:end], strict=True) if pair[0] != pair[1]]
        if any(before == absent for before, _ in pairs):
            return "gradients that were None are there"
        if any(current == absent for _, current in pairs):
            return "gradients that were there are None"
        if pairs or now[:start] != self.captured_key[:start]:
            return "tensors in Python's state, or gradients, are of other sizes, types or strides"
        return "tensors that a backward reaches have hooks" if now != self.captured_key else None

    def resized_tensors(self) -> list[Place]:
        """The places of captured tensors that differ from those compiled for only in their sizes."""
        now = static_key(self.captured.read())
        pairs = zip(self.captured.places, self.captured_key, now, strict=False)
        return [place for place, before, key in pairs if place.path and is_resized(before, key)]

    @staticmethod
    def key_of(tensors: Sequence[Any], now: Sequence[Any], outputs: "OutputPlan") -> tuple[Any, ...]:
        """The key of captured tensors and gradients, and whether a backward inside the program reaches hooks."""
        key = static_key(now)
        return (*key, any(map(has_hooks, tensors))) if outputs.runs_backward else key

    def inputs(self, values: Sequence[Any]) -> Sequence[Any]:
        if not self.captured_key and len(self.places) == len(values):
            return values
        tensors = self._tensors(values)
        return [*tensors, *(each for each in self.gradients.read(tensors) if each is not None)]

    def _tensors(self, values: Sequence[Any]) -> list[Any]:
        """The tensors among the values, and the captured ones, without their gradients."""
        tensors = [values[place] for place in self.places]
        if self.captured.places:
            tensors[self.state_count : self.state_count] = self.captured.read()
        return tensors

    def run(self, values: Sequence[Any], arguments: Any = ()) -> Any:
        """The results of a call; ``values`` were flattened from ``arguments``."""
        inputs = self.inputs(values)
        owners = [inputs[number] for number in self.outputs.gradient_owners]
        return self.outputs.assemble(self.call(inputs), arguments, owners)


@dataclass(frozen=True)
class EagerVariant(CompiledVariant):
    """A variant that runs in Python, as a whole or with its modules compiled.

    ``reads`` are the reads that no guard can check, if these are why it is not compiled.
    """

    function: Callable[..., Any] = field(kw_only=True)
    reads: tuple[str, ...] = field(kw_only=True)

    @classmethod
    def of(
        cls, function: Callable[..., Any], guards: StateGuards | None = None, reads: Sequence[str] = ()
    ) -> "EagerVariant":
        nothing = Overlap((), None, None)
        return cls(list, (), 0, NOWHERE, (), None, nothing, OutputPlan(), guards, function=function, reads=tuple(reads))

    def run(self, values: Sequence[Any], arguments: Any = ()) -> Any:
        args, kwargs = arguments
        return self.function(*args, **kwargs)


@dataclass
class OutputPlan:
    """How flat tensor results become what the user's function returns; filled in while it is traced.

    ``build``, if given, makes the containers instead of the ``tree``. With ``has_changes``, the result is a pair: what
    is returned, and the new contents of containers among the arguments. The next results go into Python state, where
    ``writes`` says, and the last ones become ``.grad`` of the inputs ``gradient_owners``. A program that
    ``runs_backward`` itself has already freed the graphs of the results in ``spent`` positions.
    """

    constants: dict[int, Any] | None = None
    tree: pytree.TreeSpec | None = None
    is_single: bool = False
    build: Callable[[Iterator[Any]], Any] | None = None
    has_changes: bool = False
    refers_to_arguments: bool = False
    writes: "Writes | None" = None
    gradient_owners: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    runs_backward: bool = False

    def split(
        self,
        outputs: Sequence[Any],
        tree: pytree.TreeSpec,
        *,
        has_changes: bool = False,
        writes: "Writes | None" = None,
        gradient_owners: tuple[int, ...] = (),
        spent: tuple[int, ...] = (),
        runs_backward: bool = False,
    ) -> list[Any]:
        """Record the plain values among the outputs as constants, and return the others."""
        kept = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        self.constants = {i: output for i, output in enumerate(outputs) if not isinstance(output, kept)}
        self.tree, self.has_changes, self.writes = tree, has_changes, writes
        self.gradient_owners, self.spent, self.runs_backward = gradient_owners, spent, runs_backward
        self.refers_to_arguments = any(isinstance(value, ArgumentContainer) for value in self.constants.values())
        self.is_single = tree.is_leaf() and not self.constants and not (writes or gradient_owners or spent)
        return [output for output in outputs if isinstance(output, kept)]

    def assemble(self, results: Sequence[Any], arguments: Any = (), owners: Sequence[Any] = ()) -> Any:
        """What the function returns. ``arguments`` are the call's, ``owners`` its inputs that get gradients."""
        if self.is_single:
            return results[0]
        outputs = list(results)
        assert self.constants is not None, "the function was traced"
        reads_arguments = self.has_changes or self.refers_to_arguments
        containers = list(argument_containers(arguments)) if reads_arguments else []
        for position, constant in self.constants.items():
            if isinstance(constant, ArgumentContainer):
                constant = containers[constant.number]
            elif isinstance(constant, KeptContainer):
                constant = constant.read()
            outputs.insert(position, constant)
        if self.spent:
            self._spend(outputs)
        if owners:
            for owner, gradient in zip(owners, outputs[-len(owners) :], strict=True):
                owner.grad = gradient
            del outputs[-len(owners) :]
        if self.writes:
            start = len(outputs) - self.writes.count
            shared = self.writes.put(outputs[start:])
            outputs = with_shared(outputs[:start], shared)
        built = self._built(outputs)
        if not self.has_changes:
            return built
        result, changes = built
        apply_changes(containers, changes)
        return result

    def _spend(self, outputs: list[Any]) -> None:
        from precast.autograd.boundary.autograd_function import with_graph_inside

        made = {id(outputs[position]): with_graph_inside(outputs[position], is_freed=True) for position in self.spent}
        for position in self.spent:
            outputs[position] = made[id(outputs[position])]

    def _built(self, outputs: list[Any]) -> Any:
        if self.build is not None:
            return self.build(iter(outputs))
        assert self.tree is not None, "the function was traced"
        return unflatten(iter(outputs), self.tree)
