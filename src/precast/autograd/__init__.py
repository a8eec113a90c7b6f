"""AOT autograd: functions that behave as in eager, over functional graphs that compilers can work with.

What a warm start does not need is imported when first used.
"""

from typing import TYPE_CHECKING

from precast.autograd.boxing import make_boxed_compiler, make_boxed_func
from precast.autograd.compiled_module import CompiledModule
from precast.autograd.entry import (
    aot_function,
    aot_module,
    aot_module_simplified,
    compiled_function,
    compiled_module,
    variants,
)
from precast.autograd.uncaptured import GraphBreakWarning
from precast.autograd.variants.table import Variant
from precast.graph.compilation import get_aot_graph_name, get_graph_being_compiled, set_model_name
from precast.lazy_names import lazy_name
from precast.partition import default_partition

# Public name → the module that defines it, for names that most programs do not use.
_HOMES = {
    "BackwardSignature": "precast.graph.signature",
    "GraphSignature": "precast.autograd.export_graphs",
    "aot_export_joint_simple": "precast.autograd.export_graphs",
    "aot_export_module": "precast.autograd.export_graphs",
    "min_cut_rematerialization_partition": "precast.partition",
}

__all__ = [
    "BackwardSignature",
    "CompiledModule",
    "GraphBreakWarning",
    "GraphSignature",
    "Variant",
    "aot_export_joint_simple",
    "aot_export_module",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "compiled_function",
    "compiled_module",
    "default_partition",
    "get_aot_graph_name",
    "get_graph_being_compiled",
    "make_boxed_compiler",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "set_model_name",
    "variants",
]


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


if TYPE_CHECKING:
    from precast.autograd.export_graphs import GraphSignature as GraphSignature
    from precast.autograd.export_graphs import aot_export_joint_simple as aot_export_joint_simple
    from precast.autograd.export_graphs import aot_export_module as aot_export_module
    from precast.graph.signature import BackwardSignature as BackwardSignature
    from precast.partition import min_cut_rematerialization_partition as min_cut_rematerialization_partition
