"""Typed access to what we keep on a graph node.

The keys follow torch.fx where torch.fx has a convention (``val``, ``stack_trace``, ``nn_module_stack``), so that tools
written for PyTorch's graphs keep working on ours. Each fact has one function here that reads it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils.checkpoint import CheckpointPolicy

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)\n?(?:\s+(?P<code>.+))?')


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's program."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        code = f": {self.code}" if self.code else ""
        return f"{self.file}:{self.line} in {self.function}{code}"


def has_value(node: fx.Node) -> bool:
    return "val" in node.meta


def value_of(node: fx.Node) -> object:
    """The fake value (or tuple of them) that tracing saw for ``node``."""
    assert "val" in node.meta, f"node {node.name} ({node.target}) carries no value"
    return node.meta["val"]


def set_value(node: fx.Node, value: object) -> None:
    node.meta["val"] = value


def is_state(node: fx.Node) -> bool:
    """Whether a placeholder is a parameter or a buffer that the graph does not update."""
    return bool(node.meta.get("precast_state", False))


def mark_state(node: fx.Node) -> None:
    node.meta["precast_state"] = True


def updating_result_of(node: fx.Node) -> int | None:
    """The number of the result that is a placeholder's new value, if that may be written into its memory.

    A compiler that does so returns the input itself as that result.
    """
    number: int | None = node.meta.get("precast_updating_result")
    return number


def mark_updating_result(node: fx.Node, number: int) -> None:
    node.meta["precast_updating_result"] = number


def constant_sources_of(node: fx.Node) -> frozenset[str]:
    """The names of the inputs that a constant was folded from; empty for an original constant."""
    sources: frozenset[str] = node.meta.get("precast_constant_sources", frozenset())
    return sources


def set_constant_sources(node: fx.Node, names: frozenset[str]) -> None:
    node.meta["precast_constant_sources"] = names


def tensor_of(node: fx.Node) -> torch.Tensor:
    """The fake value of a node that is known to return exactly one tensor."""
    value = value_of(node)
    assert isinstance(value, torch.Tensor), f"node {node.name} returns {type(value).__name__}, not one tensor"
    return value


def subgraph_of(node: fx.Node) -> fx.GraphModule | None:
    """The graph of a control-flow operator's branch that a ``get_attr`` node refers to; None for all other nodes."""
    if node.op != "get_attr":
        return None
    value = attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, fx.GraphModule) else None


def source_line_of(node: fx.Node) -> SourceLine | None:
    """The innermost line of the user's program that led to ``node``."""
    frames = list(_FRAME.finditer(node.stack_trace or ""))
    if not frames:
        return None
    last = frames[-1]
    return SourceLine(last["file"], int(last["line"]), last["function"].strip(), (last["code"] or "").strip())


def module_path_of(node: fx.Node) -> str:
    """The dotted path of the submodule that ran ``node``; empty at the top."""
    stack: dict[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""


def called_path_of(node: fx.Node) -> str:
    """The same path with the number of the call, if it is not the first call: ``layers.0@1``."""
    stack: dict[str, object] = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack)).removeprefix("L__self__") if stack else ""


def set_module_stack(node: fx.Node, stack: dict[str, tuple[str, str]]) -> None:
    """Record the modules around ``node``, outermost first: key → (path, class name)."""
    node.meta["nn_module_stack"] = stack


def is_backward(node: fx.Node) -> bool:
    """Whether the autograd engine, and not the user's forward, ran ``node``."""
    return bool(node.meta.get("autograd_backward", False))


def sequence_number_of(node: fx.Node) -> int | None:
    """The autograd sequence number that a backward node shares with the forward op it differentiates."""
    return node.meta.get("seq_nr")


def set_autograd_origin(node: fx.Node, sequence_number: int, *, backward: bool) -> None:
    node.meta["seq_nr"] = sequence_number
    if backward:
        node.meta["autograd_backward"] = True


def forward_node_of(node: fx.Node) -> str | None:
    """The name of the forward node whose derivative ``node`` helps to compute."""
    return node.meta.get("forward_node")


def set_forward_node(node: fx.Node, forward: fx.Node) -> None:
    """Record the forward node that a backward node differentiates, also under the keys of torch's own graphs."""
    node.meta["forward_node"] = forward.name
    node.meta["fwd_nn_module_stack"] = forward.meta.get("nn_module_stack")
    node.meta["fwd_source_fn_stack"] = forward.meta.get("source_fn_stack")


def set_torch_function(node: fx.Node, function: Callable[..., object], number: int) -> None:
    """Record which function of torch the program called, and how many times it had by then."""
    name, kind = function.__name__, type(function).__name__
    node.meta.setdefault("torch_fn", (f"{name}_{number}", f"{kind}.{name}"))


_TORCHS_ANNOTATION = "_torchdynamo_disable"


def keep_users_annotations(node: fx.Node) -> None:
    """Drop torch's own entries from the user's annotations (``torch.fx.traceback.annotate``)."""
    if (custom := node.meta.get("custom")) is not None:
        kept = {key: value for key, value in custom.items() if not str(key).startswith(_TORCHS_ANNOTATION)}
        node.meta["custom"] = kept
        if not kept:
            del node.meta["custom"]


_PROVENANCE = (
    "stack_trace",
    "nn_module_stack",
    "torch_fn",
    "source_fn_stack",
    "from_node",
    "custom",
    "seq_nr",
    "autograd_backward",
    "forward_node",
)


def copy_provenance(source: fx.Node, target: fx.Node) -> None:
    """Copy the provenance of ``source`` to ``target``, except for what ``target`` has already."""
    for key in _PROVENANCE:
        if key in source.meta and key not in target.meta:
            target.meta[key] = source.meta[key]


def set_checkpoint_tag(node: fx.Node, region: int, policy: CheckpointPolicy) -> None:
    """Record the region of ``torch.utils.checkpoint`` that ``node`` belongs to, and the region's policy for it."""
    node.meta["ac_graph_id"], node.meta["recompute"] = region, policy


def copy_checkpoint_tag(source: fx.Node, target: fx.Node) -> None:
    """Put ``target``, which computes the same, into the checkpoint region of ``source``."""
    for key in ("ac_graph_id", "recompute"):
        if key in source.meta:
            target.meta[key] = source.meta[key]


def devices_of(graph: fx.Graph) -> Iterator[str]:
    """The device type (``cpu``, ``cuda``) of each tensor in the graph, node by node."""
    values = (value_of(node) for node in graph.nodes if has_value(node))
    each_alone = (each for value in values for each in (value if isinstance(value, tuple | list) else (value,)))
    return (each.device.type for each in each_alone if isinstance(each, torch.Tensor))


def placeholders_of(graph: fx.Graph) -> list[fx.Node]:
    """The graph's inputs, in order."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def results_of(graph: fx.Graph) -> tuple[Argument, ...]:
    """What a flat graph returns: nodes and plain constants, in order."""
    results = graph.output_node().args[0]
    assert isinstance(results, (tuple, list)), "a flat graph returns one flat sequence"
    return tuple(cast("tuple[Argument, ...]", results))
