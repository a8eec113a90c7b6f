"""Exported programs: objects to inspect, rewrite, ship and reload, with an explicit contract of inputs and outputs."""

import sys
from types import ModuleType
from typing import Any

from precast.export.dynamic_shapes import (
    AdditionalInputs,
    Constraint,
    Dim,
    ShapesCollection,
    dims,
    refine_dynamic_shapes_from_suggested_fixes,
)
from precast.export.export import export
from precast.export.exported_program import (
    CustomDecompTable,
    ExportedProgram,
    ModuleCallEntry,
    ModuleCallSignature,
    default_decompositions,
)
from precast.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    ExportBackwardSignature,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)
from precast.export.load import load
from precast.export.pre_autograd import capture_pre_autograd_graph
from precast.export.registered_classes import register_dataclass
from precast.export.save import save
from precast.export.torch_files.convert import from_torch
from precast.export.unflatten import FlatArgsAdapter, UnflattenedModule, unflatten

__all__ = [
    "AdditionalInputs",
    "ConstantArgument",
    "Constraint",
    "CustomDecompTable",
    "CustomObjArgument",
    "Dim",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "FlatArgsAdapter",
    "InputKind",
    "InputSpec",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "OutputKind",
    "OutputSpec",
    "ShapesCollection",
    "SymBoolArgument",
    "SymFloatArgument",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
    "UnflattenedModule",
    "aot_compile",
    "aot_load",
    "capture_pre_autograd_graph",
    "default_decompositions",
    "dims",
    "export",
    "from_torch",
    "load",
    "refine_dynamic_shapes_from_suggested_fixes",
    "register_dataclass",
    "save",
    "unflatten",
]

from precast.lazy_names import lazy_name

# Public names of packages above this one, and of one that needs no torch: imported on first access.
_HOMES = {"aot_compile": "precast.packaging", "aot_load": "precast.runtime"}


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _HOMES, name)


class _CallablePackage(ModuleType):
    """A module that can be called: ``precast.export(module, args)`` works beside ``precast.export.load(file)``."""

    def __call__(self, *args: Any, **kwargs: Any) -> ExportedProgram:
        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
