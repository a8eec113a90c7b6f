"""A graph and its inputs as one script that runs by itself."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import fx

from precast.compilers.graph_source import graph_source, reader_source
from precast.compilers.saved_graph import EXAMPLES_FILE, placeholder_names, save_example_inputs, save_graph

SCRIPT_FILE = "repro.py"

# Inputs up to this many elements are written into the script.
_INLINE_LIMIT = 64


def save_repro(graph_module: fx.GraphModule, inputs: Sequence[object], folder: Path) -> Path:
    """Save the graph, its inputs and a script that runs it on them; return the script's path."""
    save_graph(graph_module, folder, inputs)
    names = placeholder_names(graph_module)
    save_example_inputs(folder, names, inputs)
    script = folder / SCRIPT_FILE
    script.write_text(_script(graph_module, names, inputs), encoding="utf-8")
    return script


def _script(graph_module: fx.GraphModule, names: Sequence[str], inputs: Sequence[object]) -> str:
    source = graph_source(graph_module)
    written = [_literal(value) for value in inputs]
    parts = [source.text().rstrip()]
    if None in written:
        if not source.tensors:
            parts.insert(0, f"import json\nimport os\n\nimport torch\n\n\n{reader_source()}")
        parts.append(
            f"EXAMPLES = read_tensors(os.path.join(os.path.dirname(os.path.abspath(__file__)), {EXAMPLES_FILE!r}))"
        )
    lines = [f"    {text or f'EXAMPLES[{name!r}]'},  # {name}" for name, text in zip(names, written, strict=True)]
    parts.append("\n".join(["inf, nan = float('inf'), float('nan')", "inputs = [", *lines, "]"]))
    parts.append('if __name__ == "__main__":\n    print(FxModule()(*inputs))')
    return "\n\n\n".join(parts) + "\n"


def _literal(value: object) -> str | None:
    """Return the value as source; None for a tensor too large or too special to be written out."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.is_contiguous() and value.numel() and value.device.type == "cpu" and not value.is_complex()
    if not plain or value.numel() > _INLINE_LIMIT or (value.element_size() == 1 and value.is_floating_point()):
        return None
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"
