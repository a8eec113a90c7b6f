"""Lowers an exported program to one native entry, without eager fallbacks.

Before: ``graph(p_weight, b_count, x) -> (add, relu)`` in the native backend's operators
After:  a loop program that reads ``x`` and the state ``weight`` and ``count``, writes ``relu``, and updates ``count``

The program's assumptions about sizes become conditions that native code checks by itself.

Callers in C have no Python layer that would check them. Conditions that cannot be expressed in integers without
division by a size are left to callers that have one.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch import fx
from torch._subclasses import FakeTensor

from precast.errors import LoweringError
from precast.export.sizes import fake_mode_of
from precast.graph.nodes import has_value, placeholders_of, results_of, set_value, source_line_of, subgraph_of, value_of
from precast.graph.program import Program
from precast.graph.sizes import SizeGuard, SymbolicSizes
from precast.native.call import SizeReader
from precast.native.describe import Condition, Entry
from precast.native.graph_passes.complex_pairs import complex_boundary
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, Quotient, Remainder, Symbol, atoms
from precast.native.loops.program import LoopProgram, Run, SizeSource, all_steps, parts_of, read_by, written_by
from precast.native.loops.verifier.parts import exposed
from precast.native.programs import SegmentInputs, lower_segment, lower_segments, rewrite_graph, segment_inputs
from precast.native.random import SEED_NAME, seed_as_input
from precast.native.rules.sizes import expression_to_index
from precast.native.rules.sizes_from_data import NO_BOUND
from precast.native.sizes import size_readers
from precast.native.split import Segment, is_size, may_be_native, split_graph
from precast.native.targets import Target, target_for, target_named
from precast.packaging.traced_program import TracedProgram, is_found_number, packaged_range

_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.StrictLessThan: "<", sympy.LessThan: "<=", sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}  # fmt: skip


def library_target() -> Target:
    """The target of libraries, and of packages unless others are requested."""
    return target_for(["cpu"]).alone


def gpu_target() -> Target:
    """The target for GPU code in packages."""
    return target_named("cuda").alone


def size_conditions(sizes: SymbolicSizes, known: Collection[str]) -> Iterator[Condition]:
    """The guards over sizes that the entry knows."""
    names = {symbol.symbol: symbol.name for symbol in sizes.symbols}
    for guard in sizes.guards:
        relation = _RELATIONS.get(type(guard.condition))
        if relation is None or not {symbol.name for symbol in guard.condition.free_symbols} <= set(known):
            continue
        try:
            left, right = (expression_to_index(side) for side in guard.condition.args)
        except LoweringError:
            continue
        if not any(map(_divides_by_a_size, (left, right))):
            text = str(guard.condition.xreplace({each: sympy.Symbol(names[each]) for each in names}))
            yield Condition(left, relation, right, text)


def _divides_by_a_size(index: Index) -> bool:
    divisions = [each for each in atoms(index) if isinstance(each, Quotient | Remainder)]
    return any(isinstance(part, Symbol) for each in divisions for part in atoms(each.denominator))


RANDOM_SEED = "random.seed"
"""The state that determines a program's random numbers: one integer."""
_SCALAR_TENSOR = torch.ops.aten.scalar_tensor.default
_BOOKKEEPING = (operator.getitem, torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)
"""Nodes around operators with effects, which are omitted in messages."""


@dataclass(frozen=True)
class NativeProgram:
    """An entry to generate code for.

    ``sizes``: those of the program, with everything that native code assumes about them. ``outputs``: for each result
    of the program, the number of the output that holds it, counting only those returned to the caller; ``None`` for
    constants, sizes and updates of the state. ``draws``: whether it draws random numbers, and so reads and updates the
    state ``RANDOM_SEED``.
    """

    entry: Entry
    sizes: SymbolicSizes
    outputs: tuple[int | None, ...]
    draws: bool


