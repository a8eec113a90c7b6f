"""The reference interpreter: runs a program one ATen op at a time, exactly as the graph says.

Slow, and correct by construction; every faster way to run a program is compared with it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.graph.boundary import InputFacts
from precast.graph.calls import CallConvention, expected_leaves
from precast.graph.program import Program
from precast.graph.signature import InputKind, OutputKind

_MUTATION_KINDS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def interpret(program: Program, *args: Any, state: Mapping[str, torch.Tensor] | None = None, **kwargs: Any) -> Any:
    """Run a program with torch, like the captured callable: same arguments, same results, same in-place updates.

    >>> from precast.trace.capture import capture
    >>> interpret(capture(lambda pair: pair["a"] + pair["b"], ({"a": torch.ones(2), "b": torch.ones(2)},)),
    ...           {"a": torch.zeros(2), "b": torch.ones(2)})
    tensor([1., 1.])
    """
    flat_inputs = bind_inputs(program, args, kwargs, state if state is not None else program.state)
    flat_outputs = fx.Interpreter(program.module).run(*flat_inputs)
    apply_mutations(program, flat_inputs, flat_outputs)
    user_outputs = [
        value
        for value, spec in zip(flat_outputs, program.signature.outputs, strict=True)
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    return pytree.tree_unflatten(user_outputs, program.signature.out_tree)


def bind_inputs(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], state: Mapping[str, torch.Tensor]
) -> list[Any]:
    """The graph's flat inputs, in order, for one call of the original signature."""
    convention = CallConvention(program.signature.in_tree, expected_leaves(program), program.sizes)
    remaining = iter(pytree.tree_leaves(convention.normalized(args, kwargs)))
    bound: list[Any] = []
    for spec in program.signature.inputs:
        if spec.kind is InputKind.USER_INPUT:
            bound.append(next(remaining))
        else:
            assert spec.target is not None, f"state input {spec.arg.name} has no target"
            bound.append(state[spec.target])
    return bound


def apply_mutations(program: Program, flat_inputs: list[Any], flat_outputs: list[Any]) -> None:
    """Update the inputs of a functional program to the values, sizes and storages that the callable would leave."""
    assert program.boundary is not None or not program.signature.outputs_of(*_MUTATION_KINDS), "no facts on mutation"
    updates = [
        value
        for value, spec in zip(flat_outputs, program.signature.outputs, strict=True)
        if spec.kind in _MUTATION_KINDS
    ]
    if program.boundary is None:
        return
    with torch.no_grad():
        for number, value in zip(program.boundary.updated, updates, strict=True):
            _update(flat_inputs[number], value, program.boundary.inputs[number])


def _update(tensor: torch.Tensor, value: torch.Tensor, facts: InputFacts) -> None:
    if facts.replaces_storage:
        tensor.set_(value)  # type: ignore[call-overload]
        return
    if facts.metadata_steps:
        view = torch._C._functionalization.apply_view_meta_sequence(tensor, list(facts.metadata_steps))
        tensor.as_strided_(view.size(), view.stride(), view.storage_offset())
    elif facts.mutates_metadata:
        tensor.resize_(value.size())
    if facts.mutates_data or not facts.metadata_steps:
        tensor.copy_(value)
