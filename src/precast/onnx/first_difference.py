"""Finds the first node of a program at which its ONNX model computes something else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from precast.ir.program import Program
from precast.ir.signature import ConstantArgument, InputKind
from precast.onnx.closeness import difference
from precast.onnx.session import Session


@dataclass(frozen=True)
class NodeDifference:
    """A node of the program, and what is wrong with what the model has for it."""

    node: str
    problem: str


def first_difference(model: ir.Model, program: Program, inputs: Sequence[torch.Tensor]) -> NodeDifference | None:
    """Compare every value that both sides have, in the program's order."""
    by_node = _values_by_node(model)
    probe = model.clone()
    own = {value.name: value for node in probe.graph for value in node.outputs}
    probed = [name for name in by_node.values() if name in own]
    if not probed:
        return None
    probe.graph.outputs[:] = [own[name] for name in probed]
    actual = dict(zip(probed, Session(probe).run(inputs), strict=True))
    recorder = _ValueRecorder(program.module)
    with torch.no_grad():
        recorder.run(*_graph_inputs(program, inputs))
    for node, expected in recorder.seen.items():
        name = by_node.get(node)
        if name in actual and (problem := difference(actual[name], expected)):
            return NodeDifference(node.partition("__")[0], problem)
    return None


def _values_by_node(model: ir.Model) -> dict[str, str]:
    """The names that the program's values have in the model; what optimization removed is left out."""
    values = [value for node in model.graph for value in node.outputs if value.type is not None]
    names = {str(value.name): str(value.name) for value in values}
    for value in model.graph.outputs:
        if origin := value.metadata_props.get("precast.node"):
            names[origin] = str(value.name)
    return names


class _ValueRecorder(fx.Interpreter):
    """Runs a graph and keeps every tensor that its operators give."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            parts = {n.name: result}
            if isinstance(result, (list, tuple)):
                parts = {f"{n.name}__{number}": part for number, part in enumerate(result)}
            self.seen |= {name: part for name, part in parts.items() if _is_comparable(part)}
        return result


def _is_comparable(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex()


def _graph_inputs(program: Program, inputs: Sequence[torch.Tensor]) -> list[Any]:
    remaining = iter(inputs)
    bound: list[Any] = []
    for spec in program.signature.inputs:
        if spec.kind is not InputKind.USER_INPUT:
            bound.append(program.state[str(spec.target)])
        else:
            bound.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else next(remaining))
    return bound
