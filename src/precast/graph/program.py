"""The program: a flat ATen graph, the signature of its inputs and outputs, and the state it closes over."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from precast.graph.boundary import BoundaryFacts
from precast.graph.signature import Signature
from precast.graph.sizes import SymbolicSizes


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: how long it took, whether it changed anything, and the graph's size before and after."""

    name: str
    seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True, eq=False)
class Program:
    """A traced program: a graph, its signature, its state and its symbolic sizes.

    Invariants (checked by ``precast.graph.verifier``): placeholders follow ``signature.inputs``, results follow
    ``signature.outputs``, and every parameter, buffer and constant has its tensor in ``state``. A functional program
    has a ``boundary``, and none of its nodes writes to a tensor that another node can see.
    """

    module: fx.GraphModule
    signature: Signature
    state: Mapping[str, torch.Tensor]
    sizes: SymbolicSizes = field(default_factory=SymbolicSizes)
    boundary: BoundaryFacts | None = None
    history: tuple[PassRecord, ...] = ()

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    @property
    def functional(self) -> bool:
        return self.boundary is not None

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def results(self) -> tuple[object, ...]:
        """The arguments of the output node: nodes and plain constants, in order."""
        return tuple(self.graph.output_node().args[0])  # type: ignore[arg-type]

    def copy_graph(self) -> fx.Graph:
        """Return a copy of the graph to edit: node names and metadata are the same, node objects are new."""
        graph = fx.Graph()
        result = graph.graph_copy(self.graph, {}, return_output_node=True)
        assert isinstance(result, tuple), "graph_copy returns the values of the output node"
        returned, original_output = result
        output = graph.output(returned)
        output.meta = dict(original_output.meta)
        return graph

    def replace(self, *, graph: fx.Graph | None = None, **changes: object) -> "Program":
        """Return this program with some fields replaced; a new graph keeps the submodules."""
        if graph is not None:
            changes["module"] = fx.GraphModule(self.module, graph, type(self.module).__name__)
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        from precast.graph.printer import print_program

        return print_program(self)
