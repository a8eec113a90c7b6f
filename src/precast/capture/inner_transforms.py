"""Programs that take gradients or vectorize by themselves, which cannot be recorded from before autograd.

Recorded before autograd, ``cross_entropy_loss`` is one operator. Its gradient reads what the operator computed inside,
``log_softmax``, which nobody recorded: the graph would hold a fake tensor for a constant. What ``torch.func`` does is
recorded there as calls that are no operators. After autograd, all of that are plain operators.
"""

import torch
from torch import fx
from torch._subclasses.fake_tensor import is_fake

from precast.errors import CaptureError
from precast.ir.node_meta import source_line_of


class InnerTransformError(CaptureError):
    """A graph from before autograd cannot hold what the program does; one from after it can."""


def refuse_inner_transforms(module: fx.GraphModule) -> None:
    """Raise if the graph, traced before autograd, lacks what gradients inside the program need."""
    for node in module.graph.nodes:
        if _is_unrecorded(module, node) or _is_functorch_call(node):
            reader = next(iter(node.users), node)
            line = source_line_of(reader) or source_line_of(node)
            raise InnerTransformError(
                "The program takes gradients, or applies another transform of torch.func, by itself.",
                at=str(line) if line else None,
                why="a graph of operators from before autograd does not have what their gradients are computed from",
                fix="Use precast.export or precast.capture.capture, which record such programs after autograd.",
            )


def _is_unrecorded(module: fx.GraphModule, node: fx.Node) -> bool:
    value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(value, torch.Tensor) and is_fake(value)


def _is_functorch_call(node: fx.Node) -> bool:
    """Whether a call came from the functions that torch puts in place of its transforms while it traces so early."""
    return node.op == "call_function" and str(getattr(node.target, "__module__", "")).endswith(".predispatch")
