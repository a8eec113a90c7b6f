"""Brings an exported graph into its final form: removes leftovers of tracing, and renumbers the names of nodes.

Before: ``add_3 = add(b_count, 1); _assert_tensor_metadata(x, …); detach = detach(c)``
After:  ``add = add(b_count, 1)``

Views that would depend on a layout known only at run time become reshapes.

Before: ``a = scaled_dot_product_attention(…); t = transpose(a, 1, 2); v = view(t, …)``
After:  the same with ``reshape``, which copies if the kernel of that call returned another layout

Tracing drops ``contiguous()`` where its fake result is contiguous already. For a composite op that is preserved, the
kernel, and so the layout of the result, depends on the device, the grad mode and the sizes of each call.

Results are named after their op and numbered in order; inputs of a subgraph are named as outside.

Before: ``add_3 = add(x, 1); cond = cond(p, true_graph_0, false_graph_0, (add_3,))`` with ``true_graph_0(arg0_1)``
After:  ``add = add(x, 1); cond = cond(p, true_graph_0, false_graph_0, (add,))`` with ``true_graph_0(add)``
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from precast.errors import ExportError, StateMutationError
from precast.export.preserved_ops import is_composite
from precast.export.regions import fold_regions
from precast.export.sizes import collected_sizes
from precast.export.unlift import MUTATIONS, NORMALIZING_AND_UPDATING
from precast.graph.code_at_the_end import code_at_the_end
from precast.graph.nodes import placeholders_of, set_value, source_line_of, tensor_of, value_of
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, OutputSpec
from precast.graph.tensor_spec import TensorSpec
from precast.ops.facts import is_view
from precast.trace.capture.prepare import unique_names
from precast.trace.record import argument_spec
from precast.trace.retrace import remove_dead_nodes

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)


def reshape_where_layout_is_open(graph: fx.Graph) -> None:
    """Replace such views by ``reshape``, in place."""
    open_layout: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if is_view(node) or node.target in (*_VIEWS, _aten.reshape.default):
            if not open_layout.isdisjoint(node.all_input_nodes[:1]):
                open_layout.add(node)
                if node.target in _VIEWS:
                    node.target = _aten.reshape.default
        elif is_composite(node.target):
            open_layout.add(node)


def _submodule(module: fx.GraphModule, node: fx.Node) -> torch.nn.Module:
    found = attrgetter(str(node.target))(module)
    if isinstance(found, torch.nn.Module):
        return found
    raise ExportError(
        f"The program makes a {type(found).__name__} and uses it.",
        at=str(source_line_of(next(iter(node.users), node)) or "") or None,
        why="an exported program holds tensors and plain values",
        fix="Draw from the default generator, or take random numbers as arguments.",
    )


def with_counted_names(module: fx.GraphModule, inputs: Sequence[str] | None = None) -> fx.GraphModule:
    """A copy of the module and its subgraphs with such names; ``inputs`` are new names for the placeholders."""
    nodes = list(module.graph.nodes)
    placeholders = placeholders_of(module.graph)
    first = list(inputs) if inputs is not None else [node.name for node in placeholders]
    others = [node for node in nodes if node.op not in ("placeholder", "output")]
    names = dict(zip([*placeholders, *others], unique_names([*first, *map(_stem, others)]), strict=True))
    root = torch.nn.Module()
    for node in nodes:
        if node.op == "get_attr":
            child = _submodule(module, node)
            outer = _names_outside(module, node, names)
            renamed = with_counted_names(child, outer) if isinstance(child, fx.GraphModule) else child
            root.add_module(str(node.target), renamed)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.create_node(
            node.op,
            names[node] if node.op == "placeholder" else node.target,
            fx.map_arg(node.args, copies.__getitem__),
            fx.map_arg(node.kwargs, copies.__getitem__),
            name=names.get(node),
        )
        copies[node].meta = dict(node.meta)
    return fx.GraphModule(root, graph, type(module).__name__)


def _stem(node: fx.Node) -> str:
    if node.op == "get_attr":
        return str(node.target).replace(".", "_")
    name = getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.rpartition("::")[2]
    # fx does not allow names that Python or torch reserve.
    return fx.Graph()._graph_namespace.create_name(name.lower(), None) if name.isidentifier() else node.name


def _names_outside(module: fx.GraphModule, attribute: fx.Node, names: dict[fx.Node, str]) -> list[str] | None:
    """The names of a subgraph's inputs outside it: the operands of the calling node after its last subgraph."""
    child = module.get_submodule(str(attribute.target))
    if len(attribute.users) != 1 or not isinstance(child, fx.GraphModule):
        return None
    (caller,) = attribute.users
    graphs = [
        i for i, argument in enumerate(caller.args) if isinstance(argument, fx.Node) and argument.op == "get_attr"
    ]
    operands = pytree.tree_leaves(list(caller.args[max(graphs) + 1 :]), is_leaf=lambda v: isinstance(v, fx.Node))
    inside = placeholders_of(child.graph)
    if len(operands) != len(inside):
        return None
    return [names[o] if isinstance(o, fx.Node) else node.name for o, node in zip(operands, inside, strict=True)]


# Inputs are checked for dtype and device at each call, so nothing derived from them needs a check inside.
_LEFTOVERS = (_aten._assert_tensor_metadata.default,)


