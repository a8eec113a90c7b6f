"""The rules that every exported program obeys, as a table; those of the IR first, then those of its dialect."""

import operator
from collections.abc import Callable, Iterator

import torch
from torch import fx

from precast.errors import VerifierError
from precast.export.signature import Dialect
from precast.graph.nodes import has_value
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from precast.graph.verifier import verify as verify_ir

Rule = Callable[[Program], Iterator[str]]
"""A rule yields a sentence for each thing that is wrong."""

_UPDATES = {
    OutputKind.BUFFER_MUTATION: InputKind.BUFFER,
    OutputKind.PARAMETER_MUTATION: InputKind.PARAMETER,
    OutputKind.GRADIENT_TO_PARAMETER: InputKind.PARAMETER,
}
_ON_USER_INPUTS = (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT)
ALLOWED_HIGHER_ORDER = frozenset(
    {
        "cond", "while_loop", "while_loop_stack_output", "map_impl", "scan", "associative_scan",
        "wrap_with_set_grad_enabled", "wrap_with_autocast", "with_effects", "auto_functionalized",
        "auto_functionalized_v2", "out_dtype", "hints_wrapper", "invoke_subgraph", "flex_attention",
        "flex_attention_backward",
    }
)  # fmt: skip


def graphs_of(module: fx.GraphModule, path: str = "") -> Iterator[tuple[str, fx.Graph]]:
    """The graph and its subgraphs of control flow, with the path to each."""
    yield path, module.graph
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            yield from graphs_of(child, f"{path}{name}.")


def _program_is_functional(program: Program) -> Iterator[str]:
    if not program.functional:
        yield "the program was not functionalized"
    for path, graph in graphs_of(program.module):
        for node in graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                yield f"{path}{node.name} calls {node.target}, which writes to its input"


def _subgraphs_have_values(program: Program) -> Iterator[str]:
    for path, graph in graphs_of(program.module):
        for node in graph.nodes:
            if node.op in ("placeholder", "call_function") and not has_value(node):
                yield f"{path}{node.name} carries no traced value"


def _higher_order_ops_are_known(program: Program) -> Iterator[str]:
    for path, graph in graphs_of(program.module):
        for node in graph.nodes:
            target = node.target
            if isinstance(target, torch._ops.HigherOrderOperator) and target._name not in ALLOWED_HIGHER_ORDER:
                yield f"{path}{node.name} calls {target}, which has no place in an exported program"


def _attributes_are_subgraphs(program: Program) -> Iterator[str]:
    for path, graph in graphs_of(program.module):
        owner = program.module.get_submodule(path.rstrip("."))
        for node in graph.nodes:
            if node.op == "get_attr":
                value = _attribute(owner, str(node.target))
                if not isinstance(value, fx.GraphModule):
                    yield f"{path}{node.name} reads the attribute {node.target}; state must be an input"


def _attribute(owner: torch.nn.Module, name: str) -> object:
    try:
        value: object = operator.attrgetter(name)(owner)
    except AttributeError:
        return None
    return value


def _state_specs_are_complete(program: Program) -> Iterator[str]:
    for spec in program.signature.inputs:
        if (spec.target is None) != (spec.kind is InputKind.USER_INPUT):
            yield f"the {spec.kind.name} {spec.arg.name} has {'no' if spec.target is None else 'a'} target"
        if spec.kind is InputKind.BUFFER and spec.persistent is None:
            yield f"the buffer {spec.target} does not say whether it is persistent"
        if spec.kind is InputKind.PARAMETER and not _is_parameter(program, spec):
            yield f"{spec.target} is a parameter in the signature, but its tensor is not"


def _is_parameter(program: Program, spec: InputSpec) -> bool:
    tensor = program.state.get(str(spec.target))
    return tensor is None or isinstance(tensor, torch.nn.Parameter)


def _updates_name_inputs(program: Program) -> Iterator[str]:
    targets = {kind: {s.target for s in program.signature.inputs_of(kind)} for kind in _UPDATES.values()}
    users = {spec.arg.name for spec in program.signature.inputs_of(InputKind.USER_INPUT)}
    for spec in program.signature.outputs:
        known = targets[_UPDATES[spec.kind]] if spec.kind in _UPDATES else users
        if spec.kind in (*_UPDATES, *_ON_USER_INPUTS) and spec.target not in known:
            yield f"{spec.arg.name} is a {spec.kind.name} of {spec.target}, which is not such an input"


def _outputs_are_in_order(program: Program) -> Iterator[str]:
    ranks = [_rank(spec) for spec in program.signature.outputs]
    if ranks != sorted(ranks):
        yield "results must be updates, then user outputs, then gradients"


def _rank(spec: OutputSpec) -> int:
    if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
        return 1
    return 2 if spec.kind in (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT) else 0


def _trees_match_the_signature(program: Program) -> Iterator[str]:
    signature = program.signature
    users = len(signature.inputs_of(InputKind.USER_INPUT))
    if signature.in_tree.num_leaves != users:
        yield f"the tree of arguments has {signature.in_tree.num_leaves} leaves, the signature {users} user inputs"
    returned = len(signature.outputs_of(OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT))
    if signature.out_tree.num_leaves != returned:
        yield f"the tree of results has {signature.out_tree.num_leaves} leaves, the signature {returned} outputs"


def _switches_are_regions(program: Program) -> Iterator[str]:
    for path, graph in graphs_of(program.module):
        for node in graph.nodes:
            if node.target is torch._C._set_grad_enabled:
                yield f"{path}{node.name} switches grad mode; regions of it are subgraphs"


def _training_programs_have_no_gradients(program: Program) -> Iterator[str]:
    for spec in program.signature.outputs_of(OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT):
        yield f"{spec.arg.name} is a gradient, but autograd differentiates this program itself"


RULES: dict[str, Rule] = {
    "programs are functional": _program_is_functional,
    "every node has a value": _subgraphs_have_values,
    "higher-order ops are known": _higher_order_ops_are_known,
    "attributes are subgraphs": _attributes_are_subgraphs,
    "state is described": _state_specs_are_complete,
    "updates name inputs": _updates_name_inputs,
    "outputs are in order": _outputs_are_in_order,
    "trees match the signature": _trees_match_the_signature,
    "grad-mode regions are subgraphs": _switches_are_regions,
}

DIALECT_RULES: dict[Dialect, dict[str, Rule]] = {
    Dialect.TRAINING: {"training programs have no gradients": _training_programs_have_no_gradients},
    Dialect.ATEN: {},
}


def verify(program: Program, dialect: Dialect, *, after: str = "construction") -> None:
    """Raise a ``VerifierError`` that lists every broken rule of the IR or of the dialect."""
    verify_ir(program, after=after)
    rules = RULES | DIALECT_RULES[dialect]
    broken = [f"{name}: {what}" for name, rule in rules.items() for what in rule(program)]
    if broken:
        raise VerifierError(
            f"The exported program ({dialect}) is not sound after {after}.",
            why="; ".join(broken),
            fix="If you edited the graph or the signature, restore what is named here; "
            "otherwise this is a bug of ours, please report it.",
        )
