"""From a model to an ONNX program: capture, translate, optimize, verify, save.

The reference for verification is the original model, called on the ONNX model's inputs without side effects.
"""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import onnx
import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from precast.errors import InputValueError, OptionError
from precast.export import ExportedProgram
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.onnx.adapters import InputAdapter, OutputAdapter, which_are_inputs
from precast.onnx.axes import Axes, DynamicAxes, described_axes, labelled_sizes, name_output_axes, named_sizes
from precast.onnx.capture import capture_aten, capture_symbolic, translatable
from precast.onnx.element_types import FLOAT4_SINCE, has_float4
from precast.onnx.exporting import answered, exporting
from precast.onnx.older_opsets import OLDEST_OPSET, lower
from precast.onnx.optimize import finish
from precast.onnx.program import ExternalData, ONNXProgram, check_destination, is_external_data
from precast.onnx.report import ExportLog, torch_options
from precast.onnx.rules.registry import RuleTable, Translations
from precast.onnx.source import Source, source_of
from precast.onnx.translate import BASE_OPSET, Translation, translate
from precast.onnx.verify import Reference, Verification, verify_model


def reference_of(source: Source, program: Program, outputs: OutputAdapter) -> Reference:
    """A function from the inputs of a call to the outputs of the model; the original's buffers are not changed."""
    leaves, tree = pytree.tree_flatten(opened((source.args, source.kwargs)))
    are_inputs = which_are_inputs(program, leaves)

    def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
        # Copies, since a model may write to its inputs.
        remaining = iter([each.clone() if isinstance(each, torch.Tensor) else each for each in inputs])
        call = [next(remaining) if is_input else leaf for leaf, is_input in zip(leaves, are_inputs, strict=True)]
        args, kwargs = pytree.tree_unflatten(call, tree)
        with torch.no_grad():
            return [tensor.detach() for tensor in outputs.to_model(_call(source.model, args, kwargs))]

    return run


