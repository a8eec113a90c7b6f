"""The layered layout of drawings: boxes in layers by depth, with few crossing arrows, near their neighbours.

The three steps of Sugiyama's method: a layer for each box, an order within each layer, coordinates for each box. An
arrow over several layers passes each through a *bend*, which is ordered and placed like a small box.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from torch import fx

from precast.graph.nodes import has_value, module_path_of, source_line_of, value_of
from precast.graph.printer import target_name
from precast.graph.tensor_spec import describe

_LAYER_GAP = 36.0
_BOX_GAP = 18.0
_SWEEPS = 8
# A longer arrow is drawn straight, behind the boxes: bends in every layer would cost more than they help.
_LONGEST_BENT_ARROW = 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """The centre of each box, the points of each arrow, the arrows that are straight over many layers, and the size."""

    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    far: frozenset[int]
    width: float
    height: float


@dataclass(frozen=True)
class _Chain:
    """An arrow as the places (boxes and bends) that it passes, one per layer."""

    places: tuple[int, ...]


def lay_out_boxes(sizes: Sequence[Point], arrows: Sequence[tuple[int, int]]) -> Layout:
    """Return places for boxes of the given widths and heights; every arrow points to a later box."""
    depths = _depths(len(sizes), arrows)
    place_depths, chains = _bend(depths, arrows)
    widths = [width for width, _ in sizes] + [0.0] * (len(place_depths) - len(sizes))
    above, below = _neighbours(len(place_depths), chains)
    layers = _ordered(_layers(place_depths), above, below)
    across = _placed(layers, widths, above, below)
    tops, heights = _rows(layers, sizes)
    down = [tops[depth] + heights[depth] / 2 for depth in place_depths]
    left = min((x - width / 2 for x, width in zip(across, widths, strict=True)), default=0.0) - _BOX_GAP
    across = [x - left for x in across]
    routes = [_route(chain, across, place_depths, sizes, tops, heights) for chain in chains]
    right = max((x + width / 2 for x, width in zip(across, widths, strict=True)), default=0.0)
    bottom = tops[-1] + heights[-1] if tops else 0.0
    centres = tuple(zip(across, down, strict=True))[: len(sizes)]
    far = {number for number, (source, target) in enumerate(arrows) if _is_far(depths[source], depths[target])}
    return Layout(centres, tuple(routes), frozenset(far), right + _BOX_GAP, bottom + _LAYER_GAP / 2)


def _depths(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """Return each box's layer: below all its operands; without operands, right above its first reader."""
    depths, has_sources = [0] * count, [False] * count
    for source, target in sorted(arrows, key=lambda arrow: arrow[1]):
        depths[target] = max(depths[target], depths[source] + 1)
        has_sources[target] = True
    first_reader: dict[int, int] = {}
    for source, target in arrows:
        first_reader[source] = min(first_reader.get(source, depths[target]), depths[target])
    return [
        depth if has_source or box not in first_reader else first_reader[box] - 1
        for box, (depth, has_source) in enumerate(zip(depths, has_sources, strict=True))
    ]


def _bend(depths: list[int], arrows: Sequence[tuple[int, int]]) -> tuple[list[int], list[_Chain]]:
    """Return the layers of all places, boxes first and then bends, and each arrow's path through them."""
    place_depths, chains = list(depths), []
    for source, target in arrows:
        between = range(depths[source] + 1, depths[target])
        if _is_far(depths[source], depths[target]):
            between = range(0)
        bends = range(len(place_depths), len(place_depths) + len(between))
        place_depths += between
        chains.append(_Chain((source, *bends, target)))
    return place_depths, chains


def _is_far(upper: int, lower: int) -> bool:
    return lower - upper > _LONGEST_BENT_ARROW


def _neighbours(count: int, chains: Sequence[_Chain]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for chain in chains:
        for upper, lower in pairwise(chain.places):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _layers(depths: Sequence[int]) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for place, depth in enumerate(depths):
        layers[depth].append(place)
    return layers


def _ordered(layers: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Sort each layer by the mean position of its neighbours, sweeping down and up in turn."""
    position = {place: float(index) for layer in layers for index, place in enumerate(layer)}
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            mean = {
                place: fmean(position[other] for other in neighbours[place]) if neighbours[place] else position[place]
                for place in layer
            }
            layer.sort(key=mean.__getitem__)
            position.update({place: float(index) for index, place in enumerate(layer)})
    return layers


def _placed(
    layers: list[list[int]], widths: Sequence[float], above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Return each place's x coordinate: as near to its neighbours as order and widths allow."""
    across = [0.0] * len(widths)
    for layer in layers:
        for place, x in zip(layer, accumulate(_separations(layer, widths), initial=0.0), strict=False):
            across[place] = x
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [
                fmean(across[other] for other in neighbours[place]) if neighbours[place] else across[place]
                for place in layer
            ]
            for place, x in zip(layer, _spread(wanted, _separations(layer, widths)), strict=True):
                across[place] = x
    return across


def _separations(layer: Sequence[int], widths: Sequence[float]) -> list[float]:
    return [(widths[left] + widths[right]) / 2 + _BOX_GAP for left, right in pairwise(layer)]


def _spread(wanted: Sequence[float], separations: Sequence[float]) -> list[float]:
    """Return the coordinates nearest to the wanted ones, in least squares, that keep the separations.

    After subtracting the separations, the coordinates must not decrease: this is isotonic regression by pooling
    adjacent violators.
    """
    room = list(accumulate(separations, initial=0.0))
    pools: list[tuple[float, int]] = []
    for place, before in zip(wanted, room, strict=True):
        mean, count = place - before, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_count = pools.pop()
            mean = (mean * count + other_mean * other_count) / (count + other_count)
            count += other_count
        pools.append((mean, count))
    pooled = [mean for mean, count in pools for _ in range(count)]
    return [mean + before for mean, before in zip(pooled, room, strict=True)]


def _rows(layers: Sequence[Sequence[int]], sizes: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return each layer's top and height."""
    heights = [max((sizes[place][1] for place in layer if place < len(sizes)), default=0.0) for layer in layers]
    tops = accumulate((height + _LAYER_GAP for height in heights), initial=_LAYER_GAP / 2)
    return list(tops)[: len(heights)], heights


def _route(
    chain: _Chain,
    across: Sequence[float],
    depths: Sequence[int],
    sizes: Sequence[Point],
    tops: Sequence[float],
    heights: Sequence[float],
) -> tuple[Point, ...]:
    """Return the points of an arrow: out of its box, past each layer between, to the top of the next box."""
    source, *bends, target = chain.places
    middle = [tops[depth] + heights[depth] / 2 for depth in (depths[source], depths[target])]
    points = [(across[source], middle[0] + sizes[source][1] / 2)]
    for bend in bends:
        top, height = tops[depths[bend]], heights[depths[bend]]
        points += [(across[bend], top), (across[bend], top + height)]
    return (*points, (across[target], middle[1] - sizes[target][1] / 2))


_KINDS = {"placeholder": "input", "get_attr": "attribute", "output": "output"}
_LONGEST_LINE = 60


@dataclass(frozen=True)
class Box:
    """One node: its lines of text, its tooltip, and its kind."""

    lines: tuple[str, ...]
    tooltip: str
    kind: str


@dataclass(frozen=True)
class Picture:
    """Boxes in the graph's order, and arrows as pairs of their numbers; every arrow points to a later box."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]


def picture_of(graph_module: fx.GraphModule, *, clear_meta: bool = True) -> Picture:
    """Return what to draw; with ``clear_meta=False``, including each value's type and source line."""
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
