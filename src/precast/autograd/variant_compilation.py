"""From one real call to a compiled variant of it: state, constants, overlapping inputs, then the graphs.

Before: ``function(*args, **kwargs)`` over real tensors
After:  ``CompiledVariant.run(values)`` with ``values`` the module state and the leaves of a call that fits
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.boundary import FlatCall
from precast.autograd.boundary.duplicate_inputs import DuplicatePlan, plan_duplicates
from precast.autograd.boundary.synthetic_bases import SyntheticBasePlan, plan_synthetic_bases
from precast.autograd.call_key import static_key
from precast.autograd.size_guards import SizeCheck, size_check
from precast.autograd.state_slots import Home, ModuleSlots, captured_homes
from precast.autograd.variant import Job, compile_variant
from precast.capture.prepare import FlatCallable, PreparedCall, leaf_size, prepare
from precast.functionalize import analyze
from precast.ir.boundary import BoundaryFacts
from precast.tracing.fake_inputs import FakeInputs
from precast.tracing.session import tracing_session
from precast.tracing.trace import FlatFunction


@dataclass(frozen=True)
class Overlap:
    """Which inputs are written into, and how those of the compiled call overlap with others."""

    written: tuple[int, ...]
    duplicates: DuplicatePlan | None
    bases: SyntheticBasePlan | None

    @classmethod
    def of(cls, tensors: Sequence[Any], written: tuple[int, ...]) -> "Overlap":
        duplicates = plan_duplicates(tensors, written)
        kept = duplicates.kept if duplicates else range(len(tensors))
        still_written = [number for number, place in enumerate(kept) if place in written]
        return cls(written, duplicates, plan_synthetic_bases([tensors[place] for place in kept], still_written))

    @property
    def plans(self) -> list[DuplicatePlan | SyntheticBasePlan]:
        return [plan for plan in (self.duplicates, self.bases) if plan is not None]


@dataclass(frozen=True)
class CompiledVariant:
    """A compiled call. ``places`` are the positions of tensors among the values; captured tensors are read afresh."""

    call: FlatCall
    places: tuple[int, ...]
    state_count: int
    captured: tuple[Home, ...]
    captured_key: tuple[Any, ...]
    sizes: SizeCheck | None
    overlap: Overlap
    outputs: "OutputPlan"

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether these values, whose key fits already, have sizes, captured tensors and overlaps as compiled for."""
        if self.captured and static_key([read() for read in self.captured]) != self.captured_key:
            return False
        if self.sizes is not None and not self.sizes(values):
            return False
        return not self.overlap.written or Overlap.of(self.inputs(values), self.overlap.written) == self.overlap

    def inputs(self, values: Sequence[Any]) -> Sequence[Any]:
        if not self.captured and len(self.places) == len(values):
            return values
        tensors = [values[place] for place in self.places]
        if self.captured:
            tensors[self.state_count : self.state_count] = [read() for read in self.captured]
        return tensors

    def run(self, values: Sequence[Any]) -> Any:
        return self.outputs.assemble(self.call(self.inputs(values)))


@dataclass
class OutputPlan:
    """How flat tensor results become what the user's function returns; filled while it is traced."""

    constants: dict[int, Any] | None = None
    tree: pytree.TreeSpec | None = None
    is_single: bool = False

    def split(self, outputs: Sequence[Any], tree: pytree.TreeSpec) -> list[Any]:
        """Note the plain values among the outputs, and give the others."""
        kept = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        self.constants = {i: output for i, output in enumerate(outputs) if not isinstance(output, kept)}
        self.tree = tree
        self.is_single = tree.is_leaf() and not self.constants
        return [output for output in outputs if isinstance(output, kept)]

    def assemble(self, results: Sequence[Any]) -> Any:
        if self.is_single:
            return results[0]
        outputs = list(results)
        assert self.constants is not None, "the function was traced"
        for position, constant in self.constants.items():
            outputs.insert(position, constant)
        return pytree.tree_unflatten(outputs, self.tree)  # type: ignore[arg-type]


