"""A picture of a graph in the DOT language of graphviz."""

from precast.compilers.graph_picture import Box, Picture

FILL = {"input": "#e3eefb", "attribute": "#eeeeee", "operation": "#fdf6e3", "output": "#e6f4e6"}


def dot_text(picture: Picture) -> str:
    """Return the picture as DOT text."""
    lines = ["digraph graph_module {", '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];']
    lines += [f"  n{number} {_attributes(box)};" for number, box in enumerate(picture.boxes)]
    lines += [f"  n{source} -> n{target};" for source, target in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def _attributes(box: Box) -> str:
    label = "\\n".join(_quoted(line) for line in box.lines)
    return f'[label="{label}", tooltip="{_quoted(box.tooltip)}", fillcolor="{FILL[box.kind]}"]'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
