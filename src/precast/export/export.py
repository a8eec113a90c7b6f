"""From a module and example inputs to an exported program.

Before: ``model(x, mask=m)``
After:  ``graph(p_weight, b_mean, c_scale, x, mask) -> (updates, outputs)``: flat, functional, in pre-autograd ATen
ops, with a signature of its inputs and outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from precast.errors import DataDependentError, ExportError, InputTypeError, PrecastError, SymbolicShapeError
from precast.export.plain_state import with_plain_state
from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.sizes import with_runtime_asserts
from precast.export.stored_tensors import without_stored_tensors
from precast.export.tidy import tidied
from precast.export.tracepoints import ModuleCallEntry, ModuleCallSignature, Tracepoints
from precast.export.unlift import users_meta
from precast.graph.module_arguments import with_module_arguments
from precast.graph.nodes import source_line_of
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import InputKind
from precast.trace.capture import capture
from precast.trace.capture.dynamic_shapes import numbered_names
from precast.trace.capture.failures import InnerTransformError
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.functionalize import functionalize
from precast.trace.record import Decompositions
from precast.trace.script_modules import entering_script_modules
from precast.trace.seeds import refused_seeds
from precast.trace.state.python_state import StoredTensorError
from precast.trace.texts import telling_once


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
    constant_arguments: Sequence[str] = (),
) -> ExportedProgram:
    """Export ``mod``: record what ``mod(*args, **kwargs)`` does, by running it once on fake tensors.

    ``dynamic_shapes`` declares the sizes that may change, by argument name or position. ``strict`` is accepted for
    compatibility with PyTorch; both values capture in the same way. The submodules named in
    ``preserve_module_call_signature`` keep their own signatures in ``module_call_graph``. ``decompositions`` are
    operators to decompose during export. With ``prefer_deferred_runtime_asserts_over_guards``, conditions that do not
    hold for all declared sizes are checked at each call instead of being refused. With ``branch_on_data``, a Python
    branch on the value of a tensor becomes a ``torch.cond`` whose sides are the program with either choice; by default
    it is refused. Tensors in ``constant_arguments`` are constants of the program: whatever depends on them alone, such
    as sizes in a table of images, is computed at export, and each call checks that they have the same values.

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
    record = partial(
        capture,
        dynamic_shapes=dynamic_shapes,
        allows_narrower_sizes=prefer_deferred_runtime_asserts_over_guards,
        constant_arguments=constant_arguments,
    )
    exported = recorded(
        record, mod, args, kwargs, decompositions, preserve_module_call_signature, may_fork=branch_on_data
    )
    for further_args, further_kwargs in getattr(dynamic_shapes, "_examples", ()):
        exported.call_convention.normalized(further_args, further_kwargs or {})
    return exported


def recorded(
    record: Callable[..., Program],
    mod: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    decompositions: Decompositions | None,
    kept_signatures: Sequence[str],
    *,
    may_fork: bool = False,
) -> ExportedProgram:
    """The program of one call, captured by ``record(mod, args=…, kwargs=…)``."""
    given = args, kwargs
    args, kwargs = with_module_arguments(given)
    # Only the tensors of a surrounding fake mode are needed: tracing uses a fake mode of our own.
    with unset_fake_temporarily(), entering_script_modules(), telling_once(), refused_seeds():
        tracepoints = Tracepoints()
        with tracepoints.marked(mod, kept_signatures):
            record = partial(record, args=args, kwargs=kwargs)
            program, dialect, mod = _decided(record, mod, args, kwargs or {}, may_fork=may_fork)
        _refuse_script_objects(program, mod)
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
    return ExportedProgram(program, origin, dialect=dialect)


def _functional(
    program: Program, decompositions: Decompositions | None, dialect: Dialect, requiring_grad: Sequence[str]
) -> Program:
    captured = with_runtime_asserts(program)
    is_before_autograd = dialect is Dialect.TRAINING
    result = functionalize(captured, decompositions=decompositions, pre_dispatch=is_before_autograd, keep_aliases=False)
    return tidied(result, requiring_grad=requiring_grad, is_as_written=result.module is captured.module)


def _decided(
    record: Callable[..., Program],
    mod: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    may_fork: bool,
) -> tuple[Program, Dialect, torch.nn.Module]:
    """If Python code decides on values, those that depend on the module and on numbers alone are constants.

    With ``may_fork``, the program forks where it decides on others.
    """
    further: list[dict[str, bool]] = [{"knows_state": True}]
    if may_fork:
        further += [{"may_fork": True}, {"may_fork": True, "knows_state": True}]
    try:
        return _storing_nothing(record, mod, args, kwargs)
    except DataDependentError as problem:
        first = problem
    for ways in further:
        try:
            return _storing_nothing(partial(record, **ways), mod, args, kwargs)
        except SymbolicShapeError as second:
            # It could decide, but not for all the sizes that were declared.
            raise second from None
        except PrecastError:
            continue
    raise first from first.__cause__


