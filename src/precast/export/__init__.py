"""The program as an object that people inspect, rewrite, ship and reload, with its contract written down."""

from precast.capture import Dim
from precast.export.export import export
from precast.export.load import load
from precast.export.module_calls import ModuleCallEntry, ModuleCallSignature
from precast.export.pre_autograd import capture_pre_autograd_graph
from precast.export.program import ExportedProgram
from precast.export.save import save
from precast.export.signature import ExportBackwardSignature, ExportGraphSignature
from precast.export.unflatten import unflatten
from precast.ir.signature import (
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)

__all__ = [
    "ConstantArgument",
    "CustomObjArgument",
    "Dim",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "InputKind",
    "InputSpec",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "OutputKind",
    "OutputSpec",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
    "capture_pre_autograd_graph",
    "export",
    "load",
    "save",
    "unflatten",
]
