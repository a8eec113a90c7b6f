"""Losses over some of a compiled call's results: what leads to the others alone is not computed, as in eager."""

import copy

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.autograd import aot_function, get_aot_graph_name
from precast.compilers import nop
from precast.options import Options
from precast.partition import default_partition, min_cut_rematerialization_partition
from tests.autograd.stand_alone_compiler import StandAloneCompiler

BACKENDS = ["nop", "native"]


def two_slopes(x, w):
    return x * 2, x.sqrt() * w


def shared(x, w):
    hidden = (x + 1).tanh().cos()
    return hidden.sin() * 3, hidden.log() * w, hidden.sum() / x.sum()


def dropped(x, w):
    return F.dropout(x + 1, 0.5).exp(), F.dropout(w, 0.5).sqrt() / x, x.sqrt()


def written(x, w):
    y = x.clone()
    y[0].copy_(w[0])
    return y.view(-1) * 2, y.sqrt() * w, x.view(-1)


class TwoResults(torch.autograd.Function):
    """Gets zeros for a result that is not used, which it does not leave zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x.sqrt()

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + (second + 1) / (ctx.saved_tensors[0] + 1)


def own_backward(x, w):
    return (*TwoResults.apply(x), TwoResults.apply(x * w)[0])


def hooked(x, w):
    root = x.sqrt()
    root.register_hook(lambda gradient: torch.ones(3))
    return x * w, root, root * 2


PROGRAMS = [two_slopes, shared, dropped, written, own_backward, hooked]


def gradients(run, used, *, keep=False):
    """The gradients of a loss over some results, with the same numbers drawn at each run."""
    x, w = torch.tensor([0.0, 1.0, 2.0]).requires_grad_(), torch.tensor([1.0, 0.5, 3.0]).requires_grad_()
    torch.manual_seed(0)
    results = run(x, w)
    loss = sum((results[number] * 1.5).sum() for number in used)
    found = torch.autograd.grad(loss, (x, w), allow_unused=True, create_graph=keep)
    return [None if each is None else each.detach() for each in found]


@pytest.mark.thinned
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", PROGRAMS)
def test_what_only_leads_to_results_out_of_the_loss_is_not_computed(function, backend):
    compiled = precast.compile(function, backend=backend, options=Options(random="eager"))
    count = len(function(torch.ones(3, requires_grad=True), torch.ones(3)))
    uses = [[number] for number in range(count)]
    # The same call is used in one way after the other.
    for used in [*uses, [0, 1], list(range(count)), [0]]:
        expected = gradients(function, used)
        torch.testing.assert_close(gradients(compiled, used), expected, equal_nan=True)
        torch.testing.assert_close(gradients(compiled, used, keep=True), expected, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_a_head_out_of_the_loss_keep_their_gradient_as_it_is(backend):
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 2), "other": torch.nn.Linear(2, 2)})
    heads = precast.compile(lambda x: [head(x) for head in model.values()], backend=backend)
    heads(torch.ones(1, 2))[0].sum().backward()
    assert model["other"].weight.grad is None
    first = model["used"].weight.grad.clone()
    heads(torch.ones(1, 2))[1].sum().backward()
    assert model["other"].weight.grad is not None
    torch.testing.assert_close(model["used"].weight.grad, first)


def test_a_backward_may_be_run_twice_if_the_graph_is_kept_and_not_otherwise():
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    loss = aot_function(shared, nop)(x, w)[1].sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, x)


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_the_forward_is_not_computed_again_and_each_way_of_use_is_compiled_once(partition):
    names = []

    def noting(graph_module, examples):
        names.append(get_aot_graph_name().split("__")[1].partition("_")[2])
        return graph_module

    compiled = aot_function(shared, noting, partition_fn=partition)
    for used in ([0], [1], [0], [0, 1]):
        gradients(compiled, used)
    assert names == ["forward_0", "backward_0", "backward_of_0_0", "backward_of_1_0", "backward_of_0_1_0"]


def renaming_partition(joint, examples, **settings):
    """Saves values that are told by names of its own."""
    forward, backward = default_partition(joint, examples, **settings)
    for number, node in enumerate(backward.graph.find_nodes(op="placeholder")):
        node.target = node.name = f"value_{number}"
    backward.recompile()
    return forward, backward


def test_gradients_are_computed_from_the_inputs_where_what_is_saved_is_unknown():
    compiled = aot_function(two_slopes, nop, partition_fn=renaming_partition)
    for used in ([0], [1], [0, 1]):
        torch.testing.assert_close(gradients(compiled, used), gradients(two_slopes, used), equal_nan=True)


def test_sizes_may_be_symbols():
    compiled = precast.compile(two_slopes, backend="nop", dynamic=True)
    for size in (3, 5):
        x = torch.zeros(size, requires_grad=True)
        compiled(x, torch.ones(size, requires_grad=True))[0].sum().backward()
        assert torch.equal(x.grad, torch.full((size,), 2.0))


def test_a_start_without_a_trace_knows_it_too(tmp_path):
    options = Options(cache_directory=tmp_path)
    for _ in range(2):
        compiler = StandAloneCompiler(options)
        compiled = aot_function(two_slopes, compiler)
        for used in ([0], [1], [0, 1]):
            torch.testing.assert_close(gradients(compiled, used), gradients(two_slopes, used), equal_nan=True)
    assert (compiler.restored, compiler.compiled) == (2, 2)


@pytest.mark.parametrize(
    "program", [lambda x: (x // 2, x * 3), lambda x: ((y := x.exp()).sin(), y.mul_(2), x * 3)[::2]]
)
def test_a_result_that_autograd_refuses_is_refused_with_a_way_out(program):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(precast.errors.CaptureError, match=r"detach\(\)"):
        precast.compile(program, backend="nop", fullgraph=True)(x)
    with pytest.warns(precast.GraphBreakWarning):
        precast.compile(program, backend="nop")(x)[1].sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))


class Labelled(torch.nn.Module):
    """A model that returns its loss beside its scores, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(6, 12)
        self.norm, self.out = torch.nn.BatchNorm1d(5), torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        q, k, v = (each.unflatten(-1, (2, 2)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        hidden = self.norm(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        scores = self.out(hidden.mean(1))
        return F.cross_entropy(scores, labels), scores


@pytest.mark.thinned
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [0, 1])
def test_the_loss_of_a_model_that_returns_its_scores_too(backend, used):
    # Attention has no second derivative: the gradients must not be computed as those of gradients are.
    model, x, labels = Labelled(), torch.randn(4, 5, 6), torch.tensor([0, 2, 1, 1])
    compiled = precast.compile(copy.deepcopy(model), backend=backend, fullgraph=True)
    for each in (model, compiled):
        each(x, labels)[used].sum().backward()
    ours, theirs = ([each.grad for each in given.parameters()] for given in (compiled, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
