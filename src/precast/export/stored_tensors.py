"""Programs whose forward caches tensors in attributes, where the cache does not affect the results of later calls.

Before: ``if self.cached is None: self.cached = self.biases[:, self.order]``, and ``return x + self.cached``
After:  ``x + biases[:, order]`` in each call

This holds for what is computed from parameters alone: caches, and weights that a hook sets. It is verified by tracing
two consecutive calls as one program, which must equal the program of one call applied twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.errors import PrecastError
from precast.export.unlift import MUTATIONS
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import InputKind, OutputKind, TensorArgument
from precast.ops.facts import is_random
from precast.trace.functionalize import functionalize
from precast.trace.retrace import remove_dead_nodes

Value = int
Record = Callable[[torch.nn.Module], Program]


def without_stored_tensors(
    record: Record, mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, forgets_calls: bool = False
) -> Program | None:
    """The program of ``mod(*args, **kwargs)`` without the tensors it stores, if no later call depends on them.

    ``record`` captures a module that returns a pair with those tensors. With ``forgets_calls``, they may be results of
    the call itself, which nobody will look for.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(opened((tuple(args), dict(kwargs)))) if _is_tensor(leaf)]
    if any(torch._subclasses.fake_tensor.is_fake(leaf) or type(leaf) is not torch.Tensor for leaf in leaves):
        return None
    first = pytree.tree_map(lambda leaf: _like(leaf) if _is_tensor(leaf) else leaf, (tuple(args), dict(kwargs)))
    try:
        once, twice = record(mod), record(_TwoCalls(mod, *first))
    except PrecastError:
        # With different sizes, the second call does not use what the first has stored.
        return None
    examples = {id(leaf): number for number, leaf in enumerate(pytree.tree_leaves(opened(first)))}
    results = _Results(examples)
    is_same = results.are_of_two_calls(functionalize(once), functionalize(twice), forgets_calls=forgets_calls)
    return without_stored_outputs(once) if is_same else None


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class _TwoCalls(torch.nn.Module):
    """A module that is called with other arguments first; called like the module itself."""

    def __init__(self, mod: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.training = mod.training
        self.program = mod

        @wraps(mod.forward)
        def forward(*its_args: Any, **its_kwargs: Any) -> Any:
            mod(*args, **kwargs)
            return mod(*its_args, **its_kwargs)

        self.forward = forward


@dataclass
class _Results:
    """Value numbering for functional programs: equal operations on equal operands get one name."""

    examples: Mapping[int, int]
    names: dict[Any, Value] = field(default_factory=dict)
    of_calls: set[Value] = field(default_factory=set)
    """The names of values that depend on arguments or random numbers."""

    def are_of_two_calls(self, once: Program, twice: Program, *, forgets_calls: bool) -> bool:
        """Whether ``twice`` computes what ``once`` does after another call of it, and stores nothing of one call."""
        kept = {id(tensor) for tensor in twice.state.values()}
        state = {id(tensor): self.name("state", id(tensor)) for tensor in once.state.values() if id(tensor) in kept}
        before, draws = self.run(once, state, "first", 0)
        leaks = once.signature.outputs_of(OutputKind.USER_OUTPUT)[_own_count(once) :]
        tensors = [spec.arg.name for spec in leaks if isinstance(spec.arg, TensorArgument)]
        if not forgets_calls and any(before[name] in self.of_calls for name in tensors if name in before):
            return False
        updated = {id(once.state[str(name)]): value for name, value in self.mutated(once, before).items()}
        if any(spec.kind is OutputKind.USER_INPUT_MUTATION for spec in once.signature.outputs):
            return False
        expected, _ = self.run(once, state | updated, "second", draws)
        found, _ = self.run(twice, state, "second", 0)
        wanted = {f"program.{name}": value for name, value in self.mutated(once, expected).items()}
        return wanted == self.mutated(twice, found) and self.returned(once, expected) == self.returned(twice, found)

    def mutated(self, program: Program, values: Mapping[str, Value]) -> dict[str, Value]:
        return {str(spec.target): values[spec.arg.name] for spec in program.signature.outputs_of(*MUTATIONS)}

    def returned(self, program: Program, values: Mapping[str, Value]) -> list[Any]:
        own = program.signature.outputs_of(OutputKind.USER_OUTPUT)[: _own_count(program)]
        return [values.get(spec.arg.name, spec.arg) for spec in own]

    def name(self, *what: Any) -> Value:
        return self.names.setdefault(what, len(self.names))

    def run(self, program: Program, state: Mapping[int, Value], call: str, draws: int) -> tuple[dict[str, Value], int]:
        """The names of all values of the graph, by node name, and the number of random draws."""
        values: dict[fx.Node, Value] = {}
        arguments = 0
        specs = {spec.arg.name: spec for spec in program.signature.inputs}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                if spec.kind is InputKind.USER_INPUT:
                    values[node] = self.name(call, arguments)
                    arguments += 1
                    self.of_calls.add(values[node])
                else:
                    values[node] = self.of_state(program.state[str(spec.target)], state)
            elif node.op != "output":
                draws += is_random(node)
                values[node] = self.result(program.module, node, values, draws)
        return {node.name: value for node, value in values.items()}, draws

    def of_state(self, tensor: torch.Tensor, state: Mapping[int, Value]) -> Value:
        if id(tensor) in state:
            return state[id(tensor)]
        if (number := self.examples.get(id(tensor))) is not None:
            self.of_calls.add(value := self.name("first", number))
            return value
        # A constant that the program creates in each call.
        return self.name("constant", str(tensor.dtype), tuple(tensor.shape), str(tensor.tolist()))

    def result(self, module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Value], draws: int) -> Value:
        if node.op == "get_attr":
            return self.name("graph", getattr(module, str(node.target)).code)
        given = fx.map_arg((node.args, dict(node.kwargs)), lambda read: f"%{values[read]}")
        value = self.name(str(node.target), str(given), draws if is_random(node) else 0)
        if is_random(node) or any(values[read] in self.of_calls for read in node.all_input_nodes):
            self.of_calls.add(value)
        return value


def _own_count(program: Program) -> int:
    return program.signature.out_tree.children()[0].num_leaves


def without_stored_outputs(program: Program) -> Program:
    """The program without the outputs that it stores."""
    own, signature, graph = _own_count(program), program.signature, program.copy_graph()
    (results,) = graph.output_node().args
    assert isinstance(results, tuple), "traced graphs return one flat tuple"
    graph.output_node().args = (results[:own],)
    remove_dead_nodes(graph)
    signature = signature.replace(outputs=signature.outputs[:own], out_tree=signature.out_tree.children()[0])
    return program.replace(graph=graph, signature=signature)
