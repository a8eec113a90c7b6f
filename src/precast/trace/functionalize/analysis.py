"""Analyzes, by one run on functional fake tensors, how a function mutates its inputs and how its outputs alias.

Before: ``f(x, y): x.add_(1); z = y * 2; return x, z.view(-1), z``
After:  ``inputs: x mutates_data; outputs: IS_INPUT 0, VIEW_OF_OUTPUT 2, FRESH``
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from precast.errors import CaptureError
from precast.events import stage
from precast.graph.boundary import BoundaryFacts, InputFacts, OutputFacts, Relation, ViewReplay
from precast.graph.opened_objects import is_wrapper
from precast.ops.facts import is_random
from precast.trace.boundary_outputs import boundary_outputs
from precast.trace.eager.fake_mode import dispatch_for
from precast.trace.fake_inputs import fresh_copies, innermost
from precast.trace.functionalize.run import from_functional, functional_mode, to_functional
from precast.trace.functionalize.shared_memory import WritesOfSharedElements
from precast.trace.record import FlatFunction
from precast.trace.storages import MemoryNotes, memory_notes, refuse_resize_of_intermediates


@stage
def analyze(function: FlatFunction, inputs: Sequence[Any], mode: FakeTensorMode) -> BoundaryFacts:
    """Run ``function`` on copies of the fake ``inputs``; returns its facts. Must run inside a ``tracing_session``."""
    shape_env = mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    # The run is not recorded, so the unbacked symbols that it creates are dropped.
    with mode, dispatch_for(inputs), shape_env.ignore_fresh_unbacked_symbols(), _Probe() as probe:
        copies = fresh_copies(inputs)
        with functional_mode(discover_tokens=True) as functional:
            wrapped = [to_functional(value) for value in copies]
            origins = [_grad_fn(value) for value in wrapped]
            notes = memory_notes()
            outputs = list(function(*wrapped))
            input_facts = _with_memory(tuple(map(_input_facts, copies, wrapped, origins)), wrapped, notes)
            output_facts, bases = _Outputs(wrapped, outputs, input_facts).facts()
            _refuse_exchanged_memory_of_others(wrapped, outputs, input_facts, output_facts)
            facts = BoundaryFacts(input_facts, output_facts, bases, len(functional._tokens), probe.found)
            values = [from_functional(value) for value in boundary_outputs(wrapped, outputs, facts)]
        mode.epoch += 1
    return replace(facts, values=tuple(values))


class _Probe(TorchDispatchMode):
    """Detects ops that draw random numbers, also in control-flow branches; refuses writes that graphs do not show."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        self.writes = WritesOfSharedElements()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        branches = [argument for argument in args if isinstance(argument, fx.GraphModule)]
        inside = (node.target for branch in branches for node in branch.graph.nodes if node.op == "call_function")
        self.found = self.found or is_random(func) or any(map(is_random, inside))
        self.writes.check(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.writes.note(func, args, kwargs or {}, result)
        return result


def _grad_fn(value: Any) -> Any:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


def _input_facts(before: Any, now: Any, origin: Any) -> InputFacts:
    if not isinstance(now, torch.Tensor):
        return InputFacts()
    parts, originals = [_as_functional(part) for part in innermost(now)], innermost(before)
    mutated = [part for part in parts if torch._functionalize_has_data_mutation(part.elem)]  # type: ignore[attr-defined]
    replaced = any(_storage_replaced(old, part) for old, part in zip(originals, parts, strict=True))
    resized = any(_metadata_changed(old, part) for old, part in zip(originals, parts, strict=True))
    if (replaced or resized) and is_wrapper(now):
        raise CaptureError(
            f"The program changes the sizes or the memory of an input that is a {type(now).__name__}.",
            why="a tensor subclass defines the meaning of its metadata itself",
            fix="Return a new tensor instead.",
        )
    under_no_grad = bool(mutated) and all(
        torch._functionalize_are_all_mutations_under_no_grad_or_inference_mode(part.elem) for part in mutated
    )
    # A write that autograd sees changes the input's grad_fn.
    is_visible = bool(mutated) and now.requires_grad and _grad_fn(now) is not origin
    if replaced and is_visible:
        raise CaptureError(
            "The program points an input at other memory (set_) and then writes into it where autograd sees it.",
            why="the update that is made outside of the compiled graph can be one or the other",
            fix="Write into the other tensor, or under torch.no_grad().",
        )
    return InputFacts(
        mutates_data=bool(mutated) and not replaced,
        mutates_metadata=replaced or resized,
        replaces_storage=replaced,
        mutation_hidden_from_autograd=bool(mutated) and now.requires_grad and not is_visible and not under_no_grad,
        mutation_under_no_grad=under_no_grad,
        update_needs_gradient=is_visible and not replaced,
        requires_grad=before.requires_grad,
        is_leaf=before.is_leaf,
        metadata_steps=_view_steps(parts[0]) if resized and not replaced else (),
        parts_written=_numbers_of(mutated, parts) if is_wrapper(now) else None,
        starts_requiring_grad=now.requires_grad and now.is_leaf and not before.requires_grad,
        stops_requiring_grad=before.requires_grad and not now.requires_grad,
    )


def _refuse_exchanged_memory_of_others(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    input_facts: Sequence[InputFacts],
    output_facts: Sequence[OutputFacts],
) -> None:
    """Raise if an input is pointed at memory that the caller also sees otherwise: the graph returns copies."""
    exchanged = [number for number, fact in enumerate(input_facts) if fact.replaces_storage]
    for number in exchanged:
        memory = _memory_now(inputs[number])
        made_again = [fact.base == number and fact.relation in _OF_INPUTS for fact in output_facts]
        others = [value for place, value in enumerate(inputs) if place != number]
        others += [output for output, is_made in zip(outputs, made_again, strict=True) if not is_made]
        if memory is not None and memory in map(_memory_now, others):
            raise CaptureError(
                "The program points an input at the memory of another tensor (set_, or an assignment to its data).",
                why="later writes into the one have to show in the other, and a graph returns values, not memory",
                fix="Copy the values (copy_), or do it outside of what is compiled.",
            )


_OF_INPUTS = (Relation.IS_INPUT, Relation.VIEW_OF_INPUT)


def _with_memory(facts: tuple[InputFacts, ...], inputs: Sequence[Any], notes: MemoryNotes) -> tuple[InputFacts, ...]:
    if not notes.resized and not notes.asked:
        return facts
    keys = [_storage_key(value) or 0 for value in inputs]
    if not notes.resized.keys() <= set(keys):
        refuse_resize_of_intermediates()
    return tuple(
        replace(fact, memory_bytes=notes.resized.get(key), memory_asked=notes.asked.get(key))
        for fact, key in zip(facts, keys, strict=True)
    )


def _numbers_of(chosen: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(number for number, part in enumerate(parts) if any(part is each for each in chosen))


def _as_functional(part: torch.Tensor) -> FunctionalTensor:
    assert isinstance(part, FunctionalTensor), f"expected a functional tensor, got {type(part).__name__}"
    return part


def _storage_replaced(before: torch.Tensor, now: FunctionalTensor) -> bool:
    if not torch._functionalize_was_storage_changed(now.elem):
        return False
    # Several set_() calls may cancel out.
    after = torch._from_functional_tensor(now.elem)
    return _storage_key(before) != _storage_key(after)


def _metadata_changed(before: torch.Tensor, now: FunctionalTensor) -> bool:
    after = torch._from_functional_tensor(now.elem)
    if not torch._functionalize_has_metadata_mutation(now.elem):
        # Torch reports `out=` and `resize_as_` as data writes, not as metadata changes.
        is_written = torch._functionalize_has_data_mutation(now.elem)  # type: ignore[attr-defined]
        return is_written and before.shape != after.shape
    return (before.shape, before.stride(), before.storage_offset()) != (
        after.shape,
        after.stride(),
        after.storage_offset(),
    )


class _Outputs:
    """Classifies a function's outputs by the memory that they share."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], input_facts: Sequence[InputFacts]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._input_facts = input_facts
        self._input_numbers = {id(value): i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        self._inputs_by_storage = {key: i for i, value in enumerate(inputs) if (key := _storage_key(value)) is not None}
        self._first_position = {id(output): i for i, output in reversed(list(enumerate(outputs)))}
        self._sharing: dict[int, list[torch.Tensor]] = {}
        for output in {id(output): output for output in outputs}.values():
            if (key := _storage_key(output)) is not None:
                self._sharing.setdefault(key, []).append(output)
        self._bases: dict[int, int] = {}
        self._base_tensors: list[torch.Tensor] = []

    def facts(self) -> tuple[tuple[OutputFacts, ...], tuple[bool, ...]]:
        facts = tuple(self._facts_of(i, output) for i, output in enumerate(self._outputs))
        _refuse_graphs_of_returned_leaves(self._outputs, facts)
        return facts, tuple(base.requires_grad for base in self._base_tensors)

    def _facts_of(self, position: int, output: Any) -> OutputFacts:
        if not isinstance(output, torch.Tensor):
            return OutputFacts(is_tensor=False)
        needs_grad, is_leaf = output.requires_grad, _is_leaf(output)
        if (number := self._input_numbers.get(id(output))) is not None:
            return OutputFacts(Relation.IS_INPUT, number, requires_grad=needs_grad)
        if (first := self._first_position[id(output)]) != position:
            return OutputFacts(Relation.IS_OUTPUT, first, requires_grad=needs_grad)
        key = _storage_key(output)
        if key is None:
            return OutputFacts(requires_grad=needs_grad, is_leaf=is_leaf)
        number = self._inputs_by_storage.get(key)
        if number is not None:
            # The steps start from the original input; after a metadata change the caller's input is another view.
            with_steps = not self._input_facts[number].mutates_metadata
            replay = _replay(output, with_steps=with_steps, base=self._inputs[number])
            if not _has_history_of_its_own(output, self._inputs[number]):
                return OutputFacts(Relation.VIEW_OF_INPUT, number, replay, needs_grad, is_leaf=is_leaf)
            if output._base is self._inputs[number] and not self._input_facts[number].is_updated:
                return OutputFacts(Relation.FRESH, number, replay, needs_grad)
        if len(self._sharing[key]) > 1:
            return self._facts_of_sharing(output, self._sharing[key])
        return OutputFacts(requires_grad=needs_grad, is_leaf=is_leaf)

    def _facts_of_sharing(self, output: torch.Tensor, group: Sequence[torch.Tensor]) -> OutputFacts:
        root, needs_grad, is_leaf = _root_of(group), output.requires_grad, _is_leaf(output)
        if root is output or root is None or _has_history_of_its_own(output, root):
            return OutputFacts(requires_grad=needs_grad, is_leaf=is_leaf)
        replay = _replay(output, with_steps=_is_storage_root(root), base=root)
        if id(root) in self._first_position:
            position = self._first_position[id(root)]
            return OutputFacts(Relation.VIEW_OF_OUTPUT, position, replay, needs_grad, is_leaf=is_leaf)
        if id(root) not in self._bases:
            self._bases[id(root)] = len(self._base_tensors)
            self._base_tensors.append(root)
        return OutputFacts(Relation.VIEW_OF_BASE, self._bases[id(root)], replay, needs_grad, is_leaf=is_leaf)


def _is_leaf(output: torch.Tensor) -> bool:
    return output.requires_grad and output.is_leaf


def _refuse_graphs_of_returned_leaves(outputs: Sequence[Any], facts: Sequence[OutputFacts]) -> None:
    """Raise if the gradient of an output ends in another output: the compiled call is one autograd node."""
    leaves = {id(output) for output, fact in zip(outputs, facts, strict=True) if fact.is_leaf}
    waiting = [output.grad_fn for output, fact in zip(outputs, facts, strict=True) if leaves and fact.needs_tangent]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
        if id(getattr(node, "variable", None)) in leaves:
            raise CaptureError(
                "The program returns a tensor that it made require grad, and another one that is computed from it.",
                why="the gradient of the one would have to end in the other, inside of the compiled call",
                fix="Call requires_grad_() on it outside, and compute the other one there.",
            )


def _storage_key(value: Any) -> int | None:
    """A key that two tensors have in common exactly if they share storage; None for values without storage."""
    if not isinstance(value, torch.Tensor) or is_wrapper(value) or value.layout is not torch.strided:
        return None
    key: int = value.untyped_storage()._cdata
    return key


def _memory_now(value: Any) -> int | None:
    """The same for functional tensors after the run: ``set_`` exchanges the storage that they are functional over."""
    return _storage_key(value.elem if isinstance(value, FunctionalTensor) else value)


def _root_of(group: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensor that the whole group are views of: a member that owns the storage, or their common base."""
    owners = [tensor for tensor in group if _is_storage_root(tensor)]
    if owners:
        return owners[0]
    bases = [base for tensor in group if (base := tensor._base) is not None]
    roots = [base for base in bases if _is_storage_root(base)]
    return (roots or bases or [max(group, key=lambda tensor: tensor.numel())])[0]


def _is_storage_root(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FunctionalTensor) and tensor.is_base_tensor()


def _has_history_of_its_own(output: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the gradients of an alias do not flow through its base.

    This holds for results of a ``torch.autograd.Function``, whose backward replaces the view's, and for detached
    aliases into which something differentiable was written.
    """
    if _is_leaf(output):
        return False
    is_custom = isinstance(output.grad_fn, torch.autograd.function.BackwardCFunction)
    return is_custom or (output.requires_grad and _history_root(output) is not _history_root(base))


def _history_root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _replay(output: torch.Tensor, *, with_steps: bool, base: torch.Tensor) -> ViewReplay:
    is_detached = _history_root(output) is not _history_root(base)
    steps = _view_steps(output) if with_steps and isinstance(output, FunctionalTensor) else None
    if steps is not None and not any(step.has_symbolic_inputs for step in steps):
        return ViewReplay(steps, is_detached=is_detached)
    return ViewReplay(None, output.storage_offset() - base.storage_offset(), is_detached)


def _view_steps(tensor: FunctionalTensor) -> tuple[torch._C._functionalization.ViewMeta, ...]:
    return tuple(torch._C._functionalization.get_view_meta_sequence(tensor.elem))
