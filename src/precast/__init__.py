"""Precast compiles PyTorch programs ahead of time: the forward, the backward and the whole training step.

Names are imported when first used, so that ``import precast`` is cheap and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from precast._version import __version__
from precast.lazy_names import lazy_name, naming_extras

# Public name → the module that defines it.
_HOMES = {
    "AdditionalInputs": "precast.export",
    "BackwardSignature": "precast.autograd",
    "Compiler": "precast.compilers",
    "ConstantArgument": "precast.export",
    "CustomObjArgument": "precast.export",
    "DebugInterpreter": "precast.compilers",
    "Dim": "precast.trace.capture",
    "ExportBackwardSignature": "precast.export",
    "ExportGraphSignature": "precast.export",
    "ExportedProgram": "precast.export",
    "FlatArgsAdapter": "precast.export",
    "GraphBreakWarning": "precast.autograd",
    "GraphSignature": "precast.autograd",
    "InputKind": "precast.export",
    "InputSpec": "precast.export",
    "ModuleCallEntry": "precast.export",
    "ModuleCallSignature": "precast.export",
    "Options": "precast.options",
    "OutputKind": "precast.export",
    "OutputSpec": "precast.export",
    "PrecastError": "precast.errors",
    "Program": "precast.graph.program",
    "ShapesCollection": "precast.export",
    "SymBoolArgument": "precast.export",
    "SymFloatArgument": "precast.export",
    "SymIntArgument": "precast.export",
    "TensorArgument": "precast.export",
    "TokenArgument": "precast.export",
    "TrainStep": "precast.training",
    "UnflattenedModule": "precast.export",
    "Variant": "precast.autograd",
    "aot_compile": "precast.packaging",
    "aot_export_joint_simple": "precast.autograd",
    "aot_export_module": "precast.autograd",
    "aot_function": "precast.autograd",
    "aot_load": "precast.runtime",
    "aot_module": "precast.autograd",
    "aot_module_simplified": "precast.autograd",
    "capture_pre_autograd_graph": "precast.export",
    "compile": "precast.api",
    "compiled_function": "precast.autograd",
    "compiled_module": "precast.autograd",
    "debug_compile": "precast.compilers",
    "debug_nop": "precast.compilers",
    "default_decompositions": "precast.ops.decompositions",
    "default_partition": "precast.partition",
    "dims": "precast.export",
    "draw_graph": "precast.compilers",
    "draw_graph_compile": "precast.compilers",
    "explain": "precast.report.explanation",
    "from_torch": "precast.export",
    "functional_program": "precast.pipeline",
    "fx_graph_cse": "precast.compilers",
    "get_aot_graph_name": "precast.autograd",
    "get_graph_being_compiled": "precast.autograd",
    "get_inputs": "precast.compilers",
    "graph_dumper_aot": "precast.compilers",
    "in_child_process": "precast.compilers",
    "interpret": "precast.graph.interpreter",
    "list_backends": "precast.compilers",
    "load": "precast.export",
    "make_boxed_compiler": "precast.autograd",
    "make_boxed_func": "precast.autograd",
    "memory_efficient_fusion": "precast.compilers",
    "min_cut_rematerialization_partition": "precast.partition",
    "minifier": "precast.compilers",
    "nnc_jit": "precast.compilers",
    "nop": "precast.compilers",
    "package": "precast.packaging",
    "print_compile": "precast.compilers",
    "print_program": "precast.graph.printer",
    "profile": "precast.report.profiling",
    "refine_dynamic_shapes_from_suggested_fixes": "precast.export",
    "register_backend": "precast.compilers",
    "register_dataclass": "precast.export",
    "save": "precast.export",
    "set_model_name": "precast.autograd",
    "simple_ts_compile": "precast.compilers",
    "symbolic_trace": "precast.trace.capture",
    "train_step": "precast.training",
    "ts_compile": "precast.compilers",
    "unflatten": "precast.export",
    "variants": "precast.autograd",
}

__all__ = ["__version__", *sorted(_HOMES)]


# Subpackages that are public themselves.
_PACKAGES = {
    "autograd", "compilers", "errors", "export", "generation", "onnx", "partition", "quantize", "report", "runtime",
    "training",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        with naming_extras(f"precast.{name}"):
            return import_module(f"precast.{name}")
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from precast.api import compile as compile
    from precast.autograd import BackwardSignature as BackwardSignature
    from precast.autograd import GraphBreakWarning as GraphBreakWarning
    from precast.autograd import GraphSignature as GraphSignature
    from precast.autograd import Variant as Variant
    from precast.autograd import aot_export_joint_simple as aot_export_joint_simple
    from precast.autograd import aot_export_module as aot_export_module
    from precast.autograd import aot_function as aot_function
    from precast.autograd import aot_module as aot_module
    from precast.autograd import aot_module_simplified as aot_module_simplified
    from precast.autograd import compiled_function as compiled_function
    from precast.autograd import compiled_module as compiled_module
    from precast.autograd import get_aot_graph_name as get_aot_graph_name
    from precast.autograd import get_graph_being_compiled as get_graph_being_compiled
    from precast.autograd import make_boxed_compiler as make_boxed_compiler
    from precast.autograd import make_boxed_func as make_boxed_func
    from precast.autograd import set_model_name as set_model_name
    from precast.autograd import variants as variants
    from precast.compilers import Compiler as Compiler
    from precast.compilers import DebugInterpreter as DebugInterpreter
    from precast.compilers import debug_compile as debug_compile
    from precast.compilers import debug_nop as debug_nop
    from precast.compilers import draw_graph as draw_graph
    from precast.compilers import draw_graph_compile as draw_graph_compile
    from precast.compilers import fx_graph_cse as fx_graph_cse
    from precast.compilers import get_inputs as get_inputs
    from precast.compilers import graph_dumper_aot as graph_dumper_aot
    from precast.compilers import in_child_process as in_child_process
    from precast.compilers import list_backends as list_backends
    from precast.compilers import memory_efficient_fusion as memory_efficient_fusion
    from precast.compilers import minifier as minifier
    from precast.compilers import nnc_jit as nnc_jit
    from precast.compilers import nop as nop
    from precast.compilers import print_compile as print_compile
    from precast.compilers import register_backend as register_backend
    from precast.compilers import simple_ts_compile as simple_ts_compile
    from precast.compilers import ts_compile as ts_compile
    from precast.errors import PrecastError as PrecastError
    from precast.export import AdditionalInputs as AdditionalInputs
    from precast.export import ConstantArgument as ConstantArgument
    from precast.export import CustomObjArgument as CustomObjArgument
    from precast.export import ExportBackwardSignature as ExportBackwardSignature
    from precast.export import ExportedProgram as ExportedProgram
    from precast.export import ExportGraphSignature as ExportGraphSignature
    from precast.export import FlatArgsAdapter as FlatArgsAdapter
    from precast.export import InputKind as InputKind
    from precast.export import InputSpec as InputSpec
    from precast.export import ModuleCallEntry as ModuleCallEntry
    from precast.export import ModuleCallSignature as ModuleCallSignature
    from precast.export import OutputKind as OutputKind
    from precast.export import OutputSpec as OutputSpec
    from precast.export import ShapesCollection as ShapesCollection
    from precast.export import SymBoolArgument as SymBoolArgument
    from precast.export import SymFloatArgument as SymFloatArgument
    from precast.export import SymIntArgument as SymIntArgument
    from precast.export import TensorArgument as TensorArgument
    from precast.export import TokenArgument as TokenArgument
    from precast.export import UnflattenedModule as UnflattenedModule
    from precast.export import capture_pre_autograd_graph as capture_pre_autograd_graph
    from precast.export import dims as dims
    from precast.export import from_torch as from_torch
    from precast.export import load as load
    from precast.export import (
        refine_dynamic_shapes_from_suggested_fixes as refine_dynamic_shapes_from_suggested_fixes,
    )
    from precast.export import register_dataclass as register_dataclass
    from precast.export import save as save
    from precast.export import unflatten as unflatten
    from precast.graph.interpreter import interpret as interpret
    from precast.graph.printer import print_program as print_program
    from precast.graph.program import Program as Program
    from precast.ops.decompositions import default_decompositions as default_decompositions
    from precast.options import Options as Options
    from precast.packaging.aot_compile import aot_compile as aot_compile
    from precast.packaging.package import package as package
    from precast.partition import default_partition as default_partition
    from precast.partition import min_cut_rematerialization_partition as min_cut_rematerialization_partition
    from precast.pipeline import functional_program as functional_program
    from precast.report.explanation import explain as explain
    from precast.report.profiling import profile as profile
    from precast.runtime import aot_load as aot_load
    from precast.trace.capture import Dim as Dim
    from precast.trace.capture import symbolic_trace as symbolic_trace
    from precast.training import TrainStep as TrainStep
    from precast.training import train_step as train_step
