"""Draw graphs: SVG by ourselves or graphviz, PDF and PNG by graphviz, DOT as text."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import fx

from precast.compilers.dot_text import dot_text
from precast.compilers.graph_picture import picture_of
from precast.compilers.registry import Compiler
from precast.compilers.svg_text import svg_text
from precast.compilers.unchanged import python_text
from precast.errors import InputValueError, ToolMissingError

# Graphviz places small graphs more finely than we do, and takes minutes for large ones.
_GRAPHVIZ_SECONDS = 20.0


def draw_graph(graph_module: fx.GraphModule, path: str | Path, clear_meta: bool = True) -> Path:
    """Draw the graph into a file of the kind that its suffix says (SVG if it has none), and return its path.

    With ``clear_meta=False`` each box also tells the value's type and module, and on pointing at it its source line.
    """
    path = Path(path)
    if not path.suffix:
        path = path.with_suffix(".svg")
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputValueError(
            f"cannot draw a graph as {path.suffix!r}",
            why=f"known suffixes: {', '.join(_WRITERS)}",
            fix=f"write {path.with_suffix('.svg')}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    writer(graph_module, path, clear_meta)
    return path


def draw_graph_compile(name: str) -> Compiler:
    """Return a compiler that draws the graph as ``name``, prints its code, and runs it as it was captured."""

    def draw_and_run(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
        print(python_text(graph_module))
        draw_graph(graph_module, name)
        return graph_module

    return draw_and_run


def _write_dot(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    path.write_text(dot_text(picture_of(graph_module, clear_meta=clear_meta)), encoding="utf-8")


def _write_svg(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    picture = picture_of(graph_module, clear_meta=clear_meta)
    if not (shutil.which("dot") and _run_graphviz(dot_text(picture), path, time_limit=_GRAPHVIZ_SECONDS)):
        path.write_text(svg_text(picture), encoding="utf-8")


def _write_by_graphviz(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    if shutil.which("dot") is None:
        raise ToolMissingError(
            f"cannot draw {path.name}: the program 'dot' is not installed",
            why=f"graphviz writes {path.suffix[1:].upper()} files; SVG and DOT need no program",
            fix=f"install the package 'graphviz' (apt-get install graphviz), or write {path.with_suffix('.svg').name}",
        )
    _run_graphviz(dot_text(picture_of(graph_module, clear_meta=clear_meta)), path, time_limit=None)


def _run_graphviz(text: str, path: Path, *, time_limit: float | None) -> bool:
    """Tell whether graphviz drew the file in time."""
    command = ["dot", f"-T{path.suffix[1:].lower()}", "-o", str(path)]
    try:
        subprocess.run(command, input=text, encoding="utf-8", check=True, timeout=time_limit)
    except subprocess.TimeoutExpired:
        return False
    return True


_WRITERS: dict[str, Callable[[fx.GraphModule, Path, bool], None]] = {
    ".svg": _write_svg,
    ".dot": _write_dot,
    ".pdf": _write_by_graphviz,
    ".png": _write_by_graphviz,
}
