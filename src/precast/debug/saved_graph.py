"""Saves graphs as folders that Python can import: ``module.py``, the inputs' metadata, tensors.

A saved graph can be run, and minified, without the program it came from. Loading one runs its ``module.py``, as
importing it would: load only graphs from a source that you trust.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType

import torch
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.proxy import GraphAppendingTracer, Proxy
from torch.utils._pytree import tree_map_only

from precast.debug.checking_interpreter import record_node_values
from precast.debug.graph_source import TENSORS_FILE, graph_source
from precast.debug.input_metadata import INPUTS_FILE, get_inputs, read_input_metadata, write_input_metadata
from precast.debug.tensor_file import number_as_tensor, read_tensors, write_tensors
from precast.graph.nodes import set_value

MODULE_FILE = "module.py"
EXAMPLES_FILE = "example_inputs.safetensors"

_MAIN = '''"""Run the graph in this folder on its saved example inputs, or else on random ones: python FOLDER"""

from pathlib import Path

from module import FxModule
from precast.compilers import load_inputs

print(FxModule()(*load_inputs(Path(__file__).parent)))
'''


def save_graph(graph_module: fx.GraphModule, folder: str | Path, inputs: Sequence[object]) -> Path:
    """Save a graph and the metadata of its inputs as a folder that ``python FOLDER`` runs and that can be imported."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = graph_source(graph_module)
    (folder / MODULE_FILE).write_text(source.text(), encoding="utf-8")
    (folder / "__init__.py").write_text("from .module import FxModule as FxModule\n")
    (folder / "__main__.py").write_text(_MAIN)
    if source.tensors:
        write_tensors(folder / TENSORS_FILE, source.tensors)
    write_input_metadata(folder / INPUTS_FILE, placeholder_names(graph_module), inputs)
    return folder


def save_example_inputs(folder: Path, names: Sequence[str], inputs: Sequence[object]) -> None:
    """Save the values of inputs beside a saved graph; numbers are saved as one-element tensors."""
    tensors = {
        name: value if isinstance(value, torch.Tensor) else number_as_tensor(value)
        for name, value in zip(names, inputs, strict=True)
        if isinstance(value, torch.Tensor | int | float)
    }
    write_tensors(folder / EXAMPLES_FILE, tensors)


def load_inputs(folder: str | Path) -> list[object]:
    """Return the example inputs of a saved graph if they were saved, and random inputs that fit otherwise."""
    folder = Path(folder)
    if not (folder / EXAMPLES_FILE).exists():
        return get_inputs(folder)
    tensors = read_tensors(folder / EXAMPLES_FILE)
    metadata = [(str(entry["name"]), entry["type"]) for entry in read_input_metadata(folder)]
    return [
        tensors[name] if kind == "Tensor" else tensors[name].item() if name in tensors else None
        for name, kind in metadata
    ]


def load_graph(folder: str | Path) -> fx.GraphModule:
    """Load a saved graph as a ``GraphModule`` whose nodes have fake values, up to the node that raises, if any."""
    graph_module = _record(load_module(folder))
    _set_fake_values(graph_module, get_inputs(folder))
    return graph_module


def load_module(folder: str | Path) -> torch.nn.Module:
    """Import a saved graph's ``FxModule`` and instantiate it, without adding it to ``sys.modules``."""
    path = Path(folder) / MODULE_FILE
    specification = importlib.util.spec_from_file_location(f"precast_saved_{path.parent.name}", path)
    assert specification is not None
    assert specification.loader is not None
    namespace = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(namespace)
    module = namespace.FxModule()
    assert isinstance(module, torch.nn.Module)
    return module


def placeholder_names(graph_module: fx.GraphModule) -> list[str]:
    """Return the names of the graph's inputs, in order."""
    return [node.name for node in graph_module.graph.find_nodes(op="placeholder")]


class _Attributes:
    """Replaces ``self`` while a forward is recorded: each attribute read becomes a node."""

    def __init__(self, tracer: GraphAppendingTracer):
        self._tracer = tracer

    def __getattr__(self, name: str) -> Proxy:
        return self._tracer.create_proxy("get_attr", name, (), {})


class _Torch:
    """Replaces ``torch`` while a forward is recorded: each call of an op becomes a node, even without tensors."""

    def __init__(self, tracer: GraphAppendingTracer, real: object = torch):
        self._tracer, self._real = tracer, real

    def __getattr__(self, name: str) -> object:
        value = getattr(self._real, name)
        return _Torch(self._tracer, value) if self._real is not torch or name == "ops" else value

    def __call__(self, *args: object, **kwargs: object) -> Proxy:
        # Some higher-order ops take an op as an argument.
        args, kwargs = tree_map_only(_Torch, lambda op: op._real, (args, kwargs))
        assert callable(self._real)
        name = getattr(getattr(self._real, "overloadpacket", None), "__name__", None)  # `view`, as tracing calls it
        return self._tracer.create_proxy("call_function", self._real, args, kwargs, name)


def _record(module: torch.nn.Module) -> fx.GraphModule:
    """Return the graph of a generated ``forward``: straight-line code that only calls ops."""
    for name, child in module.named_children():
        setattr(module, name, _record(child))
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    forward = type(module).forward
    names = forward.__code__.co_varnames[1 : forward.__code__.co_argcount]
    placeholders = [Proxy(graph.placeholder(name), tracer) for name in names]
    recording = FunctionType(forward.__code__, {**forward.__globals__, "torch": _Torch(tracer)})
    results = recording(_Attributes(tracer), *placeholders)
    graph.output(tracer.create_arg(results))
    return fx.GraphModule(module, graph)


def _set_fake_values(graph_module: fx.GraphModule, inputs: Sequence[object]) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]

    def keep(node: fx.Node, value: object) -> None:
        if node.op != "output" and not isinstance(value, torch.nn.Module):
            set_value(node, value)

    with mode:
        record_node_values(graph_module, fakes, keep)


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
    """A compiler that saves the graph as a runnable folder, prints a script that minifies it, and runs the saved graph.

    The inputs of the last call are written to that folder before the graph runs, so they survive a crash.
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
