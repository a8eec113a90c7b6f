"""Torch's own AOT autograd as a peer: the same outputs, gradients, and graphs, node by node, saved values included."""

import pytest
import torch
from torch._functorch.aot_autograd import aot_function as torchs_aot_function
from torch._functorch.partitioners import default_partition as torchs_partition
from torch.nn import functional
from torch.utils import _pytree as pytree

from precast.autograd import aot_function
from precast.partition import default_partition
from tests.autograd.like_eager import leaf

pytestmark = pytest.mark.filterwarnings("ignore")


def constant(*sizes):
    return leaf(*sizes).detach()


def written_intermediate(x, y):
    z = x * y
    z.add_(1)
    z[0] = 2
    return z.sin()


def written_input(x, y):
    y.mul_(2)
    return x * y


def views(x, y):
    z = x * y
    return z, z.view(-1), x.t()


def loop(x, y):
    for _ in range(3):
        x = (x @ y).tanh()
    return x


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(result := x.exp())
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


FUNCTIONS = {
    "pointwise": lambda x, y: (x * y).sin() + x.exp(),
    "matmul": lambda x, y: (x @ y).relu().sum(),
    "linear": lambda x, y: functional.gelu(functional.linear(x, y)),
    "softmax": lambda x, y: (x.softmax(-1) * y).sum(),
    "layer norm": lambda x, y: functional.layer_norm(x, (3,)) * y,
    "cross entropy": lambda x, y: functional.cross_entropy(x, torch.tensor([0, 1, 2])) + y.mean(),
    "two outputs": lambda x, y: (x * y, x.sin()),
    "unused input": lambda x, y: x.cos(),
    "detached": lambda x, y: x * y.detach(),
    "no_grad": lambda x, y: x * torch.no_grad()(torch.sin)(y),
    "written intermediate": written_intermediate,
    "views": views,
    "loop": loop,
    "parts": lambda x, y: torch.cat([x, y]).split(2)[0].sum(0),
    "index": lambda x, y: x[1:, ::2].sum() + y[torch.tensor([0, 2])].prod(),
    "where": lambda x, y: torch.where(x > 0, x, y).clamp(-1, 1),
    "reductions": lambda x, y: x.mean(0) + y.var(1) + x.amax(-1) + y.norm(),
    "own function": lambda x, y: Exponential.apply(x) * y,
    "convolution": lambda x, y: functional.conv1d(x[None], y[:, :, None]).tanh(),
    "batch norm": lambda x, y: functional.batch_norm(x, None, None, training=True) * y,
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y).square().log1p(),
    "integers": lambda x, y: ((x * y).argmax(-1), x.sort(0).values),
    "factory": lambda x, y: x * torch.ones(3, dtype=torch.float64) + y * 2,
    "conversions": lambda x, y: (x.float() * y.float()).double(),
    "numbers": lambda x, y: 1 / x + y**2 - 3,
    "expand": lambda x, y: x.sum(1, keepdim=True).expand(3, 3) * y,
    "permute": lambda x, y: x.t().contiguous().view(-1) * y.permute(1, 0).reshape(-1),
    "logsumexp": lambda x, y: x.logsumexp(0) + y.log_softmax(-1).sum(0),
    "scan": lambda x, y: x.cumsum(0) * y.flip(0),
    "embedding": lambda x, y: functional.embedding(torch.tensor([0, 2]), x) @ y,
}
CASES = {name: (function, leaf, leaf) for name, function in FUNCTIONS.items()} | {
    "written input": (written_input, leaf, constant),
    "inference": (lambda x, y: (x * y).sin(), constant, constant),
    "written input in inference": (written_input, constant, constant),
}


def run(aot, partition, case):
    """The graphs by kind, in the order of their compilation, the outputs and the gradients of the inputs."""
    function, *makers = case
    torch.manual_seed(0)
    inputs, graphs = [make(3, 3) for make in makers], []

    def compiler(kind):
        def keep(module, _):
            graphs.append((kind, described(module.graph)))
            return module

        return keep

    forward, backward, inference = map(compiler, ("forward", "backward", "inference"))
    outputs = pytree.tree_leaves(
        aot(function, forward, backward, partition_fn=partition, inference_compiler=inference)(*inputs)
    )
    losses = [each.sum() for each in outputs if each.requires_grad]
    if losses:
        sum(losses).backward()
    return graphs, outputs, [each.grad for each in inputs]


def described(graph):
    """Nodes with their targets, the first results, and all results; the detach of a value is the value itself.

    Ours has none of these, and so saves some values once that torch saves twice; the order of saved values is free.
    """
    computed = [node for node in graph.nodes if node.op == "call_function"]
    detached = {node: node.args[0] for node in computed if node.target is torch.ops.aten.detach.default}
    results = [str(detached.get(each, each)) for each in graph.output_node().args[0]]
    nodes = [(node.name, str(node.target)) for node in computed if node not in detached]
    return nodes, results[:1], set(results)


_FAST = ("pointwise", "views", "loop", "own function", "written input", "inference")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _FAST else pytest.mark.slow) for name in CASES]
)
def test_graphs_outputs_and_gradients_are_torchs(name):
    theirs = run(torchs_aot_function, torchs_partition, CASES[name])
    ours = run(aot_function, default_partition, CASES[name])
    torch.testing.assert_close(ours[1:], theirs[1:])
    assert ours[0] == theirs[0]
