"""The rules that every program obeys, as a table. The error for a broken rule names the stage that broke it."""

import math
import operator
from collections.abc import Callable, Iterator

import torch
from torch import fx

from precast.errors import VerifierError
from precast.graph.nodes import has_value, source_line_of
from precast.graph.program import Program
from precast.graph.signature import InputKind

Rule = Callable[[Program], Iterator[tuple[str, fx.Node | None]]]
"""A rule yields each violation as a text and the node concerned, if there is one."""

_STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# Arithmetic on symbolic sizes is traced as calls of Python functions.
_PLAIN_FUNCTION_HOMES = {
    operator.__name__,
    "_operator",
    math.__name__,
    "torch.fx.experimental.symbolic_shapes",
}
# Rounding of sizes, and the mode switches that a pre-dispatch graph has between its operators.
_FURTHER_FUNCTIONS = (
    round,
    torch._C._set_grad_enabled,
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)


def _graph_is_well_formed(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    try:
        program.graph.lint()
    except RuntimeError as error:
        yield str(error), None


def _targets_are_operators(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    for node in program.graph.nodes:
        if node.op in ("call_module", "call_method"):
            yield f"{node.op} of {node.target!r}, where only operators are allowed", node
        elif node.op == "call_function" and not is_operator(node.target):
            yield f"unknown target {node.target!r}", node


def is_operator(target: object) -> bool:
    """Whether a node may call this: an operator, or a Python function for arithmetic on sizes."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return True
    if target in _FURTHER_FUNCTIONS:
        return True
    home = getattr(target, "__module__", None)
    is_of_torch = home == "torch" and getattr(target, "__name__", "").startswith(("sym_", "_sym_"))
    return callable(target) and (is_of_torch or home in _PLAIN_FUNCTION_HOMES)


def _every_node_has_a_value(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    for node in program.graph.nodes:
        if node.op in ("placeholder", "call_function") and not has_value(node):
            yield "carries no traced value", node


def _inputs_match_the_signature(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    names = [node.name for node in program.placeholders]
    promised = [spec.arg.name for spec in program.signature.inputs]
    if names != promised:
        yield f"placeholders are {names}, the signature says {promised}", None


def _outputs_match_the_signature(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    results, specs = program.results, program.signature.outputs
    if len(results) != len(specs):
        yield f"returns {len(results)} values, the signature says {len(specs)}", None
        return
    for result, spec in zip(results, specs, strict=True):
        if isinstance(result, fx.Node) and result.name != spec.arg.name:
            yield f"returns {result.name} where the signature says {spec.arg.name}", result


def _state_is_complete(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    wanted = [spec.target for spec in program.signature.inputs_of(*_STATE_KINDS)]
    for name in wanted:
        if name not in program.state:
            yield f"state {name!r} is an input but no tensor is stored for it", None
    for name in program.state:
        if name not in wanted:
            yield f"a tensor is stored for {name!r}, which is not an input", None


def _nothing_mutates(program: Program) -> Iterator[tuple[str, fx.Node | None]]:
    if not program.functional:
        return
    for node in program.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            yield f"{target} writes to its input in a functional program", node


RULES: dict[str, Rule] = {
    "graph is well formed": _graph_is_well_formed,
    "targets are operators": _targets_are_operators,
    "every node has a value": _every_node_has_a_value,
    "inputs match the signature": _inputs_match_the_signature,
    "outputs match the signature": _outputs_match_the_signature,
    "state is complete": _state_is_complete,
    "functional programs do not mutate": _nothing_mutates,
}


def verify(program: Program, *, after: str = "construction") -> None:
    """Raise a ``VerifierError`` that lists every broken rule, if there is one."""
    broken = [(name, what, node) for name, rule in RULES.items() for what, node in rule(program)]
    if not broken:
        return
    lines = [f"{name}: {f'node {node.name} ' if node else ''}{what}" for name, what, node in broken]
    places = [line for _, _, node in broken if node is not None and (line := source_line_of(node))]
    raise VerifierError(
        f"The program is not sound after {after}.",
        at=str(places[0]) if places else None,
        why="; ".join(lines),
        fix="If you edited the graph, restore what is named here; otherwise this is a bug of ours, please report it.",
    )
