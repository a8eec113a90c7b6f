"""Tells compilers which results they may write into the memory of the inputs that these update.

Before: ``graph(x, y) -> (x_new, y + 1)``, and nothing said of ``x_new``
After:  the same graph; its placeholder ``x`` says that result 0 may lie where ``x`` lies

Not where somebody sees the old value afterwards, or would see what the caller does to the input later: gradients that
are computed from it, a result that is the input itself, a result that is the new value.
"""

import operator
from collections.abc import Collection, Iterator

from torch import fx

from precast.ir.boundary import BoundaryFacts, InputFacts, Relation
from precast.ir.graphs import placeholders_of, results_of
from precast.ir.node_meta import mark_updating_result
from precast.ops.facts import is_view


def mark_updates(graph: fx.Graph, facts: BoundaryFacts, *, needed: Collection[int] = ()) -> None:
    """Mark the placeholders of a graph over plain tensors; ``needed`` are inputs whose old values are kept."""
    placeholders, results, count = placeholders_of(graph), results_of(graph), len(facts.updated)
    memory = [set(_shared_by(result)) for result in results]
    seen = [i for i in range(count, len(results)) if not _is_made_again(i - count, facts)]
    for position, number in enumerate(facts.updated):
        value, source = results[position], placeholders[number]
        is_seen = any(value in memory[i] for i in seen) or any(source in memory[i] for i in (*range(count), *seen))
        is_computed = isinstance(value, fx.Node) and value.op == "call_function"
        if is_computed and not is_seen and number not in needed and _changes_data_alone(facts.inputs[number]):
            mark_updating_result(source, position)


def _changes_data_alone(facts: InputFacts) -> bool:
    return not (facts.mutates_metadata or facts.replaces_storage or facts.update_needs_gradient)


def _is_made_again(output: int, facts: BoundaryFacts) -> bool:
    """Whether an output is made from what it aliases, whatever the graph returns for it."""
    return output < len(facts.outputs) and facts.outputs[output].relation is not Relation.FRESH


def _shared_by(result: object) -> Iterator[fx.Node]:
    """The nodes whose memory a result may share."""
    while isinstance(result, fx.Node):
        yield result
        source = result.args[0] if result.args else None
        is_member = result.target is operator.getitem and isinstance(source, fx.Node) and is_view(source)
        result = source if result.op == "call_function" and (is_member or is_view(result)) else None
