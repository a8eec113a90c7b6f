"""Captures a program from a callable and example inputs, by running it once on fake tensors.

Tensor constants in the trace (``torch.tensor([1, 2])`` in the program) are lifted to inputs, like all other state.

Before: ``c = self._tensor_constant0; y = add(x, c)``. After: ``y = add(x, c_lifted_tensor_0)``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.utils import _pytree as pytree

from precast.errors import CaptureError
from precast.graph.code_at_the_end import code_at_the_end
from precast.graph.nodes import set_value, source_line_of
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import (
    ArgumentSpec,
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    Signature,
    TensorArgument,
    value_argument,
)
from precast.graph.verifier import verify
from precast.trace.capture.branch_constants import lift_constants_of_branches
from precast.trace.capture.contradictions import check_no_contradictions
from precast.trace.capture.dynamic_shapes import named_arguments, normalize_dynamic_shapes
from precast.trace.capture.failures import InnerTransformError, refuse_inner_transforms
from precast.trace.capture.least_sizes import with_least_sizes
from precast.trace.capture.module_state import constant_names, root_modules
from precast.trace.capture.ones_in_examples import with_ones_if_needed
from precast.trace.capture.prepare import PreparedCall, prepare
from precast.trace.captured_tensors import UnknownStateError
from precast.trace.decisions import UndecidedError
from precast.trace.eager.symbolic_numbers import extremes_of_symbols
from precast.trace.fake_inputs import FakeInputs, fresh_copies
from precast.trace.record import Decompositions, argument_spec, rename_placeholders, trace
from precast.trace.retrace import remove_dead_nodes
from precast.trace.session import tracing_session
from precast.trace.state.stored import Stored


def lift_constants(
    module: fx.GraphModule, fakes: FakeInputs, *, position: int, first_number: int
) -> dict[str, torch.Tensor]:
    """Turn tensor attributes into placeholders from ``position`` on; returns their names and tensors in order."""
    graph = module.graph
    attributes = [node for node in graph.nodes if node.op == "get_attr" and _is_tensor(module, node)]
    if not attributes:
        return {}
    lifted: dict[str, torch.Tensor] = {}
    placeholders: dict[int, fx.Node] = {}
    following = [node for node in graph.nodes if node.op == "placeholder"][position:]
    start = following[0] if following else next(node for node in graph.nodes if node.op != "placeholder")
    for node in attributes:
        tensor = getattr(module, str(node.target))
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is fakes.mode:
            raise CaptureError(
                "The program uses a tensor that was not recorded.",
                at=str(source_line_of(next(iter(node.users), node)) or "") or None,
                why="it comes out of an object that is opaque to tracing, such as an inner tensor of a tensor subclass",
                fix="Pass the inner tensors as arguments of their own, or use the whole object.",
            )
        if id(tensor) not in placeholders:
            with graph.inserting_before(start):
                placeholder = graph.placeholder(f"c_lifted_tensor_{first_number + len(lifted)}")
            set_value(placeholder, fakes.fake(tensor))
            placeholders[id(tensor)] = placeholder
            lifted[placeholder.name] = tensor
        node.replace_all_uses_with(placeholders[id(tensor)])
        graph.erase_node(node)
    for name in {str(node.target) for node in attributes}:
        delattr(module, name)
    module.recompile()
    return lifted


def _is_tensor(module: fx.GraphModule, node: fx.Node) -> bool:
    return isinstance(getattr(module, str(node.target), None), torch.Tensor)


def capture(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    decompositions: Decompositions | None = None,
    pre_dispatch: bool = False,
    allows_narrower_sizes: bool = False,
    may_fork: bool = False,
    returns_leaks: bool = False,
    constant_arguments: Sequence[str] = (),
    knows_state: bool = False,
    tell_stored: Callable[[Stored], object] | None = None,
) -> Program:
    """Record what ``function(*args, **kwargs)`` does, as a flat graph of ATen ops over lifted state.

    No real computation happens, and nothing that the caller can see changes. Parameters, buffers and other tensors that
    the program uses become inputs, each once; Python values are constants. With ``may_fork``, a Python branch on the
    value of a tensor becomes a ``cond``. With ``returns_leaks``, the result is a pair with the traced values that the
    program left in Python state, where tensors are an error otherwise; ``tell_stored`` is called with all that it left
    there, which has been restored. Tensors among the ``constant_arguments`` are constants: what depends on them alone
    is computed now, and each run checks their values; with ``knows_state``, so are small tensors of whole numbers in
    the state, and what the program makes of numbers.

    >>> program = capture(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    >>> [spec.arg.name for spec in program.signature.inputs]
    ['p_weight', 'p_bias', 'input_1']
    """
    described = partial(normalize_dynamic_shapes, function, args, kwargs or {})
    prepared = partial(prepare, function, args, kwargs, takes_fakes=True, may_fork=may_fork, knows_state=knows_state)
    prepared = partial(prepared, returns_leaks=returns_leaks, constant_arguments=constant_arguments)

    def recorded(dynamic_shapes: Any) -> Program:
        ready = partial(prepared, dynamic_shapes=dynamic_shapes)
        traced = partial(_traced, decompositions=decompositions, pre_dispatch=pre_dispatch)
        call, module = _at_once(function, args, kwargs or {}, ready, traced) or traced(ready())
        call.fakes.refuse_other_numbers()
        if tell_stored is not None:
            tell_stored(call.flat.stored)
        if pre_dispatch:
            refuse_inner_transforms(module)
        program = as_program(call, module)
        if dynamic_shapes is None:
            return program
        check_no_contradictions(
            described(dynamic_shapes),
            opened(named_arguments(function, args, kwargs or {})),
            call.fakes.sizes(),
            call.fakes.specialized(),
            allows_narrower=allows_narrower_sizes,
        )
        return program.replace(sizes=with_least_sizes(program.sizes, function, call, module))

    with tracing_session(), extremes_of_symbols():
        program = with_ones_if_needed(recorded, dynamic_shapes, described)
    verify(program, after="capture")
    return program


def _at_once(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ready: Callable[..., PreparedCall],
    traced: Callable[[PreparedCall], tuple[PreparedCall, fx.GraphModule]],
) -> tuple[PreparedCall, fx.GraphModule] | None:
    """Trace without a discovery run; None if the program needs one. Most modules use no tensor beyond their state."""
    roots = root_modules(function)
    tensors = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    if not roots or constant_names(roots, function) or any(map(is_fake, (*tensors, *_parameters(roots)))):
        return None
    try:
        return traced(ready(meets_nothing=True))
    except (UnknownStateError, UndecidedError):
        return None


def _parameters(roots: Mapping[str, torch.nn.Module]) -> Iterator[torch.Tensor]:
    for root in roots.values():
        yield from root.parameters()
        yield from root.buffers()


def _traced(
    call: PreparedCall, *, decompositions: Decompositions | None, pre_dispatch: bool
) -> tuple[PreparedCall, fx.GraphModule]:
    if pre_dispatch and call.applies_transforms:
        raise InnerTransformError.at_line(None)
    with call.fakes.mode:
        inputs = fresh_copies(call.fake_inputs)
    module = trace(
        call.flat,
        inputs,
        call.fakes.mode,
        decompositions=decompositions,
        pre_dispatch=pre_dispatch,
        module_names=call.module_names,
    )
    return call, module


@code_at_the_end
def as_program(call: PreparedCall, module: fx.GraphModule) -> Program:
    """Name the inputs, lift constants, drop dead code, and write the signature for a freshly traced graph."""
    out_tree = call.flat.out_tree
    assert out_tree is not None, "the call was traced"
    module = rename_placeholders(module, call.input_names)
    _drop_detaching_of_constants(module.graph)
    _drop_marks_of_profilers(module.graph)
    # fx renames nodes whose names Python reserves.
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    state = {item.target: item.tensor for item in call.state}
    constants = sum(item.target.startswith("lifted_tensor_") for item in call.state)
    lift_constants_of_branches(module, call.fakes)
    lifted = lift_constants(module, call.fakes, position=len(state), first_number=constants)
    state |= {name.removeprefix("c_"): tensor for name, tensor in lifted.items()}
    lifted_specs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name.removeprefix("c_")) for name in lifted
    ]
    specs = [*_state_specs(call, names), *lifted_specs, *_user_specs(call, names)]
    remove_dead_nodes(module.graph, kept=call.fakes.has_assertions)
    specs = _without_unused_constants(module.graph, specs)
    module.recompile()
    kept = {spec.target for spec in specs}
    return Program(
        module=module,
        signature=Signature(tuple(specs), _output_specs(module.graph), call.call.tree, out_tree),
        state={name: tensor for name, tensor in state.items() if name in kept},
        sizes=call.fakes.sizes().settled(call.fakes.specialized()),
    )


def _drop_detaching_of_constants(graph: fx.Graph) -> None:
    """Drop the ``detach_`` in ``torch.tensor([1, 2])``: the fresh tensor has no history yet."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target is torch.ops.aten.detach_.default else None
        if isinstance(source, fx.Node) and source.target is torch.ops.aten.lift_fresh_copy.default:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _drop_marks_of_profilers(graph: fx.Graph) -> None:
    """Drop ``record_function`` marks: they are for profilers, and not part of the program."""
    for node in reversed(graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "profiler":
            graph.erase_node(node)


def _state_specs(call: PreparedCall, names: Sequence[str]) -> list[InputSpec]:
    return [
        InputSpec(item.kind, TensorArgument(name), item.target, item.persistent)
        for item, name in zip(call.state, names, strict=False)
    ]


def _user_specs(call: PreparedCall, names: Sequence[str]) -> list[InputSpec]:
    leaves = call.fake_inputs[len(call.state) :][: len(call.call.leaves)]
    return [
        InputSpec(InputKind.USER_INPUT, _user_argument(name, leaf))
        for name, leaf in zip(names[len(call.state) :], leaves, strict=True)
    ]


def _user_argument(name: str, leaf: object) -> ArgumentSpec:
    is_traced = isinstance(leaf, torch.Tensor | torch.SymInt)
    return value_argument(name, leaf) if is_traced else ConstantArgument(name, leaf)


def _without_unused_constants(graph: fx.Graph, specs: list[InputSpec]) -> list[InputSpec]:
    """Drop the inputs for constants that the program touched but did not use."""
    unused = {node.name: node for node in graph.nodes if node.op == "placeholder" and not node.users}
    dropped = [s for s in specs if s.kind is InputKind.CONSTANT_TENSOR and s.arg.name in unused]
    for spec in dropped:
        graph.erase_node(unused[spec.arg.name])
    return [spec for spec in specs if spec not in dropped]


def _output_specs(graph: fx.Graph) -> tuple[OutputSpec, ...]:
    results = graph.output_node().args[0]
    assert isinstance(results, tuple), "traced graphs return one flat tuple"
    return tuple(OutputSpec(OutputKind.USER_OUTPUT, argument_spec(result, i)) for i, result in enumerate(results))
