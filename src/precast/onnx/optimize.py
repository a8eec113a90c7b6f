"""Brings a fresh model into its final form: functions inlined, the asked opset, on demand fewer nodes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer, version_converter

from precast.onnx.fuse import fuse_patterns
from precast.onnx.opset_numbers import renumber
from precast.onnx.unique_names import make_names_unique
from precast.onnx.weights import missing_as_inputs


def finish(model: ir.Model, *, opset: int, optimize: bool) -> None:
    """Change ``model`` in place."""
    with missing_as_inputs(model):
        _finish(model, opset=opset, optimize=optimize)


def _finish(model: ir.Model, *, opset: int, optimize: bool) -> None:
    ir.passes.Sequential(passes.InlinePass(), passes.RemoveUnusedNodesPass())(model)
    model.functions.clear()
    with _quiet("onnxscript", "onnx_ir"):
        _convert(model, opset)
        if optimize:
            optimizer.optimize_ir(model, inline=False)
            fuse_patterns(model, opset=opset)
            passes.IdentityEliminationPass()(model)
    ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(), passes.RemoveUnusedOpsetsPass(), passes.OutputFixPass(), passes.NameFixPass()
    )(model)
    make_names_unique(model)


def _convert(model: ir.Model, opset: int) -> None:
    """To a newer opset, by onnxscript as far as it goes."""
    for reachable in range(opset, model.opset_imports[""], -1):
        try:
            version_converter.convert_version(model, reachable)
            break
        except ValueError:
            # Newer than it knows; it says so before it changes anything.
            continue
    renumber(model, opset)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Without the libraries' notes on every node that they leave as it is."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