def _storing_nothing(
    record: Callable[..., Program], mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Program, Dialect, torch.nn.Module]:
    try:
        return _captured(record, mod)
    except StoredTensorError:
        leaking = partial(record, pre_dispatch=True, returns_leaks=True)
        if (found := without_stored_tensors(leaking, mod, args, kwargs)) is None:
            raise
        return found, Dialect.TRAINING, mod


def _captured(record: Callable[..., Program], mod: torch.nn.Module) -> tuple[Program, Dialect, torch.nn.Module]:
    """The program in pre-autograd operators, and the module that it was captured from.

    A program that computes gradients itself, or looks inside tensor subclasses, is captured in post-autograd operators.
    """
    try:
        return record(mod, pre_dispatch=True), Dialect.TRAINING, mod
    except InnerTransformError:
        # After autograd, recurrent layers would become operators of oneDNN, which no file may call.
        is_enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            mod = with_plain_state(mod)
            return record(mod), Dialect.ATEN, mod
        finally:
            torch._C._set_mkldnn_enabled(is_enabled)


def _module_calls(mod: torch.nn.Module, kept: Sequence[ModuleCallEntry]) -> Iterator[ModuleCallEntry]:
    """Every submodule in order; those with preserved signatures, once for each call."""
    for path, _ in mod.named_modules(remove_duplicate=False):
        yield from [entry for entry in kept if entry.fqn.partition("@")[0] == path] or [ModuleCallEntry(path)]


def _whole_call(program: Program, names: Sequence[str]) -> ModuleCallEntry:
    """The call of the module itself: its inputs and outputs are those of the program's signature."""
    trees = program.signature.in_tree, program.signature.out_tree
    return ModuleCallEntry("", ModuleCallSignature((), (), *trees, tuple(names)))


def _requiring_grad(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[str]:
    leaves = pytree.tree_leaves(opened((tuple(args), dict(kwargs or {}))))
    specs = program.signature.inputs_of(InputKind.USER_INPUT)
    return [spec.arg.name for spec, leaf in zip(specs, leaves, strict=True) if getattr(leaf, "requires_grad", False)]


def _check_module(mod: object) -> None:
    if not isinstance(mod, torch.nn.Module):
        raise InputTypeError(
            f"export() was given an object of type {type(mod).__name__}.",
            why="what is exported is a module: its state is part of the program",
            fix="Wrap the function in an nn.Module whose forward calls it.",
        )


def _refuse_script_objects(program: Program, mod: torch.nn.Module) -> None:
    for node in program.graph.find_nodes(op="get_attr"):
        held = vars(program.module).get(str(node.target))
        if isinstance(held, torch.ScriptObject):
            kind = _class_of(held)
            objects = [(name, value) for name, value in _attributes(mod) if isinstance(value, torch.ScriptObject)]
            named = [name for name, value in objects if _class_of(value) == kind]
            raise ExportError(
                f"The program uses a script object of the class {kind}{': ' if named else ''}{', '.join(named[:3])}.",
                at=str(source_line_of(next(iter(node.users), node))),
                why="a program consists of operators over tensors, and what such an object does only torch knows",
                fix="Hold what is in it as tensors, and call operators on them; quantized weights can be dequantized.",
            )


def _attributes(mod: torch.nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in mod.named_modules():
        yield from ((f"{path}.{name}".lstrip("."), value) for name, value in vars(module).items())


def _class_of(script_object: Any) -> str:
    return str(script_object._type().name())


def argument_names(mod: torch.nn.Module, positional: int, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments of a call, each once; elements of ``*args`` are numbered."""
    return (*numbered_names(mod, positional), *kwargs)


def aliases_of(mod: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    """Further names of parameters, buffers and constants that have several, each with the name in ``state``."""
    names = {id(tensor): name for name, tensor in state.items()}
    found: dict[str, Any] = dict(mod.named_parameters(remove_duplicate=False))
    found |= dict(mod.named_buffers(remove_duplicate=False))
    for path, module in mod.named_modules(remove_duplicate=False):
        attributes = {f"{path}.{name}" if path else name: value for name, value in vars(module).items()}
        found |= {name: value for name, value in attributes.items() if type(value) is torch.Tensor}
    pairs = [(name, names.get(id(tensor), name)) for name, tensor in found.items()]
    return [(alias, name) for alias, name in pairs if alias != name]