def _call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(model, torch.nn.Module):
        return model(*args, **kwargs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return torch.func.functional_call(model, buffers, args, kwargs)


Destination = str | os.PathLike[str] | io.BytesIO

DEFAULT_OPSET = 20
"""The first with Gelu, and supported by all runtimes of recent years."""

RULE_FILES = (
    "attention", "bessel", "complex", "control_flow", "counting", "cumulative", "division", "embedding",
    "factorizations", "integers", "linear_algebra", "number_parts", "onnx_operators", "ordering", "own_operators",
    "pointwise", "polynomials", "random", "recurrent", "reduction", "segments", "singular_values", "sizes",
    "special_functions",
)  # fmt: skip
"""Importing them fills the table of rules."""
for _rule_file in RULE_FILES:
    import_module(f"precast.onnx.rules.{_rule_file}")


def export(
    model: Any,
    args: Any = (),
    f: Destination | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: DynamicAxes | None = None,
    external_data: ExternalData = "auto",
    optimize: bool = True,
    verify: bool | Literal["custom"] = True,
    capture: Literal["aten", "symbolic"] = "aten",
    custom_translation_table: Translations | None = None,
    keep_initializers_as_inputs: bool = False,
    progress: Callable[[str], None] | None = None,
    path: str | os.PathLike[str] | None = None,
    opset: int | None = None,
    **torch_only: Any,
) -> ONNXProgram:
    """Export ``model(*args, **kwargs)`` to ONNX; with ``f`` (or ``path``), write the model to that file.

    The keywords of ``torch.onnx.export`` are accepted; ``torch_only`` are those with little or no effect here.
    ``model`` may also be an exported program. ``dynamic_shapes`` or ``dynamic_axes`` declare the sizes that may change.
    ``verify`` runs the result in onnxruntime, on the example and on other sizes, and compares it with the original.
    ``capture="symbolic"`` traces without data. ``custom_translation_table`` maps operators to onnxscript functions.

    >>> import torch
    >>> program = export(torch.nn.ReLU(), (torch.ones(2),))
    >>> [node.op_type for node in program.model.graph]
    ['Relu']
    >>> program(torch.tensor([-1.0, 2.0]))
    (tensor([0., 2.]),)
    """
    options = torch_options(torch_only)
    asked_opset = opset if opset_version is None else opset_version
    wanted_opset = _checked_opset(asked_opset)
    rules = RuleTable(max(wanted_opset, BASE_OPSET), custom_translation_table or {})
    destination = _checked_place(path if f is None else f)
    source = source_of(model, args, kwargs).named(input_names, output_names)
    # A fake mode of the user's is for the user's code, not for what is created here.
    with unset_fake_temporarily(), ExportLog(progress, options) as log:
        axes = described_axes(source, dynamic_shapes=dynamic_shapes, dynamic_axes=dynamic_axes)
        log.step("capturing")
        exported = answered(lambda: _captured(source, capture, axes=axes, rules=rules))
        exported, rules = _for_float4(exported, rules, is_free=asked_opset is None)
        with exporting():
            result = _translated(source, exported, axes, rules, optimize=optimize, log=log)
            lower(result.model, rules.opset if asked_opset is None else wanted_opset)
            is_external_data(result.model, external_data)
            if verify:
                result.verification = _verified(source, result, log, trusts_custom_rules=verify != "custom")
        if destination is not None:
            log.step("saving")
            how: dict[str, Any] = {"external_data": external_data, "include_initializers": options.export_params}
            result.save(destination, keep_initializers_as_inputs=keep_initializers_as_inputs, **how)
    log.write(result)
    return result


def _translated(
    source: Source,
    exported: ExportedProgram,
    axes: Axes,
    rules: RuleTable,
    *,
    optimize: bool,
    log: ExportLog,
) -> ONNXProgram:
    program = named_sizes(exported.program, labels := labelled_sizes(exported.program, axes.labels))
    input_adapter = InputAdapter.of(source.model, source.args, source.kwargs, program)
    output_adapter = OutputAdapter.of(program)
    log.step("translating")
    translation = translate(program, rules, name=type(source.model).__name__, labels=labels)
    _name(translation, source, input_adapter.labels, output_adapter.names)
    name_output_axes(translation.model, axes.others, list(labels.values()))
    log.step("optimizing" if optimize else "finishing")
    finish(translation.model, opset=rules.opset, optimize=optimize)
    return ONNXProgram(
        translation.model,
        translation.uses,
        Verification(),
        translation.updates,
        input_adapter,
        output_adapter,
        exported,
    )


def _verified(source: Source, result: ONNXProgram, log: ExportLog, *, trusts_custom_rules: bool) -> Verification:
    log.step("verifying")
    assert result.input_adapter is not None, "exported programs have one"
    assert result.output_adapter is not None, "exported programs have one"
    reference = reference_of(source, result.input_adapter.program, result.output_adapter)
    inputs = result.input_adapter.values(source.args, source.kwargs)
    return verify_model(
        result.model,
        result.input_adapter.program,
        result.rules,
        inputs,
        reference,
        why_no_example=source.why_no_example,
        trusts_custom_rules=trusts_custom_rules,
    )


def _checked_place(destination: Destination | None) -> Destination | None:
    return check_destination(destination) if isinstance(destination, (str, os.PathLike)) else destination


def _checked_opset(opset: int | None) -> int:
    newest = onnx.defs.onnx_opset_version()
    if opset is None:
        return DEFAULT_OPSET
    if not OLDEST_OPSET <= opset <= newest:
        raise OptionError(
            f"opset is {opset}.",
            why=f"models are written for opsets {OLDEST_OPSET} to {newest}, the newest that the installed onnx knows",
            fix=f"Pass one of them, or leave it out for {DEFAULT_OPSET}.",
        )
    return opset


def _captured(source: Source, way: str, *, axes: Axes, rules: RuleTable) -> ExportedProgram:
    if way not in ("aten", "symbolic"):
        raise OptionError(
            f"capture is {way!r}.",
            why='programs are captured by running them ("aten") or by tracing them symbolically ("symbolic")',
            fix='Pass "aten" or "symbolic".',
        )
    if source.program is not None:
        return translatable(source.program, rules)
    capture = capture_aten if way == "aten" else capture_symbolic
    return capture(source.model, source.args, source.kwargs, dynamic_shapes=axes.shapes, rules=rules)


def _for_float4(exported: ExportedProgram, rules: RuleTable, *, is_free: bool) -> tuple[ExportedProgram, RuleTable]:
    """Select the first opset with float4, if the program needs it and no opset was requested."""
    if not is_free or not has_float4(exported.program):
        return exported, rules
    newer = RuleTable(FLOAT4_SINCE, rules.custom)
    return translatable(exported, newer), newer


def _name(translation: Translation, source: Source, own_inputs: Sequence[str], own_outputs: Sequence[str]) -> None:
    """Apply the names of inputs and user outputs, or their own; other values with these names are renamed."""
    model = translation.model
    inputs = list(model.graph.inputs)
    outputs = list(model.graph.outputs)[: len(own_outputs)]
    is_clear = len(set(own_inputs)) == len(own_inputs) and not model.graph.initializers.keys() & set(own_inputs)
    new_inputs = _completed("input", source.input_names, own_inputs if is_clear else [str(v.name) for v in inputs])
    new_outputs = _completed("output", source.output_names, own_outputs)
    if source.input_names is None:
        # Inputs keep their names: an output of the same name gets a suffix.
        new_outputs = [f"{name}_out" if name in new_inputs else name for name in new_outputs]
    wanted = [*new_inputs, *new_outputs]
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise InputValueError(
            f"Several inputs or outputs are called {', '.join(twice)}.",
            why="a runtime identifies them by name",
            fix="Give each a name of its own.",
        )
    _rename(model, dict(zip([*inputs, *outputs], wanted, strict=True)))


def _completed(kind: str, given: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """The user's names for the first of them, and their own for the others."""
    if given is not None and len(given) > len(own):
        raise InputValueError(
            f"{kind}_names has {len(given)} entries for {len(own)} {kind}s.",
            why="every name must have something to name",
            fix=f"Give at most {len(own)} names, in order.",
        )
    return [*(given or ()), *own[len(given or ()) :]]


def _rename(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    taken = set(names.values())
    for node in model.graph:
        for value in node.outputs:
            if value not in names and value.name in taken:
                value.name = f"{value.name}_inner"
    for value, name in names.items():
        value.metadata_props["precast.node"] = str(value.name)
        value.name = name
