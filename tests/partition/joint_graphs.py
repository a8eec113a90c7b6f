"""Joint graphs to partition, and what it takes to run them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop


@dataclass(frozen=True)
class Joint:
    """A joint graph, its counts, and real inputs for it."""

    module: fx.GraphModule
    num_fwd_outputs: int
    primals: tuple[torch.Tensor, ...]
    tangents: tuple[torch.Tensor, ...]


def trace_joint(function: Callable[..., object], *primals: torch.Tensor, dynamic: bool = False) -> Joint:
    """Trace ``function`` and its gradients into one graph: by ``primals`` that ask for it, else by all real ones."""
    asking = any(value.requires_grad for value in primals)
    inputs = [
        value.detach().clone().requires_grad_(value.requires_grad if asking else value.is_floating_point())
        for value in primals
    ]

    def catch(module: fx.GraphModule, joint_inputs: Sequence[object], **options: int) -> None:
        raise _Caught(module, options["num_fwd_outputs"])

    try:
        with torch.random.fork_rng():
            aot_function(function, fw_compiler=nop, partition_fn=catch, dynamic=dynamic)(*inputs)
    except _Caught as caught:
        return _joint_with_inputs(*caught.args, inputs)
    raise AssertionError("the function needs no gradient, so it was never partitioned")


class _Caught(Exception):  # noqa: N818 - it carries a graph out, nothing went wrong
    """Carries a joint graph out of the tracing."""


def _joint_with_inputs(module: fx.GraphModule, num_fwd_outputs: int, inputs: Sequence[torch.Tensor]) -> Joint:
    module.graph.set_codegen(fx.graph.CodeGen())  # the peer's takes and returns pytrees
    module.recompile()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    tangents = [node.meta["val"] for node in placeholders if node.name.startswith("tangents")]
    real = iter(value.detach() for value in inputs)
    primals = tuple(
        node.meta["val"].node.hint if isinstance(node.meta["val"], torch.SymInt) else next(real)
        for node in placeholders
        if node.name.startswith("primals")
    )
    generator = torch.Generator().manual_seed(7)
    shapes = [[size_hint(size) for size in value.shape] for value in tangents]
    values = (torch.randn(shape, generator=generator) for shape in shapes)
    return Joint(module, num_fwd_outputs, primals, tuple(v.to(t.dtype) for v, t in zip(values, tangents, strict=True)))


def size_hint(size: int | torch.SymInt) -> int:
    """Return the size a symbolic size was traced with."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


def run_joint(joint: Joint) -> list[torch.Tensor | None]:
    """Run the joint graph as it is."""
    return list(joint.module(*joint.primals, *joint.tangents))


def run_halves(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> list[torch.Tensor | None]:
    """Run the forward, hand over by name what it saved, run the backward; return what the joint graph returns."""
    outputs = forward(*joint.primals)
    count = joint.num_fwd_outputs
    saved = dict(zip(saved_names(forward, count), outputs[count:], strict=True))
    tangents = {f"tangents_{index + 1}": value for index, value in enumerate(joint.tangents)}
    given = {**saved, **tangents}
    gradients = backward(*(given[name] for name in placeholder_names(backward)))
    return [*outputs[:count], *gradients]


def saved_names(forward: fx.GraphModule, num_fwd_outputs: int) -> list[str]:
    """Return the names of what a forward returns beyond its outputs."""
    return [node.name for node in forward.graph.output_node().args[0][num_fwd_outputs:]]


def placeholder_names(module: fx.GraphModule) -> list[str]:
    """Return the names of a graph's inputs, in order."""
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def called(module: fx.GraphModule) -> list[str]:
    """Return the names of the ops a graph calls, in order."""
    return [node.name for node in module.graph.nodes if node.op == "call_function"]


def assert_halves_equal_joint(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Both ways of running give the same bits under the same seed."""
    torch.manual_seed(0)
    expected = run_joint(joint)
    torch.manual_seed(0)
    actual = run_halves(joint, forward, backward)
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
