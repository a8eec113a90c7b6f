"""Save a graph so that it can be run, and minified, without the program it came from."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import fx
from torch._subclasses import FakeTensor

from precast.compilers.saved_graph import load_module, placeholder_names, save_example_inputs, save_graph

_MINIFIER_SCRIPT = '''\
# To find the smallest graph that fails, run this:

from precast.compilers import in_child_process, load_graph, load_inputs, minifier


def check(graph_module, inputs):
    """Tell whether the failure shows. Here: running the graph raises. Put your own compiler in."""
    try:
        graph_module(*inputs)
    except RuntimeError:
        return True
    return False


folder = {folder!r}
minifier(load_graph(folder), load_inputs(folder), in_child_process(check, crashes=True))
'''


def debug_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Save the graph as a folder that runs by itself, print a script that minifies it, and run it from there.

    The inputs of the last call are kept beside the graph, written before it runs: they are there after a crash too.
    """
    folder = save_graph(graph_module, Path(tempfile.mkdtemp(prefix="precast_debug_")), example_inputs)
    print(_MINIFIER_SCRIPT.format(folder=str(folder)))
    names, module = placeholder_names(graph_module), load_module(folder)

    def run(*inputs: object) -> object:
        save_example_inputs(folder, names, inputs)
        return module(*inputs)

    if not any(isinstance(value, FakeTensor | torch.SymInt) for value in example_inputs):
        run(*example_inputs)
    return run
