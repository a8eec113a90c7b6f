"""Leaves updates of inputs inside an inference graph, for compilers that can write into their inputs.

Before: ``graph(x) -> (x_new, y)``, and a copy of ``x_new`` into ``x`` outside
After:  ``graph(x): copy_(x, x_new); return (y,)``
"""

from dataclasses import replace

import torch
from torch import fx

from precast.ir.boundary import BoundaryFacts, InputFacts
from precast.ir.graphs import placeholders_of, results_of
from precast.ir.node_meta import set_value, value_of


def keep_mutations(module: fx.GraphModule, facts: BoundaryFacts) -> BoundaryFacts:
    """Let the graph write the inputs of which only data change; gives the facts of what is left to do outside."""
    graph = module.graph
    placeholders, results, output = placeholders_of(graph), results_of(graph), graph.output_node()
    kept = [number for number in facts.updated if not facts.inputs[number].mutates_metadata]
    with graph.inserting_before(output):
        for number, value in zip(facts.updated, results, strict=False):
            if number in kept:
                write = graph.call_function(torch.ops.aten.copy_.default, (placeholders[number], value))
                set_value(write, value_of(placeholders[number]))
    left = [i for i in range(len(results)) if i >= len(facts.updated) or facts.updated[i] not in kept]
    output.args = (tuple(results[i] for i in left),)
    module.recompile()
    inputs = [
        InputFacts(requires_grad=fact.requires_grad) if i in kept else fact for i, fact in enumerate(facts.inputs)
    ]
    return replace(facts, inputs=tuple(inputs), values=tuple(facts.values[i] for i in left))
