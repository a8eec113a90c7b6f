"""Converts programs to compute products and convolutions in bfloat16, with weights stored in bfloat16.

Before: ``linear(x, p_weight)`` with ``p_weight: f32``
After:  ``linear(_to_copy(x, bfloat16), p_weight)`` with ``p_weight: bf16``

The same operands are rounded as by ``torch.autocast``. Inputs and results keep their types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx

from precast.export.decompose import decompose
from precast.export.program import ExportedProgram
from precast.export.sizes import fake_mode_of
from precast.graph.nodes import set_value, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, OutputSpec
from precast.packaging.traced_program import STATE_UPDATES
from precast.trace.record import argument_spec

Memory = tuple[object, ...]
"""The identity of a state tensor, whatever each program calls it."""
_cast = torch.ops.aten._to_copy.default
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def in_bfloat16(programs: Mapping[str, ExportedProgram]) -> dict[str, ExportedProgram]:
    """The programs in bfloat16; shared weights remain shared."""
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        rounded = {name: decompose(exported, {}) for name, exported in programs.items()}
    updated = {memory for exported in rounded.values() for memory in _updated(exported.program)}
    wanted = {memory for exported in rounded.values() for memory in _rounded_state(exported.program)} - updated
    stored: dict[Memory, torch.Tensor] = {}
    return {
        name: exported.replace(_with_types_of(programs[name].program, _over_rounded(exported.program, wanted, stored)))
        for name, exported in rounded.items()
    }


def _memory_of(tensor: torch.Tensor) -> Memory:
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _updated(program: Program) -> list[Memory]:
    targets = [str(spec.target) for spec in program.signature.outputs if spec.kind in STATE_UPDATES]
    return [_memory_of(program.state[target]) for target in targets]


def _state(program: Program) -> list[tuple[fx.Node, str]]:
    pairs = zip(program.placeholders, program.signature.inputs, strict=True)
    return [(node, str(spec.target)) for node, spec in pairs if spec.kind in _STATE]


def _rounded_state(program: Program) -> list[Memory]:
    return [_memory_of(program.state[target]) for node, target in _state(program) if any(map(_is_rounding, node.users))]


def _is_rounding(node: fx.Node) -> bool:
    return node.target is _cast and node.kwargs == {"dtype": torch.bfloat16}


def _over_rounded(program: Program, wanted: Collection[Memory], stored: dict[Memory, torch.Tensor]) -> Program:
    """The program over rounded state; other readers of it widen it."""
    graph, state = program.copy_graph(), dict(program.state)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    copies = {node.name: node for node in graph.nodes}
    for original, target in _state(program):
        memory = _memory_of(program.state[target])
        if memory not in wanted:
            continue
        if memory not in stored:
            stored[memory] = program.state[target].detach().to(torch.bfloat16)
        node, wide = copies[original.name], value_of(original)
        assert isinstance(wide, torch.Tensor), f"{target} is not a tensor"
        state[target] = _as_was(program.state[target], stored[memory])
        for cast in [user for user in node.users if _is_rounding(user)]:
            set_value(node, value_of(cast))
            cast.replace_all_uses_with(node)
            graph.erase_node(cast)
        # In a program that never rounds it, but shares it with one that does.
        if value_of(node) is wide:
            with fake_mode_of(program):
                set_value(node, wide.to(torch.bfloat16))
        _widen_for_others(graph, first, original, node)
    return program.replace(graph=graph, state=state)


def _as_was(original: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    is_parameter = isinstance(original, torch.nn.Parameter)
    return torch.nn.Parameter(rounded, requires_grad=original.requires_grad) if is_parameter else rounded


def _widen_for_others(graph: fx.Graph, first: fx.Node, original: fx.Node, node: fx.Node) -> None:
    others = {user.name for user in original.users if not _is_rounding(user)}
    users = [user for user in node.users if user.name in others]
    if not users:
        return
    with graph.inserting_before(first):
        widened = graph.call_function(_cast, (node,), {"dtype": torch.float32})
    set_value(widened, value_of(original))
    for user in users:
        user.replace_input_with(node, widened)


def _with_types_of(before: Program, program: Program) -> Program:
    """The program with its results in their original types."""
    graph = program.copy_graph()
    output, results = graph.output_node(), []
    for own, wanted in zip(output.args[0], before.results, strict=True):  # type: ignore[arg-type]
        value, had = (value_of(each) if isinstance(each, fx.Node) else each for each in (own, wanted))
        if isinstance(value, torch.Tensor) and isinstance(had, torch.Tensor) and value.dtype != had.dtype:
            assert isinstance(own, fx.Node), "tensors are computed"
            with graph.inserting_before(output):
                result = graph.call_function(_cast, (own,), {"dtype": had.dtype})
            with fake_mode_of(program):
                set_value(result, value.to(had.dtype))
            results.append(result)
        else:
            results.append(own)
    output.args = (tuple(results),)
    specs = tuple(
        OutputSpec(spec.kind, argument_spec(result, number), spec.target)
        for number, (spec, result) in enumerate(zip(program.signature.outputs, results, strict=True))
    )
    return program.replace(graph=graph, signature=program.signature.replace(outputs=specs))
