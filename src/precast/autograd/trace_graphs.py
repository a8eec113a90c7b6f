"""Traces the graphs that compilers get: the joint graph for training, or the forward alone for inference."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from precast.differentiate import joint, tangents_for
from precast.functionalize import functionalized
from precast.ir.boundary import BoundaryFacts
from precast.tracing.boundary_outputs import returning_boundary
from precast.tracing.dead_code import remove_dead_nodes
from precast.tracing.fake_inputs import FakeInputs, fresh_copies
from precast.tracing.trace import Decompositions, FlatFunction, rename_placeholders, trace


def trace_joint(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    *,
    decompositions: Decompositions | None,
    module_names: Mapping[int, str],
) -> fx.GraphModule:
    """``primals_1…n, tangents_1…m -> (updated inputs, outputs, bases, gradients)`` as one functional graph."""
    with fakes.mode:
        primals = [
            value.detach().requires_grad_(fact.requires_grad) if isinstance(value, torch.Tensor) else value
            for value, fact in zip(inputs, facts.inputs, strict=True)
        ]
        tangents = tangents_for(facts)
    module = trace(
        functionalized(joint(function, facts)),
        [*primals, *tangents],
        fakes.mode,
        decompositions=decompositions,
        module_names=module_names,
    )
    names = [f"primals_{i + 1}" for i in range(len(primals))] + [f"tangents_{i + 1}" for i in range(len(tangents))]
    return tidy(rename_placeholders(module, names))


def trace_inference(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    *,
    decompositions: Decompositions | None,
    module_names: Mapping[int, str],
) -> fx.GraphModule:
    """``arg0_1…  -> (updated inputs, outputs, bases)`` as a functional graph."""
    with fakes.mode:
        copies = fresh_copies(inputs)
    module = trace(
        functionalized(returning_boundary(function, facts)),
        copies,
        fakes.mode,
        decompositions=decompositions,
        module_names=module_names,
    )
    return tidy(rename_placeholders(module, [f"arg{i}_1" for i in range(len(inputs))]))


def tidy(module: fx.GraphModule) -> fx.GraphModule:
    for node in module.graph.nodes:
        # In a functional graph nothing is written to, so a detached alias is the value itself.
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    remove_dead_nodes(module.graph)
    module.recompile()
    return module
