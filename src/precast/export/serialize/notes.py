"""What else nodes carry: the function of torch that the program called, and the metadata that users added.

A note is ``[node, function, custom]``; nodes of subgraphs have the path of their graph before their name.
"""

from collections.abc import Iterator
from typing import Any

from torch import fx

from precast.artifact.schema import Json, damaged
from precast.errors import ExportError
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.export.verifier import graphs_of

_FUNCTION, _CUSTOM = "torch_fn", "custom"


def notes_to_json(module: fx.GraphModule) -> list[Json]:
    """The notes of all nodes that have some."""
    found: list[Json] = []
    for name, node in _nodes(module):
        function, custom = _function(node.meta.get(_FUNCTION)), _plain(node.meta.get(_CUSTOM))
        if function is not None or custom is not None:
            found.append([name, function, custom])
    return found


def read_notes(notes: list[Any], module: fx.GraphModule) -> None:
    """Put the notes of a file on the nodes of its graph."""
    nodes = dict(_nodes(module))
    for name, function, custom in ((*note, None, None, None)[:3] for note in notes):
        if name not in nodes:
            raise damaged(f"a note is on the node {str(name)[:80]!r}", "the graph has no such node")
        if function is not None:
            if _function(function) != function:
                raise damaged("the function of a node is malformed", f"it is {str(function)[:80]}")
            nodes[name].meta[_FUNCTION] = tuple(function)
        if custom is not None:
            value = constant_from_json(custom)
            if not isinstance(value, dict):
                raise damaged("the metadata of a node is malformed", f"it is {str(custom)[:80]}")
            nodes[name].meta[_CUSTOM] = value


def _nodes(module: fx.GraphModule) -> Iterator[tuple[str, fx.Node]]:
    return ((f"{path}{node.name}", node) for path, graph in graphs_of(module) for node in graph.nodes)


def _function(record: Any) -> Json:
    """The number and the name of the function that was called."""
    is_pair = isinstance(record, tuple | list) and [type(text) for text in record] == [str, str]
    return list(record) if is_pair else None


def _plain(custom: Any) -> Json:
    """Metadata that is plain values; what else passes put there belongs to the process."""
    if not isinstance(custom, dict):
        return None
    try:
        return constant_to_json(custom)
    except ExportError:
        return None
