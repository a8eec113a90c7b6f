"""ATen graph → loop program, one node at a time.

Before::

    %add  = aten.add.Tensor(%mm, %b)
    %gelu = aten.gelu.default(%add)

After::

    kernel add:  for i0 < 8, i1 < 6:  add[i0, i1] = mm[i0, i1] + b[i1]
    kernel gelu: for i0 < 8, i1 < 6:  gelu[i0, i1] = …

Every node, views included, becomes its own steps over its own buffer; fusing them is left to the loop passes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._prims.rng_prims import run_with_rng_state
from torch.fx.experimental.symbolic_shapes import statically_known_true

from precast.artifact.dtypes import DTYPES
from precast.errors import LoweringError
from precast.events import stage
from precast.graph.nodes import (
    has_value,
    placeholders_of,
    source_line_of,
    subgraph_of,
    tensor_of,
    updating_result_of,
    value_of,
)
from precast.graph.tensor_spec import dtype_name
from precast.native.loops.buffers import Buffer, contiguous_strides
from precast.native.loops.index import Index, Symbol, atoms
from precast.native.loops.program import (
    Argument,
    FallbackStep,
    Fallible,
    InputUpdate,
    LibraryCall,
    LoopProgram,
    Part,
    Run,
    SizeSource,
    Slot,
    Step,
    read_by,
)
from precast.native.loops.scalars import Load
from precast.native.rules.builder import Builder, Indices, Result, is_dense
from precast.native.rules.conditions import check_count
from precast.native.rules.registry import DECLINED, Found, drawing_rule_for, rule_for
from precast.native.rules.sizes import known_bound, symbols_in, to_index, to_indices, to_strides
from precast.ops.cost import size_hint
from precast.ops.facts import is_random

if TYPE_CHECKING:
    from precast.native.targets import Target

MAX_RANK = 16
"""As many as ``PRECAST_MAX_RANK`` of the C interface."""
Lowered = object
"""What a node lowers to: a buffer, a tuple of them, an index for a symbolic number, or a plain constant."""


_BY_MEMORY = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
"""Operators that address elements by their place in the storage."""


@stage
def lower_graph(
    graph_module: fx.GraphModule,
    *,
    name: str = "main",
    fallbacks: bool = True,
    target: Target | None = None,
) -> LoopProgram:
    """Lower a functional ATen graph; without `fallbacks`, an operator that has no rule is an error that names it.

    An operator also falls back if its rule makes steps that the `target` cannot run; without one, all steps can.
    """
    builder, meanings = Builder(target), dict[fx.Node, Lowered]()
    inputs: list[Buffer] = []
    for node in placeholders_of(graph_module.graph):
        meanings[node] = _placeholder(node, builder, inputs)
    targets = _update_targets(graph_module.graph, meanings)
    nodes = [node for node in graph_module.graph.nodes if node.op != "placeholder"]
    results, updates = _lower_nodes(nodes, builder, meanings, name, targets)
    sizes = _size_sources(graph_module, inputs)
    program = LoopProgram(name, tuple(inputs), results, sizes, tuple(builder.steps), updates)
    if not fallbacks:
        refuse_fallbacks(program)
    return program


Results = tuple[Buffer | Index | None, ...]


def _lower_nodes(
    nodes: Sequence[fx.Node],
    builder: Builder,
    meanings: dict[fx.Node, Lowered],
    name: str,
    targets: Mapping[int, Buffer],
) -> tuple[Results, tuple[InputUpdate, ...]]:
    """Lower nodes up to and including the graph's output; returns its results, and the updates of inputs.

    `targets` are buffers, by result number, whose layout that result must have.
    """
    lengths: dict[object, int] = {}
    for number, node in enumerate(nodes):
        if node.op == "call_function":
            meanings[node] = _call(node, builder, meanings)
            lengths[node] = len(builder.steps)
        elif node.op == "output":
            results = _results(node, builder, meanings, targets)
            return results, _updates(targets, _returned(node), results, lengths, builder.steps)
        elif (subgraph := subgraph_of(node)) is not None:
            meanings[node] = subgraph
        else:
            raise AssertionError(f"lift {node.op} {node.target} to an input before lowering")
        found = meanings[node]
        if isinstance(found, Found) and builder.new_sizes:
            return _lower_rest(node, found, nodes[number + 1 :], builder, meanings, name, targets), ()
        if isinstance(found, Found):
            check_count(builder, found)
            meanings[node] = found.define(builder)
            lengths[node] = len(builder.steps)
    raise AssertionError(f"{name} returns nothing")


def _lower_rest(
    node: fx.Node,
    found: Found,
    nodes: Sequence[fx.Node],
    builder: Builder,
    meanings: dict[fx.Node, Lowered],
    name: str,
    targets: Mapping[int, Buffer],
) -> Results:
    """Lower everything after a node with a data-dependent size, as a part that knows this size."""
    inner, origin, at = Builder(builder.target, builder.names, builder.known_sizes), builder.origin, builder.at
    inner.results, inner.node_name, inner.origin, inner.at = (
        builder.results, builder.node_name, builder.origin, builder.at,
    )  # fmt: skip
    meanings[node] = found.define(inner)
    results, _ = _lower_nodes(nodes, inner, meanings, name, targets)
    read = dict.fromkeys(buffer for step in inner.steps for buffer in read_by(step) if buffer not in inner.made)
    inputs = tuple(dict.fromkeys((found.count, *read)))
    (symbol,) = builder.new_sizes
    size = SizeSource(symbol, 0, None, bound=found.bound)
    program = LoopProgram(f"{name}, from {node.name} on", inputs, results, (size,), tuple(inner.steps))
    outputs, origins = program.outputs, (origin,)
    builder.steps.append(Run(f"{node.name}_rest", (Part(program),), inputs, outputs, origins=origins, at=at))
    return results


def lower_part(
    module: fx.GraphModule, arguments: Sequence[object], targets: Sequence[Buffer], builder: Builder
) -> Part:
    """A subgraph as a part: its inputs are laid out like `arguments`, its results like `targets`."""
    inner, meanings = Builder(builder.target), dict[fx.Node, Lowered]()
    inputs: list[Buffer] = []
    for node, argument in zip(placeholders_of(module.graph), arguments, strict=True):
        meanings[node] = argument
        inner.meet_sizes(symbols_in(value_of(node) if has_value(node) else None))
        if isinstance(argument, Buffer):
            inner.names.add(node.name)
            inputs.append(dataclasses.replace(argument, name=node.name))
            meanings[node] = inputs[-1]
    nodes = [node for node in module.graph.nodes if node.op != "placeholder"]
    results, _ = _lower_nodes(nodes, inner, meanings, builder.node_name, dict(enumerate(targets)))
    return Part(LoopProgram(builder.node_name, tuple(inputs), results, (), tuple(inner.steps)))


def _update_targets(graph: fx.Graph, meanings: Mapping[fx.Node, Lowered]) -> dict[int, Buffer]:
    """Result number → the input whose new value it is, and into which it may be written."""
    targets: dict[int, Buffer] = {}
    for node in placeholders_of(graph):
        number, buffer = updating_result_of(node), meanings[node]
        if number is not None and isinstance(buffer, Buffer):
            targets[number] = buffer
    return targets


def _updates(
    targets: Mapping[int, Buffer],
    returned: Sequence[object],
    results: Sequence[Buffer | Index | None],
    lengths: Mapping[object, int],
    steps: Sequence[Step],
) -> tuple[InputUpdate, ...]:
    """The updates with the steps that may fail before them; `lengths` is the number of steps after each node."""
    fallible = [(i, step.name) for i, step in enumerate(steps) if isinstance(step, Fallible)]
    updates = []
    for number, target in targets.items():
        result, length = results[number], lengths.get(returned[number])
        if isinstance(result, Buffer) and length is not None:
            updates.append(InputUpdate(result, target, frozenset(name for i, name in fallible if i < length)))
    return tuple(updates)


def refuse_fallbacks(program: LoopProgram) -> None:
    """Raise one error that lists every operator that was not lowered, with the user's lines."""
    if missing := program.fallbacks:
        lines = [f"{step.operator} at {step.at or step.name}" for step in missing]
        raise LoweringError(
            "the program cannot run without torch: " + "; ".join(lines),
            why="these operators have no native rule, and a call back into torch needs torch",
            fix="replace them, or compile for use in process",
        )


