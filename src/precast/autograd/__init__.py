"""AOT autograd: functions that behave as in eager, over functional graphs that compilers can work with.

What a start without a trace does not need is imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from precast.autograd.boxing import make_boxed_compiler, make_boxed_func
from precast.autograd.compiled_module import CompiledModule
from precast.autograd.entry import (
    aot_function,
    aot_module,
    aot_module_simplified,
    compiled_function,
    compiled_module,
)
from precast.autograd.graph_names import get_aot_graph_name, get_graph_being_compiled, set_model_name
from precast.autograd.graph_signature import BackwardSignature, GraphSignature
from precast.partition import default_partition, min_cut_rematerialization_partition

_HOME_OF_EXPORT = "precast.autograd.export_graphs"

__all__ = [
    "BackwardSignature",
    "CompiledModule",
    "GraphSignature",
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
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'precast.autograd' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF_EXPORT), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from precast.autograd.export_graphs import aot_export_joint_simple as aot_export_joint_simple
    from precast.autograd.export_graphs import aot_export_module as aot_export_module
