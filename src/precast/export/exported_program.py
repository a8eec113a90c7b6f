"""The exported program and its module call graph, under the names that PyTorch's users import."""

from precast.export.preserved_ops import CustomDecompTable, default_decompositions
from precast.export.program import ExportedProgram
from precast.export.tracepoints import ModuleCallEntry, ModuleCallSignature

__all__ = [
    "CustomDecompTable",
    "ExportedProgram",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "default_decompositions",
]