def _placeholder(node: fx.Node, builder: Builder, inputs: list[Buffer]) -> Lowered:
    value = value_of(node)
    builder.meet_sizes(symbols_in(value))
    if isinstance(value, torch.SymInt):
        # A size that is an input of its own: a zero-dim tensor, whose value is read at the call.
        builder.names.add(node.name)
        inputs.append(Buffer(node.name, "i64", (), ()))
        return to_index(value)
    if not isinstance(value, torch.Tensor):
        return value
    result = _result_of(value, node)
    builder.names.add(node.name)
    inputs.append(Buffer(node.name, result.dtype, result.shape, to_strides(tuple(value.stride()))))
    return inputs[-1]


def _call(node: fx.Node, builder: Builder, meanings: dict[fx.Node, Lowered]) -> Lowered:
    # An operator without results (a check) has no value.
    value = value_of(node) if has_value(node) else None
    if isinstance(value, torch.SymInt) and rule_for(node.target) is None:
        return to_index(value)
    if isinstance(value, torch.SymBool):
        return value
    if isinstance(value, tuple | list) and all(isinstance(each, int | torch.SymInt) for each in value):
        return to_indices(tuple(value))
    if node.target is operator.getitem:
        source, position = node.args
        assert isinstance(source, fx.Node)
        members = meanings[source]
        assert isinstance(members, tuple)
        assert isinstance(position, int)
        return members[position]
    values = value if isinstance(value, tuple | list) else (value,)
    builder.results = tuple(_result_of(each, node) for each in values if isinstance(each, torch.Tensor))
    builder.node_name, builder.origin = node.name, f"{node.name}: {node.target}"
    builder.at = str(source_line_of(node) or "") or None
    builder.number = to_index(value) if isinstance(value, torch.SymInt) else None
    builder.bound = known_bound(value, builder.known_sizes)
    builder.meet_sizes(symbols_in(value))
    replace, arguments = _replacing(meanings), node.args
    rule = rule_for(node.target)
    if node.target is run_with_rng_state:
        stream, drawn, *rest = node.args
        rule, arguments = drawing_rule_for(drawn), (stream, *rest)
        builder.origin = f"{node.name}: {drawn}"
    lowered: Lowered = DECLINED
    if node.target in _BY_MEMORY:
        _require_whole_memory(node)
    if rule is not None:
        before = len(builder.steps)
        lowered = rule(builder, *map(replace, arguments), **{key: replace(each) for key, each in node.kwargs.items()})
        made = builder.steps[before:]
        is_known = all(map(builder.has_routine, _routines_of(made)))
        if not is_known or not builder.takes(builder.origin.rpartition(": ")[2], made):
            del builder.steps[before:]
            lowered = DECLINED
    if lowered is not DECLINED:
        return lowered
    outputs = _fall_back(node, builder, meanings)
    return outputs[0] if isinstance(value, torch.Tensor) else _with_absent(values, outputs)


