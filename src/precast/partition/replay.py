"""Random ops that are recomputed in the backward with the numbers that they drew in the forward.

Before::

    forward:    rand = rand_like(x)                         backward:  (needs rand)

After::

    forward:    rand_recorded = run_and_save_rng_state(rand_like, x)
                rand_rng_state = rand_recorded[0]; rand = rand_recorded[1]
    backward:   rand = run_with_rng_state(rand_rng_state, rand_like, x)
"""

import operator
from collections.abc import Callable

import torch
from torch import fx
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import FakeTensor

from precast.ops.facts import is_random

# The length of what torch.get_rng_state() returns: the whole Mersenne twister on CPU, seed and offset on devices.
_STATE_BYTES = {"cpu": 5056, "cuda": 16}


def may_be_replayed(node: fx.Node) -> bool:
    """Whether a random op draws from the default generator of a device that its arguments determine."""
    if not isinstance(node.target, OpOverload) or node.kwargs.get("generator") is not None:
        return False
    reads_tensor = any(isinstance(operand.meta.get("val"), torch.Tensor) for operand in node.all_input_nodes)
    return _device_type(node) in _STATE_BYTES and (reads_tensor or node.kwargs.get("device") is not None)


def state_bytes(node: fx.Node) -> int:
    """Return the size of the generator state that replaying a random op needs; 0 for ops that draw nothing."""
    return _STATE_BYTES.get(_device_type(node), 0) if is_random(node) else 0


def state_name(node: fx.Node) -> str:
    """Return the name of the saved generator state of a replayed op."""
    return f"{node.name}_rng_state"


def record(graph: fx.Graph, node: fx.Node, copy_of: Callable[[fx.Node], fx.Node]) -> tuple[fx.Node, fx.Node]:
    """Add a random op to the forward; return its result and the generator state before it."""
    assert isinstance(node.target, OpOverload)
    args, kwargs = fx.map_arg(node.args, copy_of), fx.map_arg(node.kwargs, copy_of)
    recorded = graph.create_node(
        "call_function", run_and_save_rng_state, (node.target, *args), kwargs, name=f"{node.name}_recorded"
    )
    state = graph.create_node("call_function", operator.getitem, (recorded, 0), name=state_name(node))
    result = graph.create_node("call_function", operator.getitem, (recorded, 1), name=node.name)
    state.meta["val"] = _state_value(node)
    result.meta = dict(node.meta)
    recorded.meta = {**node.meta, "val": (state.meta["val"], node.meta.get("val"))}
    return result, state


def state_placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Add the backward's input for the generator state of a replayed op."""
    placeholder = graph.placeholder(state_name(node))
    placeholder.meta["val"] = _state_value(node)
    return placeholder


def replay(graph: fx.Graph, node: fx.Node, state: fx.Node, copy_of: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Add a random op to the backward so that it draws the same numbers as in the forward."""
    assert isinstance(node.target, OpOverload)
    args, kwargs = fx.map_arg(node.args, copy_of), fx.map_arg(node.kwargs, copy_of)
    again = graph.create_node("call_function", run_with_rng_state, (state, node.target, *args), kwargs, name=node.name)
    again.meta = dict(node.meta)
    return again


def _first_tensor(value: object) -> object:
    return value[0] if isinstance(value, tuple | list) else value


def _device_type(node: fx.Node) -> str:
    value = _first_tensor(node.meta.get("val"))
    return value.device.type if isinstance(value, torch.Tensor) else "unknown"


def _state_value(node: fx.Node) -> torch.Tensor | None:
    value = _first_tensor(node.meta.get("val"))
    if not isinstance(value, FakeTensor):
        return None
    with value.fake_mode:
        return torch.empty(state_bytes(node), dtype=torch.uint8, device="cpu")
