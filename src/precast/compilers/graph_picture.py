"""What a drawing of a graph shows, before it is known where: boxes with text, and arrows between them."""

from dataclasses import dataclass

from torch import fx

from precast.ir.node_meta import has_value, module_path_of, source_line_of, value_of
from precast.ir.printer import target_name
from precast.ir.tensor_spec import describe

_KINDS = {"placeholder": "input", "get_attr": "attribute", "output": "output"}
_LONGEST_LINE = 60


@dataclass(frozen=True)
class Box:
    """One node: the lines written in it, what a reader sees on pointing at it, and what it is."""

    lines: tuple[str, ...]
    tooltip: str
    kind: str


@dataclass(frozen=True)
class Picture:
    """Boxes in the graph's order, and arrows as pairs of their numbers; every arrow points to a later box."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]


def picture_of(graph_module: fx.GraphModule, *, clear_meta: bool = True) -> Picture:
    """Return what to draw; with ``clear_meta=False`` also each value's type and where in the source it comes from."""
    nodes = list(graph_module.graph.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    arrows = [(numbers[argument], numbers[node]) for node in nodes for argument in node.all_input_nodes]
    return Picture(tuple(_box(node, clear_meta) for node in nodes), tuple(arrows))


def _box(node: fx.Node, clear_meta: bool) -> Box:
    lines = [node.name]
    if node.op not in ("placeholder", "output"):
        lines.append(target_name(node.target))
    tooltip = [node.format_node() or node.name]
    if not clear_meta:
        if has_value(node):
            lines.append(describe(value_of(node)))
        if module_path_of(node):
            lines.append(module_path_of(node))
        if source := source_line_of(node):
            tooltip.append(str(source))
    return Box(tuple(map(_shortened, lines)), "\n".join(tooltip), _KINDS.get(node.op, "operation"))


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
