"""From a module and example inputs to an exported program.

Before: ``model(x, mask=m)``
After:  ``graph(p_weight, b_mean, c_scale, x, mask) -> (updates, outputs)``: flat, functional, in ATen ops from before
autograd, with the contract of its inputs and outputs beside it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError
from precast.export.plain_state import with_plain_state
from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.sizes import with_runtime_asserts
from precast.export.tidy import tidied
from precast.export.tracepoints import ModuleCallEntry, ModuleCallSignature, Tracepoints
from precast.export.unlift import users_meta
from precast.graph.module_arguments import with_module_arguments
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import InputKind
from precast.trace.capture import capture
from precast.trace.capture.dynamic_shapes import numbered_names
from precast.trace.capture.failures import InnerTransformError
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.functionalize import functionalize
from precast.trace.record import Decompositions


@again_with_python_kernels
def export(
    mod: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: Sequence[str] = (),
    decompositions: Decompositions | None = None,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    branch_on_data: bool = False,
) -> ExportedProgram:
    """Record what ``mod(*args, **kwargs)`` does, by running it once without data.

    ``dynamic_shapes`` says which sizes may change, by argument name or position. ``strict`` is accepted for calls
    written for PyTorch; both values capture in the same way. The submodules named in
    ``preserve_module_call_signature`` keep their own signatures in ``module_call_graph``. ``decompositions`` are ops to
    decompose on the way. With ``prefer_deferred_runtime_asserts_over_guards``, conditions that do not hold for all
    declared sizes are checked at each call, and are no contradiction. With ``branch_on_data``, a Python branch on the
    value of a tensor becomes a ``cond`` whose sides are the program with either choice; by default it is refused.

    >>> print(export(torch.nn.ReLU(), (torch.ones(3, 2),)))
    ExportedProgram:
        def forward(input_1: f32[3, 2]):
            relu: f32[3, 2] = aten.relu.default(input_1)
            return (relu,)
    <BLANKLINE>
    Graph signature:
        inputs:
          input_1: USER_INPUT
        outputs:
          relu: USER_OUTPUT
    Range constraints:
        none
    """
    _check_module(mod)
    given = args, kwargs
    args, kwargs = with_module_arguments(given)
    # Of a surrounding fake mode only its tensors are needed: what is traced is so under a mode of our own.
    with unset_fake_temporarily():
        tracepoints = Tracepoints()
        with tracepoints.marked(mod, preserve_module_call_signature):
            narrower = prefer_deferred_runtime_asserts_over_guards
            record = partial(capture, args=args, kwargs=kwargs, dynamic_shapes=dynamic_shapes, may_fork=branch_on_data)
            program, dialect, mod = _captured(partial(record, allows_narrower_sizes=narrower), mod)
        program = _functional(program, decompositions, dialect, _requiring_grad(program, args, kwargs))
        program, kept_calls = tracepoints.read_off(program)
    program.module.meta.update(users_meta(mod))
    names = argument_names(mod, len(args), kwargs or {})
    origin = Origin(
        argument_names=names,
        module_calls=tuple(_module_calls(mod, [_whole_call(program, names), *kept_calls])),
        aliases=tuple(aliases_of(mod, program.state)),
        example_inputs=(tuple(given[0]), dict(given[1] or {})),
    )
    exported = ExportedProgram(program, origin, dialect=dialect)
    for further_args, further_kwargs in getattr(dynamic_shapes, "_examples", ()):
        exported.call_convention.normalized(further_args, further_kwargs or {})
    return exported


def _functional(
    program: Program, decompositions: Decompositions | None, dialect: Dialect, requiring_grad: Sequence[str]
) -> Program:
    captured = with_runtime_asserts(program)
    is_before_autograd = dialect is Dialect.TRAINING
    result = functionalize(captured, decompositions=decompositions, pre_dispatch=is_before_autograd, keep_aliases=False)
    return tidied(result, requiring_grad=requiring_grad, is_as_written=result.module is captured.module)


def _captured(record: Callable[..., Program], mod: torch.nn.Module) -> tuple[Program, Dialect, torch.nn.Module]:
    """The program in operators from before autograd, and the module that it was made of.

    A program that takes gradients by itself, or looks into wrapped tensors, is one of operators from after autograd.
    """
    try:
        return record(mod, pre_dispatch=True), Dialect.TRAINING, mod
    except InnerTransformError:
        # After autograd, recurrent layers would be operators of one library, which no file may call.
        is_enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            mod = with_plain_state(mod)
            return record(mod), Dialect.ATEN, mod
        finally:
            torch._C._set_mkldnn_enabled(is_enabled)


def _module_calls(mod: torch.nn.Module, kept: Sequence[ModuleCallEntry]) -> Iterator[ModuleCallEntry]:
    """Every submodule in order; those whose signature was kept with it, once for each call."""
    for path, _ in mod.named_modules(remove_duplicate=False):
        yield from [entry for entry in kept if entry.fqn.partition("@")[0] == path] or [ModuleCallEntry(path)]


def _whole_call(program: Program, names: Sequence[str]) -> ModuleCallEntry:
    """The call of the module itself: what goes in and out is in the program's own signature."""
    trees = program.signature.in_tree, program.signature.out_tree
    return ModuleCallEntry("", ModuleCallSignature((), (), *trees, tuple(names)))


def _requiring_grad(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[str]:
    leaves = pytree.tree_leaves(opened((tuple(args), dict(kwargs or {}))))
    specs = program.signature.inputs_of(InputKind.USER_INPUT)
    return [spec.arg.name for spec, leaf in zip(specs, leaves, strict=True) if getattr(leaf, "requires_grad", False)]


def _check_module(mod: object) -> None:
    if not isinstance(mod, torch.nn.Module):
        raise InputTypeError(
            f"export() was given a {type(mod).__name__}.",
            why="what is exported is a module: its state is part of the program",
            fix="Wrap the function in an nn.Module whose forward calls it.",
        )


def argument_names(mod: torch.nn.Module, positional: int, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments of a call, each once; elements of ``*args`` are numbered."""
    return (*numbered_names(mod, positional), *kwargs)


def aliases_of(mod: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    """Further names of parameters, buffers and constants that have several, each with the one that ``state`` has."""
    names = {id(tensor): name for name, tensor in state.items()}
    found = {**mod.state_dict(keep_vars=True), **dict(mod.named_buffers(remove_duplicate=False))}
    for path, module in mod.named_modules(remove_duplicate=False):
        attributes = {f"{path}.{name}" if path else name: value for name, value in vars(module).items()}
        found |= {name: value for name, value in attributes.items() if type(value) is torch.Tensor}
    pairs = [(name, names.get(id(tensor), name)) for name, tensor in found.items()]
    return [(alias, name) for alias, name in pairs if alias != name]