def compile_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    slots: ModuleSlots,
    job: Job,
    *,
    dynamic: bool,
) -> CompiledVariant:
    """Compile what one call needs."""
    with tracing_session():
        prepared = prepare(function, args, kwargs, automatic_sizes=dynamic)
        values = [*(item.tensor for item in prepared.state), *prepared.call.leaves]
        places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        outputs = OutputPlan()
        captured = captured_homes(function, slots.modules, prepared.state[len(slots) :])
        flat = _over_tensors(function, prepared, lambda: [*slots.read(), *(read() for read in captured)], outputs)
        tensors = [values[place] for place in places]
        fakes = [prepared.fake_inputs[place] for place in places]
        with prepared.fakes.unrecorded():
            facts = analyze(flat, fakes, prepared.fakes.mode)
        overlap = Overlap.of(tensors, facts.updated)
        static_inputs = tuple(range(len(slots) or len(job.static_inputs)))
        job = replace(job, static_inputs=static_inputs, module_names=prepared.module_names)
        call = _compile_overlapping(flat, tensors, fakes, facts, overlap, prepared.fakes, job)
    return CompiledVariant(
        call=call,
        places=_places_without_captured(places, len(slots), len(captured)),
        state_count=len(slots),
        captured=tuple(captured),
        captured_key=static_key([read() for read in captured]),
        sizes=size_check(prepared.fakes.sizes(), _size_homes(prepared, len(slots))) if dynamic else None,
        overlap=overlap,
        outputs=outputs,
    )


def _over_tensors(
    function: Callable[..., Any], prepared: PreparedCall, state: Callable[[], list[Any]], outputs: OutputPlan
) -> FlatFunction:
    """The prepared function over tensor inputs alone, giving tensor outputs alone; the rest are constants.

    It may run again much later, for gradients of gradients: it holds no tensor of the call, and reads ``state`` anew.
    """
    template, tree = list(prepared.fake_inputs), prepared.call.tree
    places = [i for i, value in enumerate(template) if isinstance(value, torch.Tensor)]

    def run(*tensors: Any) -> list[Any]:
        inputs = list(template)
        for place, tensor in zip(places, tensors, strict=True):
            inputs[place] = tensor
        flat = FlatCallable(function, state(), tree)
        results = flat(*inputs)
        assert flat.out_tree is not None, "the function has run"
        return outputs.split(results, flat.out_tree)

    return run


def _compile_overlapping(
    function: FlatFunction,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[Any],
    facts: BoundaryFacts,
    overlap: Overlap,
    fakes: FakeInputs,
    job: Job,
) -> FlatCall:
    """Compile over inputs that do not overlap, wrapped for a call whose inputs do."""
    if not overlap.plans:
        return compile_variant(function, inputs, fakes, facts, job)
    plan, *others = overlap.plans
    kept = plan.inputs(tensors)
    known = {id(tensor): value for tensor, value in zip(tensors, inputs, strict=True)}
    kept_fakes = [known[id(tensor)] if id(tensor) in known else fakes.fake(tensor) for tensor in kept]
    merged = plan.function(function)
    with fakes.unrecorded():
        merged_facts = analyze(merged, kept_fakes, fakes.mode)
    remaining = replace(overlap, duplicates=None, bases=overlap.bases if others else None)
    # Positions of state change with the merge; it is only a hint for the partitioner.
    job = replace(job, static_inputs=())
    return plan.call(_compile_overlapping(merged, kept, kept_fakes, merged_facts, remaining, fakes, job))


def _places_without_captured(places: Sequence[int], state_count: int, captured_count: int) -> tuple[int, ...]:
    """Where the tensors are among a call's values, which hold the module state and the leaves only."""
    before = [place for place in places if place < state_count]
    after = [place - captured_count for place in places if place >= state_count + captured_count]
    return (*before, *after)


def _size_homes(prepared: PreparedCall, state_count: int) -> dict[str, tuple[int, int]]:
    return {
        leaf_size(number, dimension): (state_count + number, dimension)
        for number, leaf in enumerate(prepared.call.leaves)
        if isinstance(leaf, torch.Tensor)
        for dimension in range(leaf.dim())
    }