def native_program(
    traced: TracedProgram, *, name: str, constant_names: Mapping[str, str], target: Target | None = None
) -> NativeProgram:
    """Lower the whole program; ``constant_names`` are the model's names of folded constants.

    Operators that only torch can run are refused, all at once. Assumptions about sizes made while lowering are added to
    the program's shape environment: pass a copy that nothing else uses.
    """
    program, target = traced.program, target or library_target()
    module, seed = _with_seed_as_state(_with_numbers_as_tensors(traced.module), target)
    module, complex_names = complex_boundary(module)
    _refuse_what_needs_torch(_between_segments(module, target), name)
    state = {node: traced.names[node.name] for node in placeholders_of(module.graph) if node.name in traced.names}
    for node in (node for node in module.graph.nodes if node.op == "get_attr" and subgraph_of(node) is None):
        plain = traced.plain_name(node)
        state[node] = constant_names[node.name] if plain is None else plain
    if seed is not None:
        state[seed] = RANDOM_SEED
    taken = [node for node in placeholders_of(module.graph) if traced.is_passed(node)]
    results = tuple(node for node in results_of(module.graph) if isinstance(node, fx.Node) and _is_tensor(node))
    targets = [*traced.updates, *([RANDOM_SEED] if seed else [])]
    in_place = _updates_in_place(module.graph, targets, state)
    lowered = _lower(Segment(True, _computing_nodes(module.graph), (*taken, *state), results, in_place), name, target)
    pairs = complex_names | {
        buffer.name for number, buffer in enumerate(_result_buffers(module.graph, lowered.program))
        if isinstance(buffer, Buffer) and f"result {number}" in complex_names
    }  # fmt: skip
    updates, outputs = _numbered_outputs(module.graph, lowered.program, targets)
    ranges = {str(each.symbol.name): packaged_range(each) for each in program.sizes.symbols}
    weights = {node.name: name for node, name in state.items()}
    sizes = _sizes_after_lowering(program, name)
    conditions = tuple(size_conditions(sizes, [source.symbol for source in lowered.program.sizes]))
    entry = replace(lowered, weights=weights, updates=updates, ranges=ranges, conditions=conditions, pairs=pairs)
    return NativeProgram(entry, sizes, outputs[: len(traced.updates)], draws=seed is not None)


def _sizes_after_lowering(program: Program, name: str) -> SymbolicSizes:
    """The program's sizes, with the assumptions made while lowering; refuses a size that was specialized."""
    shape_env = fake_mode_of(program).shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    for symbol in program.sizes.symbols:
        settled = shape_env.replacements.get(symbol.symbol)
        if settled is not None and settled.is_number:
            raise LoweringError(
                f"native code of {name!r} would be valid for {symbol.name} = {settled} alone",
                why="some operator is unrolled over this size, as recurrent layers are, or its code depends on it",
                fix=f"leave {symbol.seen_at} fixed, and package one entry for each size that you need",
            )
    return program.sizes.with_guards(SizeGuard(guard.expr) for guard in shape_env.guards)