@code_at_the_end
def tidied(program: Program, *, requiring_grad: Collection[str] = (), is_as_written: bool = False) -> Program:
    """The same program, tidied; the argument is not changed. ``requiring_grad`` are the inputs that require grad.

    A graph that ``is_as_written`` has every operator that the user called, including no-op views.
    """
    graph = program.copy_graph()
    for node in list(graph.nodes):
        if node.target in _LEFTOVERS:
            graph.erase_node(node)
        elif node.target is _aten.copy.default and _is_plain_copy(node):
            node.replace_all_uses_with(node.args[1])
        elif node.target is _aten.clone.default and {user.target for user in node.users} <= NORMALIZING_AND_UPDATING:
            node.replace_all_uses_with(node.args[0])
    remove_dead_nodes(graph)
    if not is_as_written:
        reshape_where_layout_is_open(graph)
    program = with_ordered_constants(without_unused_constants(program.replace(graph=graph)))
    program = program.replace(module=with_counted_names(fold_regions(program.module)))
    _note_required_gradients(program, requiring_grad)
    program = program.replace(sizes=collected_sizes(program))
    program = program.replace(signature=program.signature.replace(outputs=named_outputs(program)))
    _check_sizes_are_kept(program)
    return program


def _check_sizes_are_kept(program: Program) -> None:
    """Refuse programs that change the sizes of inputs or state, into which the results are copied."""
    targets = [spec.arg.name if spec.target is None else spec.target for spec in program.signature.inputs]
    inputs = dict(zip(targets, program.placeholders, strict=True))
    for spec, result in zip(program.signature.outputs, program.results, strict=True):
        if spec.kind not in MUTATIONS or not isinstance(result, fx.Node):
            continue
        before, after = (tensor_of(node) for node in (inputs[str(spec.target)], result))
        pairs = zip(before.shape, after.shape, strict=False)
        if before.ndim != after.ndim or not all(statically_known_true(left == right) for left, right in pairs):
            raise StateMutationError(
                f"The program changes the sizes of {spec.target} in place, from {TensorSpec.of(before)} to "
                f"{TensorSpec.of(after)}.",
                at=str(source_line_of(result) or "") or None,
                why="what a program writes is copied into tensors that keep their sizes",
                fix="Work on a view of the tensor (x.t() for x.t_()), and return it if it is needed.",
            )


def without_unused_constants(program: Program) -> Program:
    """The program without constants that nothing reads, such as those whose value was specialized."""
    unused = {node.name: node for node in program.placeholders if not node.users}
    specs = program.signature.inputs
    kept = [s for s in specs if s.kind is not InputKind.CONSTANT_TENSOR or s.arg.name not in unused]
    if len(kept) == len(specs) or program.boundary is None:
        return program
    facts = [facts for facts, spec in zip(program.boundary.inputs, specs, strict=True) if spec in kept]
    for name in {spec.arg.name for spec in specs} - {spec.arg.name for spec in kept}:
        program.graph.erase_node(unused[name])
    targets = {spec.target for spec in kept}
    return program.replace(
        signature=program.signature.replace(inputs=tuple(kept)),
        state={name: tensor for name, tensor in program.state.items() if name in targets},
        boundary=replace(program.boundary, inputs=tuple(facts)),
    )


def with_ordered_constants(program: Program) -> Program:
    """Constants in the order in which the graph first reads them, in whichever order tracing lifted them."""
    placeholders, specs = program.placeholders, program.signature.inputs
    positions = [i for i, spec in enumerate(specs) if spec.kind is InputKind.CONSTANT_TENSOR]
    first_use: dict[fx.Node, int] = {}
    for number, node in enumerate(program.graph.nodes):
        for position, source in enumerate(node.all_input_nodes):
            first_use.setdefault(source, number * 10_000 + position)
    ordered = sorted(positions, key=lambda i: first_use.get(placeholders[i], 0))
    if ordered == positions:
        return program
    graph = program.copy_graph()
    copies = [node for node in graph.nodes if node.op == "placeholder"]
    before = copies[positions[0]]
    for position in ordered:
        if copies[position] is not before:
            before.prepend(copies[position])
        else:
            before = before.next
    inputs = list(specs)
    for position, source in zip(positions, ordered, strict=True):
        inputs[position] = specs[source]
    return program.replace(graph=graph, signature=program.signature.replace(inputs=tuple(inputs)))


def _note_required_gradients(program: Program, names: Collection[str]) -> None:
    """Tracing detaches the fake values of inputs: mark those that require grad again."""
    for node in program.placeholders:
        value = value_of(node)
        if node.name in names and isinstance(value, FakeTensor):
            with value.fake_mode:
                set_value(node, value.detach().requires_grad_())


def _is_plain_copy(node: fx.Node) -> bool:
    """Whether the value already equals what a copy into the target would yield: same dtype, sizes and strides."""
    source = node.args[1]
    return isinstance(source, fx.Node) and TensorSpec.of(tensor_of(source)) == TensorSpec.of(tensor_of(node))


def named_outputs(program: Program) -> tuple[OutputSpec, ...]:
    """The signature's outputs with the current names of the results."""
    pairs = enumerate(zip(program.signature.outputs, program.results, strict=True))
    arguments = [spec.arg if isinstance(spec.arg, ConstantArgument) else argument_spec(r, i) for i, (spec, r) in pairs]
    return tuple(map(lambda spec, arg: replace(spec, arg=arg), program.signature.outputs, arguments))
