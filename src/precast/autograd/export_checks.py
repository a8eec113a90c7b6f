"""What an exported graph cannot express, each with an error that says what to change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.capture.prepare import PreparedCall
from precast.errors import ExportError
from precast.ir.boundary import BoundaryFacts, Relation


def check_options(*, trace_joint: bool, output_loss_index: int | None, pre_dispatch: bool) -> None:
    if trace_joint and pre_dispatch:
        raise ExportError(
            "A joint graph cannot be traced before dispatch.",
            why="pre_dispatch records ops before autograd takes them apart, so there is no backward to record",
            fix="Leave out pre_dispatch=True, or trace with trace_joint=False.",
        )
    if trace_joint and output_loss_index is None:
        raise ExportError(
            "A joint graph needs to know which output is the loss.",
            why="gradients are those of one scalar output",
            fix="Pass output_loss_index, for example 0 for the first output.",
        )
    if not trace_joint and output_loss_index is not None:
        raise ExportError(
            "output_loss_index was given, but no joint graph is traced.",
            why="only a joint graph has gradients of a loss",
            fix="Pass trace_joint=True, or leave out output_loss_index.",
        )


def check_module_outputs(tree: pytree.TreeSpec) -> None:
    """The outputs of a joint export are a tensor, or a flat list or tuple of tensors."""
    nested = not tree.is_leaf() and (tree.type not in (list, tuple) or not all(c.is_leaf() for c in tree.children()))
    if nested:
        raise ExportError(
            "The module returns a nested structure.",
            why=f"a joint graph returns a tensor, or a list or tuple of tensors; this is {tree}",
            fix="Return the loss and the other tensors as one flat tuple.",
        )


def check_joint_facts(facts: BoundaryFacts, call: PreparedCall) -> None:
    for number, fact in enumerate(facts.inputs):
        name = call.input_names[number]
        if fact.mutates_metadata:
            raise ExportError(
                f"The module changes the sizes, strides or memory of the input {name}.",
                why="a functional graph returns new values; it cannot say that an input got another shape",
                fix="Use an out-of-place op, such as x.t() for x.t_().",
            )
        if fact.mutates_data and fact.requires_grad:
            raise ExportError(
                f"The module writes into the input {name}, which requires grad.",
                why="the gradient would have to be that of the value before",
                fix="Clone the input first, or write into it under no_grad outside of the graph.",
            )
    for number, output in enumerate(facts.outputs):
        if not output.is_tensor:
            raise ExportError(
                f"Output {number} of the module is no tensor.",
                why="a joint graph returns tensors only",
                fix="Return tensors alone.",
            )


def check_loss(facts: BoundaryFacts, index: int) -> None:
    if not -len(facts.outputs) <= index < len(facts.outputs):
        raise ExportError(
            f"output_loss_index is {index}, but the module has {len(facts.outputs)} outputs.",
            why="the loss must be one of them",
            fix="Count from 0.",
        )
    loss = facts.values[len(facts.updated) + index % len(facts.outputs)]
    if loss.numel() != 1 or loss.dim() > 1:
        raise ExportError(
            f"The loss (output {index}) has shape {tuple(loss.shape)}.",
            why="gradients are taken of a scalar",
            fix="Reduce it with .sum() or .mean().",
        )
    if not facts.outputs[index].requires_grad:
        raise ExportError(
            f"The loss (output {index}) does not require grad.",
            why="nothing that it is computed from requires grad",
            fix="Check that it is no detached value, and that parameters or inputs require grad.",
        )
    for number, output in enumerate(facts.outputs):
        if number != index % len(facts.outputs) and output.requires_grad:
            raise ExportError(
                f"Output {number} requires grad besides the loss.",
                why="the joint graph computes gradients of the loss alone; those of this output would be lost",
                fix="Return it with .detach().",
            )


def missing_gradient(name: str) -> ExportError:
    return ExportError(
        f"The parameter {name} gets no gradient from the loss.",
        why="the loss is not computed from it",
        fix="Use it, remove it, or set requires_grad_(False) on it.",
    )


def check_simple_arguments(args: Sequence[Any]) -> None:
    if not isinstance(args, (list, tuple)):
        raise ExportError(
            f"The inputs are a {type(args).__name__}.",
            why="aot_export_joint_simple takes one flat list or tuple of tensors, not a bare leaf",
            fix="Write (x,) for a single tensor.",
        )
    if not all(isinstance(arg, torch.Tensor) for arg in args):
        raise ExportError(
            "The inputs are nested, or are not all tensors.",
            why="aot_export_joint_simple knows no trees: each input is one placeholder",
            fix="Pass a flat list of tensors, and rebuild the structure inside the function.",
        )


def check_simple_facts(facts: BoundaryFacts, tree: pytree.TreeSpec) -> None:
    if tree.is_leaf():
        raise ExportError(
            "The function returns a bare tensor.",
            why="aot_export_joint_simple returns a flat list or tuple of tensors",
            fix="Return (y,).",
        )
    if tree.type not in (list, tuple) or not all(child.is_leaf() for child in tree.children()):
        raise ExportError(
            "The function returns a nested structure.",
            why=f"aot_export_joint_simple returns a flat list or tuple of tensors; this is {tree}",
            fix="Return one flat tuple.",
        )
    if facts.updated:
        raise ExportError(
            f"The function writes into its input number {facts.updated[0]}.",
            why="there is no boundary around this graph that could apply the update",
            fix="Use out-of-place ops, or aot_export_module.",
        )
    for number, output in enumerate(facts.outputs):
        if output.relation is not Relation.FRESH:
            raise ExportError(
                f"Output {number} is {output.relation.value}.",
                why="there is no boundary around this graph that could make the alias again",
                fix="Return a clone().",
            )
