"""From a model to an ONNX program: capture, translate, optimize, verify, save.

The original model as the truth to compare with, called on the ONNX model's inputs without leaving a trace.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from precast.errors import InputValueError, OptionError
from precast.graph.program import Program
from precast.onnx.adapters import InputAdapter, OutputAdapter
from precast.onnx.capture import capture_aten, capture_symbolic
from precast.onnx.optimize import finish
from precast.onnx.program import ExternalData, ONNXProgram, check_destination, is_external_data
from precast.onnx.rules.registry import RuleTable, Translations
from precast.onnx.translate import BASE_OPSET, translate
from precast.onnx.verify import Verification, verify_model


def reference_of(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: OutputAdapter
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function from the tensors of a call to the tensors that the model returns; its buffers stay as they are."""
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        remaining = iter(tensors)
        # Copies, since a model may write to its inputs.
        call = [next(remaining).clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        own_args, own_kwargs = pytree.tree_unflatten(call, tree)
        with torch.no_grad():
            return [tensor.detach() for tensor in outputs.to_model(_call(model, own_args, own_kwargs))]

    return run


def _call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(model, torch.nn.Module):
        return model(*args, **kwargs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return torch.func.functional_call(model, buffers, args, kwargs)


DEFAULT_OPSET = 20
"""Has Gelu, and every runtime of the last years reads it."""

RULE_FILES = (
    "attention", "complex", "control_flow", "counting", "cumulative", "embedding", "linear_algebra", "pointwise",
    "reduction", "sizes", "special_functions",
)  # fmt: skip
"""Importing them fills the table."""
for _rule_file in RULE_FILES:
    import_module(f"precast.onnx.rules.{_rule_file}")


def export(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    opset: int | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    external_data: ExternalData = "auto",
    optimize: bool = True,
    verify: bool = True,
    capture: Literal["aten", "symbolic"] = "aten",
    custom_translation_table: Translations | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ONNXProgram:
    """Say in ONNX what ``model(*args, **kwargs)`` does; with ``path``, write it there.

    ``dynamic_shapes`` names the sizes that may change. ``verify`` compares the model with the original in onnxruntime,
    on the example and on other sizes. ``capture="symbolic"`` traces without data, also models on the meta device.
    ``custom_translation_table`` maps operators to functions over onnxscript's ops. ``progress`` is told of each step.

    >>> import torch
    >>> program = export(torch.nn.ReLU(), (torch.ones(2),))
    >>> [node.op_type for node in program.model.graph]
    ['Relu']
    >>> program(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    kwargs = dict(kwargs or {})
    rules = RuleTable(_checked_opset(opset), custom_translation_table or {})
    if path is not None:
        check_destination(path)
    progress("capturing")
    program = _captured(model, args, kwargs, capture, dynamic_shapes=dynamic_shapes, rules=rules)
    input_adapter = InputAdapter.of(model, args, kwargs, program)
    output_adapter = OutputAdapter.of(program)
    progress("translating")
    translation = translate(program, rules, name=type(model).__name__)
    _name(translation.model, input_names, output_names or output_adapter.names, len(output_adapter.names))
    progress("optimizing" if optimize else "finishing")
    finish(translation.model, opset=rules.opset, optimize=optimize)
    is_external_data(translation.model, external_data)
    verification = Verification()
    if verify:
        progress("verifying")
        reference = reference_of(model, args, kwargs, output_adapter)
        inputs = input_adapter(args, kwargs)
        verification = verify_model(translation.model, program, translation.uses, inputs, reference)
    result = ONNXProgram(
        translation.model, translation.uses, verification, translation.updates, input_adapter, output_adapter
    )
    if path is not None:
        progress("saving")
        result.save(path, external_data=external_data)
    return result


def _checked_opset(opset: int | None) -> int:
    newest = onnx.defs.onnx_opset_version()
    if opset is None:
        return DEFAULT_OPSET
    if not BASE_OPSET <= opset <= newest:
        raise OptionError(
            f"opset is {opset}.",
            why=f"models are written for the opsets {BASE_OPSET} to {newest}, the newest that the installed onnx knows",
            fix=f"Pass one of them, or leave it out for {DEFAULT_OPSET}.",
        )
    return opset


def _captured(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    way: str,
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> Program:
    if way == "aten":
        return capture_aten(model, args, kwargs, dynamic_shapes=dynamic_shapes, rules=rules)
    if way == "symbolic":
        return capture_symbolic(model, args, kwargs, dynamic_shapes=dynamic_shapes, rules=rules)
    raise OptionError(
        f"capture is {way!r}.",
        why='programs are captured by running them ("aten") or by tracing them symbolically ("symbolic")',
        fix='Pass "aten" or "symbolic".',
    )


def _name(model: ir.Model, input_names: Sequence[str] | None, output_names: Sequence[str], users: int) -> None:
    """Give the model's inputs and the user's outputs their names; what had the name before gets another one."""
    inputs, outputs = list(model.graph.inputs), list(model.graph.outputs)[:users]
    new_inputs = [str(value.name) for value in inputs] if input_names is None else list(input_names)
    for kind, names, count in (("input", new_inputs, len(inputs)), ("output", output_names, len(outputs))):
        if len(names) != count:
            raise InputValueError(
                f"{kind}_names has {len(names)} entries for {count} {kind}s.",
                why="every one needs exactly one name",
                fix=f"Give {count} names in order.",
            )
    wanted = [*new_inputs, *output_names]
    if input_names is None:
        # Inputs keep their names: an output that is called the same gets a suffix.
        output_names = [f"{name}_out" if name in new_inputs else name for name in output_names]
        wanted = [*new_inputs, *output_names]
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise InputValueError(
            f"Several inputs or outputs are called {', '.join(twice)}.",
            why="names are how a runtime tells them apart",
            fix="Give each a name of its own.",
        )
    _rename(model, dict(zip([*inputs, *outputs], wanted, strict=True)))


def _rename(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    taken = set(names.values())
    for node in model.graph:
        for value in node.outputs:
            if value not in names and value.name in taken:
                value.name = f"{value.name}_inner"
    for value, name in names.items():
        value.metadata_props["precast.node"] = str(value.name)
        value.name = name