def _routines_of(steps: Sequence[Step]) -> Iterator[str]:
    return (step.routine for step in steps if isinstance(step, LibraryCall))


def _require_whole_memory(node: fx.Node) -> None:
    """Refuse to address elements by storage where our buffer covers only a part of eager's storage."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = tensor_of(source)
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    if not statically_known_true(whole) or not statically_known_true(value.storage_offset() == 0):
        raise LoweringError(
            f"{node.target} reads beyond the tensor that it is given.",
            at=str(source_line_of(node) or "") or None,
            why=f"{source.name} is a part of a larger memory, of which native code sees this part only",
            fix="call clone() before as_strided, index instead, or compile with backend='interpret'",
        )


def _with_absent(values: Sequence[object], outputs: tuple[Buffer, ...]) -> tuple[Buffer | None, ...]:
    """The outputs at the positions of tensors; None where the operator was asked not to compute a result."""
    present = iter(outputs)
    return tuple(next(present) if isinstance(value, torch.Tensor) else None for value in values)


def _replacing(meanings: dict[fx.Node, Lowered]) -> Callable[[object], object]:
    def replace(argument: object) -> object:
        if isinstance(argument, fx.Node):
            return meanings[argument]
        if isinstance(argument, tuple | list):
            return [replace(item) for item in argument]
        return argument

    return replace


def _fall_back(node: fx.Node, builder: Builder, meanings: dict[fx.Node, Lowered]) -> tuple[Buffer, ...]:
    inputs: list[Buffer] = []

    def encode(argument: object) -> Argument:
        meaning = meanings[argument] if isinstance(argument, fx.Node) else argument
        if isinstance(meaning, Buffer):
            inputs.append(meaning)
            return Slot(len(inputs) - 1)
        if isinstance(meaning, tuple | list):
            return tuple(map(encode, meaning))
        if meaning is None or isinstance(meaning, bool | int | float | str | Index):
            return meaning
        return str(meaning)

    arguments = tuple(map(encode, node.args))
    keyword_arguments = tuple((key, encode(value)) for key, value in node.kwargs.items())
    outputs = tuple(builder.result_buffer(result) for result in builder.results)
    builder.fallback(
        FallbackStep(
            node.name,
            str(node.target),
            tuple(inputs),
            outputs,
            arguments,
            keyword_arguments,
            (builder.origin,),
            builder.at,
            sees_layouts=_sees_layouts(node),
        )
    )
    return outputs


def _sees_layouts(node: fx.Node) -> bool:
    """Torch's generators fill memory in its order; what other libraries' operators do with memory is unknown."""
    namespace, _, name = str(node.target).partition(".")
    return namespace not in ("aten", "prims", "precast") or is_random(node) or name.startswith("as_strided")


def _results(
    node: fx.Node,
    builder: Builder,
    meanings: dict[fx.Node, Lowered],
    targets: Mapping[int, Buffer],
) -> Results:
    results: list[Buffer | Index | None] = []
    for number, each in enumerate(_returned(node)):
        meaning = meanings[each] if isinstance(each, fx.Node) else each
        if isinstance(meaning, int):
            meaning = to_index(meaning)
        if isinstance(meaning, Buffer):
            wanted = _wanted_strides(meaning, each, targets.get(number))
            if meaning not in builder.made or meaning in results or wanted != meaning.strides:
                meaning = _copy(meaning, wanted, builder)
        assert meaning is None or isinstance(meaning, Buffer | Index), f"{each} cannot be returned"
        results.append(meaning)
    return tuple(results)


def _returned(node: fx.Node) -> Sequence[object]:
    (returned,) = node.args
    return returned if isinstance(returned, tuple | list) else (returned,)


def _wanted_strides(buffer: Buffer, node: object, target: Buffer | None) -> Indices:
    """The strides that eager gives a result, if those are dense; a dimension of size 1 may have any stride.

    A result that may be written into `target` takes the strides of that.
    """
    assert isinstance(node, fx.Node)
    if target is not None and target.shape == buffer.shape and is_dense(target.shape, target.strides):
        return target.strides
    strides = to_strides(tuple(tensor_of(node).stride()))
    pairs = zip(buffer.shape, buffer.strides, strides, strict=True)
    is_same = all(size.constant == 1 or mine == eagers for size, mine, eagers in pairs)
    if is_same or is_dense(buffer.shape, strides):
        return buffer.strides if is_same else strides
    order = _dense_order(tensor_of(node))
    return buffer.strides if order is None else _strides_in_order(buffer.shape, order)


def _dense_order(value: torch.Tensor) -> list[int] | None:
    """Dimensions from the innermost on, if the symbolic sizes left no gaps between them when they were traced.

    Other sizes may leave gaps: ``x.unfold(1, 2, 2)`` skips an odd element, and is packed.
    """
    sizes, strides = list(map(size_hint, value.shape)), list(map(size_hint, value.stride()))
    order = sorted(range(value.ndim), key=lambda dim: (strides[dim], sizes[dim] != 1))
    length = 1
    for dim in order:
        if sizes[dim] != 1 and strides[dim] != length:
            return None
        length *= sizes[dim]
    return order


def _strides_in_order(shape: Indices, order: Sequence[int]) -> Indices:
    strides = dict(zip(reversed(order), contiguous_strides(tuple(shape[dim] for dim in reversed(order))), strict=True))
    return tuple(strides[dim] for dim in range(len(shape)))


def _copy(source: Buffer, strides: Indices, builder: Builder) -> Buffer:
    """An output gets memory of its own, even when the graph returns an input, or one value twice."""
    builder.node_name, builder.origin = f"{source.name}_copy", f"{source.name}: returned"
    return builder.define(lambda at: Load(source, at), Result(source.dtype, source.shape, strides))


def _result_of(value: torch.Tensor, node: fx.Node) -> Result:
    dtype = dtype_name(value.dtype)
    is_known = dtype in DTYPES and not value.is_complex()
    if not is_known or value.layout is not torch.strided or value.ndim > MAX_RANK:
        raise LoweringError(
            f"cannot compile {node.target}: it returns a {value.layout} tensor of {value.dtype} with {value.ndim} dims",
            why=f"the native backend handles dense real tensors of up to {MAX_RANK} dims",
            fix="keep that part of the program in eager, or use backend='interpret'",
            at=str(source_line_of(node) or "") or None,
        )
    return Result(dtype, to_indices(tuple(value.shape)), to_strides(tuple(value.stride())))


def _example(value: object, dimension: int | None) -> int | None:
    """The traced value of a number or of a tensor's size; for a data-dependent one, its upper bound."""
    size = value.shape[dimension] if isinstance(value, torch.Tensor) and dimension is not None else value
    if isinstance(size, torch.SymInt) and size.node.has_hint():
        return int(size.node.hint)
    bound = known_bound(size)
    return None if bound is None else bound.constant


def _size_sources(graph_module: fx.GraphModule, inputs: list[Buffer]) -> tuple[SizeSource, ...]:
    """For each dynamic size, the first input that is the size, or has it as a dimension."""
    placeholders = {node.name: node for node in graph_module.graph.nodes if node.op == "placeholder"}
    sources: dict[str, SizeSource] = {}
    for position, buffer in enumerate(inputs):
        value = value_of(placeholders[buffer.name])
        own = [(None, to_index(value))] if isinstance(value, torch.SymInt) else []
        for dimension, size in (*own, *enumerate(buffer.shape)):
            match size.terms:
                case (((Symbol(name),), 1),):
                    example = _example(value, dimension)
                    sources.setdefault(name, SizeSource(name, position, dimension, example=example))
    used = {each.name for buffer in inputs for size in buffer.shape for each in atoms(size) if isinstance(each, Symbol)}
    assert used <= set(sources), f"sizes {sorted(used - set(sources))} are not dimensions of any input"
    return tuple(sources[name] for name in sorted(sources))