def _with_numbers_as_tensors(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with data-dependent integer results as one-element tensors."""
    if not any(map(is_found_number, results_of(module.graph))):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    output, values = graph.output_node(), [value_of(node) for node in graph.nodes if has_value(node)]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    results = list(results_of(graph))
    for place, node in enumerate(results):
        if not isinstance(node, fx.Node) or not is_found_number(node):
            continue
        with graph.inserting_before(output), mode:
            results[place] = made = graph.call_function(_SCALAR_TENSOR, (node,), {"dtype": torch.int64})
            set_value(made, _SCALAR_TENSOR(value_of(node), dtype=torch.int64))
    output.args = (tuple(results),)
    return fx.GraphModule(module, graph)


def _with_seed_as_state(module: fx.GraphModule, target: Target) -> tuple[fx.GraphModule, fx.Node | None]:
    """The graph with its random seed as its last input, and the next seed as its last result, so that every call draws
    different numbers.
    """
    module = seed_as_input(rewrite_graph(module, target, random="philox"))
    seed = next((node for node in placeholders_of(module.graph) if node.name == SEED_NAME), None)
    if seed is not None:
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            following = module.graph.call_function(torch.ops.aten.add.Tensor, (seed, 1))
        set_value(following, value_of(seed))
        output.args = ((*results_of(module.graph), following),)
    return module, seed


def _updates_in_place(
    graph: fx.Graph, targets: Sequence[str | None], state: Mapping[fx.Node, str]
) -> tuple[tuple[fx.Node, fx.Node], ...]:
    """New values of state that may be written over the old ones: those that are not otherwise returned."""
    places = {name: node for node, name in state.items()}
    results = results_of(graph)
    pairs = [(value, places[name]) for value, name in zip(results, targets, strict=True) if name in places]
    return tuple(
        (value, place) for value, place in pairs if isinstance(value, fx.Node) and results.count(value) == 1
        and value.op == "call_function" and place.op == "placeholder"
    )  # fmt: skip


def _computing_nodes(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return tuple(node for node in graph.nodes if node.op == "call_function" and not is_size(node))


def _is_tensor(node: object) -> bool:
    return isinstance(node, fx.Node) and isinstance(value_of(node), torch.Tensor)


def _refuse_what_needs_torch(missing: Iterable[str], name: str) -> None:
    lines = dict.fromkeys(missing)
    if lines:
        raise LoweringError(
            f"{name!r} cannot run without torch:" + "".join(f"\n       {each}" for each in lines),
            why="these operators have no native rule, and a call back into torch needs torch",
            fix="replace them, keep them out of what is packaged, or use precast.compile in process",
        )


def _between_segments(module: fx.GraphModule, target: Target) -> Iterator[str]:
    """Operators whose values native code cannot represent, and then everything else that needs torch."""
    found = [
        node for node in _computing_nodes(module.graph) if not may_be_native(node, target.device, finds_sizes=True)
    ]
    named = [node for node in found if node.target not in _BOOKKEEPING]
    for node in named:
        # An operator with an effect is an argument of the operator that orders effects, after its token.
        called = node.args[1] if str(node.target) == "with_effects" else node.target
        yield f"{called} at {source_line_of(node) or node.name}"
    for entry in lower_segments(split_graph(module, target.device), target) if named else ():
        yield from _called_back(entry)


def _called_back(entry: Entry) -> Iterator[str]:
    """The eager fallbacks of native code, with the user's lines."""
    for step in entry.fallbacks:
        yield f"{step.operator} at {step.at or step.name}"


def _lower(segment: Segment, name: str, target: Target) -> Entry:
    """The segment as an entry that reads all of its dynamic sizes from its tensors."""
    entry = lower_segment(
        segment,
        target,
        name=name,
        on_lowered=lambda program: _refuse_unbounded(program, name),
        fails_first=True,
    )
    _refuse_what_needs_torch(_called_back(entry), name)
    inputs = segment_inputs(segment)
    if not inputs.sizes:
        return entry
    return replace(entry, program=_without_size_inputs(entry.program, inputs, size_readers(segment.inputs)))


def _refuse_unbounded(program: LoopProgram, name: str) -> None:
    """Refuse unbounded data-dependent sizes, and accesses that these might take out of bounds."""
    unbounded = dict.fromkeys(_unbounded(program))
    if unbounded:
        raise LoweringError(
            f"{name!r} has tensors of any size:" + "".join(f"\n       {each}" for each in unbounded),
            why="these sizes are data-dependent, and memory is allocated before the program runs",
            fix="say how large they can be, for example torch._check(n <= 1000) after n = x.item()",
        )
    astray = dict.fromkeys(f"{step} ({origins})" for step, origins in exposed(program))
    if astray:
        raise LoweringError(
            f"{name!r} might read or write outside of tensors:" + "".join(f"\n       {each}" for each in astray),
            why="it was not proved that places which depend on data are inside",
            fix="say so, for example torch._check(n < x.shape[0]) after n = i.item(), or index by tensors",
        )


def _unbounded(program: LoopProgram) -> Iterator[str]:
    steps = list(all_steps(program))
    buffers = {buffer for step in steps for buffer in (*read_by(step), *written_by(step))}
    sized = {
        each.name for buffer in buffers for size in buffer.shape for each in atoms(size) if isinstance(each, Symbol)
    }
    for step in steps:
        for source in (source for part in parts_of(step) for source in part.program.sizes):
            if source.bound == NO_BOUND and source.symbol in sized:
                yield f"{', '.join(step.origins)} at {step.at if isinstance(step, Run) else None}"


def _without_size_inputs(
    program: LoopProgram, inputs: SegmentInputs, readers: Mapping[str, SizeReader[fx.Node]]
) -> LoopProgram:
    """Read sizes that would be separate inputs from dimensions that are linear in them."""
    unreadable = [size for size in inputs.sizes if size not in readers]
    if unreadable:
        raise LoweringError(
            f"the size {unreadable[0]} cannot be read off any argument of {program.name!r}",
            why="no dimension of an argument is this size, a multiple of it, or a sum with it",
            fix="pass one more tensor that has it as a dimension, or give it a fixed size",
        )
    passed = {f"size_{name}" for name in inputs.sizes}
    kept = tuple(buffer for buffer in program.inputs if buffer.name not in passed)
    positions = {buffer.name: position for position, buffer in enumerate(kept)}

    def moved(source: SizeSource) -> SizeSource:
        buffer = program.inputs[source.position]
        if buffer.name not in passed:
            return replace(source, position=positions[buffer.name])
        reader = readers[source.symbol]
        place = positions[reader.source.name]
        return SizeSource(source.symbol, place, reader.dimension, reader.factor, reader.offset)

    return replace(program, inputs=kept, sizes=tuple(map(moved, program.sizes)))


def _numbered_outputs(
    graph: fx.Graph, lowered: LoopProgram, targets: Sequence[str | None]
) -> tuple[dict[str, str], tuple[int | None, ...]]:
    """Which outputs update which state, by their targets, and which of the others holds which result."""
    updates: dict[str, str] = {}
    numbers: list[int | None] = []
    count = 0
    for buffer, target in zip(_result_buffers(graph, lowered), targets, strict=True):
        if isinstance(buffer, Buffer) and target is not None:
            updates[buffer.name] = target
            numbers.append(None)
        elif isinstance(buffer, Buffer):
            numbers.append(count)
            count += 1
        else:
            numbers.append(None)
    return updates, tuple(numbers)


def _result_buffers(graph: fx.Graph, lowered: LoopProgram) -> list[Buffer | Index | None]:
    """The buffer of each result of the graph; None for constants and sizes."""
    buffers = iter(lowered.results)
    return [next(buffers) if _is_tensor(node) else None for node in results_of(graph)]
