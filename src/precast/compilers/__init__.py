"""Compilers besides the native one: the graph unchanged, checked, printed, drawn, dumped, minified, or by TorchScript.

A compiler takes ``(graph_module, example_inputs)`` and returns a callable; ``Compiler`` defines what else it may do.
Names are imported when first used, so that the registry of backends can be queried without importing torch.
"""

from typing import TYPE_CHECKING

from precast.lazy_names import lazy_name

# Public name → the module that defines it.
_HOMES = {
    "Backend": "precast.backend",
    "Compiler": "precast.backend",
    "DebugInterpreter": "precast.debug.checking_interpreter",
    "debug_compile": "precast.debug.saved_graph",
    "debug_nop": "precast.debug.checking_interpreter",
    "default_decompositions": "precast.ops.decompositions",
    "draw_graph": "precast.debug.drawing",
    "draw_graph_compile": "precast.debug.drawing",
    "fx_graph_cse": "precast.compilers.common_subexpressions",
    "get_backend": "precast.backend",
    "get_inputs": "precast.debug.input_metadata",
    "graph_dumper_aot": "precast.debug.graph_dumper",
    "in_child_process": "precast.debug.child_process",
    "list_backends": "precast.backend",
    "load_graph": "precast.debug.saved_graph",
    "load_inputs": "precast.debug.saved_graph",
    "memory_efficient_fusion": "precast.compilers.fusion",
    "minifier": "precast.debug.minify",
    "nnc_jit": "precast.compilers.fusion",
    "nop": "precast.debug.unchanged",
    "print_compile": "precast.debug.unchanged",
    "register_backend": "precast.backend",
    "save_graph": "precast.debug.saved_graph",
    "simple_ts_compile": "precast.compilers.torchscript",
    "ts_compile": "precast.compilers.torchscript",
}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from precast.backend import Backend as Backend
    from precast.backend import Compiler as Compiler
    from precast.backend import get_backend as get_backend
    from precast.backend import list_backends as list_backends
    from precast.backend import register_backend as register_backend
    from precast.compilers.common_subexpressions import fx_graph_cse as fx_graph_cse
    from precast.compilers.fusion import memory_efficient_fusion as memory_efficient_fusion
    from precast.compilers.fusion import nnc_jit as nnc_jit
    from precast.compilers.torchscript import simple_ts_compile as simple_ts_compile
    from precast.compilers.torchscript import ts_compile as ts_compile
    from precast.debug.checking_interpreter import DebugInterpreter as DebugInterpreter
    from precast.debug.checking_interpreter import debug_nop as debug_nop
    from precast.debug.child_process import in_child_process as in_child_process
    from precast.debug.drawing import draw_graph as draw_graph
    from precast.debug.drawing import draw_graph_compile as draw_graph_compile
    from precast.debug.graph_dumper import graph_dumper_aot as graph_dumper_aot
    from precast.debug.input_metadata import get_inputs as get_inputs
    from precast.debug.minify import minifier as minifier
    from precast.debug.saved_graph import debug_compile as debug_compile
    from precast.debug.saved_graph import load_graph as load_graph
    from precast.debug.saved_graph import load_inputs as load_inputs
    from precast.debug.saved_graph import save_graph as save_graph
    from precast.debug.unchanged import nop as nop
    from precast.debug.unchanged import print_compile as print_compile
    from precast.ops.decompositions import default_decompositions as default_decompositions
